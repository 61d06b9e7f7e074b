"""Whole ONNX models in ONNX Runtime, opened as by a program without placeit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, TensorSpec
from placeit.backends.onnx_external import session_source
from placeit.devices.onnxruntime import explaining, onnxruntime

if TYPE_CHECKING:
    import onnx

__all__ = ["initial_state", "open_whole", "ort_reference"]

_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64"}  # NumPy's names of types that ONNX Runtime calls otherwise


def open_whole(model: str | bytes | onnx.ModelProto, *, optimize: bool = True) -> Any:
    """Open a whole model on the CPU, with threads that sleep between runs. Raises ONNX Runtime's errors.

    Args:
        model: path of the file, its content, or the model itself.
        optimize: whether nodes may be fused and replaced; constants are folded in any case.
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
    """Return zeros for an input of a session that is a state: none along its last open dimension, one row along others.

    An attention may refuse states without rows (``GroupQueryAttention``).
    """
    sizes = [size if isinstance(size, int) else 1 for size in value.shape]
    growing = [axis for axis, size in enumerate(value.shape) if not isinstance(size, int)]
    for axis in growing[-1:]:
        sizes[axis] = 0
    return np.zeros(sizes, _TYPES.get(value.type) or value.type[len("tensor(") : -1])


def ort_reference(
    model: str | onnx.ModelProto,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    path: Path,
    called: Sequence[TensorSpec] | None = None,
) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:
    """Return a function that runs a whole model in ONNX Runtime, as the reference for outputs.

    Args:
        model: path of the file, or the model itself.
        inputs: inputs of the model; other inputs are states, which are initial in each run.
        outputs: names of its outputs in the file.
        path: path for messages.
        called: names of the outputs for callers; None if they are the names in the file.

    Raises:
        DeviceError: ONNX Runtime does not open the model.
    """
    with explaining(f"ONNX Runtime cannot open {path}"):
        session = open_whole(model)

    names, given = list(outputs) if called is None else [spec.name for spec in called], {spec.name for spec in inputs}
    states = {value.name: initial_state(value) for value in session.get_inputs() if value.name not in given}

    def run(values: Arrays) -> dict[str, NDArray[np.generic]]:
        with explaining(f"ONNX Runtime cannot run {path}"):
            answers = session.run(
                list(outputs), {spec.name: np.require(values[spec.name], requirements="C") for spec in inputs} | states
            )
        return {name: np.asarray(answer) for name, answer in zip(names, answers, strict=True)}

    return run
