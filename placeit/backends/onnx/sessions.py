"""Run whole ONNX models in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, TensorSpec
from placeit.backends.onnx_external import session_source
from placeit.devices.onnxruntime import explaining, onnxruntime

if TYPE_CHECKING:
    import onnx

__all__ = ["initial_state", "open_whole", "ort_dtype", "ort_reference"]


def ort_dtype(kind: str) -> str:
    """Return NumPy's name of a type of ONNX Runtime such as ``tensor(float)``; ``sequence`` and so on if it is not a tensor."""
    container, _, name = kind.removesuffix(")").partition("(")
    return {"float": "float32", "double": "float64"}.get(name, name) if container == "tensor" else container


def open_whole(model: str | bytes | onnx.ModelProto, *, optimize: bool = True) -> Any:
    """Return a session for a whole model on the CPU, whose threads sleep between runs. Raises ONNX Runtime's errors.

    Args:
        model: path of the file, its content, or the model itself.
        optimize: whether nodes may be fused; constants are folded in any case.
    """
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # errors are raised; warnings about parts of a model do not help users
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # compute in f32: the default is 8 bits
    if not optimize:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return runtime.InferenceSession(
        session_source(model, options), options, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def initial_state(value: Any) -> NDArray[np.generic]:
    """Return the initial value of a state: zeros, with size 0 along its last open dimension and 1 along other open ones.

    ``GroupQueryAttention`` refuses states without rows.

    Args:
        value: input of a session that is the state.
    """
    growing = max((axis for axis, size in enumerate(value.shape) if not isinstance(size, int)), default=None)
    sizes = [size if isinstance(size, int) else int(axis != growing) for axis, size in enumerate(value.shape)]
    return np.zeros(sizes, ort_dtype(value.type))


def ort_reference(
    model: str | onnx.ModelProto, inputs: Sequence[TensorSpec], outputs: Mapping[str, str], path: Path
) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:
    """Return a function that runs a whole model in ONNX Runtime, as the reference for outputs.

    Args:
        model: path of the file, or the model itself.
        inputs: inputs of the model; its other inputs are states, which have their initial value in each run.
        outputs: names of its outputs in the file, by their names for callers.
        path: path for messages.

    Raises:
        DeviceError: ONNX Runtime does not open the model.
    """
    with explaining(f"ONNX Runtime cannot open {path}"):
        session = open_whole(model)
    given = {spec.name for spec in inputs}
    states = {value.name: initial_state(value) for value in session.get_inputs() if value.name not in given}

    def run(values: Arrays) -> dict[str, NDArray[np.generic]]:
        with explaining(f"ONNX Runtime cannot run {path}"):
            feed = {spec.name: np.require(values[spec.name], requirements="C") for spec in inputs}
            answers = session.run([*outputs.values()], feed | states)
        return {name: np.asarray(answer) for name, answer in zip(outputs, answers, strict=True)}

    return run
