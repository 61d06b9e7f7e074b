"""Whole ONNX files in ONNX Runtime, as a program without placeit opens them: references for outputs, and plain devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, Format, Model, TensorSpec
from placeit.backends.onnx.external import session_source
from placeit.backends.onnx.file import output_names
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError
from placeit.devices.onnxruntime import explaining, onnxruntime

if TYPE_CHECKING:
    import onnx

__all__ = ["OnnxFile", "WholeOnnxModel", "open_whole", "ort_reference"]


@dataclass(frozen=True)
class OnnxFile:
    """A whole ONNX model for ONNX Runtime to open, which then says in which order it wants inputs.

    Attributes:
        model: path of the file.
        inputs: names of inputs, in the order of a segment's.
        outputs: names of outputs, in the order of a segment's.
    """

    model: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class WholeOnnxModel(Model):
    """A model that OpenVINO has read from an ONNX file, for ONNX Runtime to run whole, from the same file.

    Attributes:
        of: as OpenVINO has read it.
        names: names of its outputs in the file, by those that ``of`` has for them.
    """

    of: Model
    names: Mapping[str, str]

    @classmethod
    def of_file(cls, model: Model, called: Sequence[Collection[str]]) -> Self:
        """Take the file of a model that OpenVINO has read from it.

        Args:
            model: as OpenVINO has read it.
            called: what OpenVINO calls each output: it may have several names, of which one is that in the file.
        """
        own = output_names(model.path)
        names: dict[str, str] = {}
        for place, (spec, known) in enumerate(zip(model.outputs, called, strict=True)):
            found = [name for name in own if name in known or name == spec.name]
            names[spec.name] = found[0] if found else own[place] if place < len(own) else spec.name
        said = {field.name: getattr(model, field.name) for field in fields(Model)}
        return cls(**said, of=model, names=names)

    @property
    def formats(self) -> frozenset[Format]:
        """ONNX only."""
        return frozenset({"onnx"})

    def statistics(self) -> dict[str, int | float]:
        """Count what the model is made of, as OpenVINO has read it."""
        return self.of.statistics()

    def random_inputs(self, seed: int = 0) -> dict[str, NDArray[np.generic]]:
        """Draw inputs that are valid for the model, by input name."""
        return self.of.random_inputs(seed)

    def segment(self, form: Format, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> OnnxFile:  # noqa: ARG002
        """Return the file. Raises DeviceError if only a part of the model is wanted."""
        if len(ops) < len(self.graph):
            raise DeviceError(f"Only the whole of {self.path} can be run here, and not a part of it.")
        inputs = {spec.op: spec.name for spec in self.inputs}
        outputs = {spec.op: self.names[spec.name] for spec in self.outputs}
        names = [self.graph.names[v] for v in ops]
        return OnnxFile(
            str(self.path),
            tuple(inputs[name] for name in names if name in inputs),
            tuple(outputs[name] for name in names if name in outputs),
        )

    def prepared(self, cluster: Cluster, graph: str = "") -> Model:  # noqa: ARG002
        """Itself."""
        return self

    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:  # noqa: ARG002
        """Open the file in ONNX Runtime. Raises DeviceError."""
        outputs = [self.names[spec.name] for spec in self.outputs]
        return ort_reference(str(self.path), self.inputs, outputs, self.path, self.outputs)

    def chain(self, elements: int, hops: int) -> Model:
        """Build a chain of ``hops`` ReLUs over ``float32[1, elements]``."""
        from placeit.backends.onnx.segments import relu_chain

        return relu_chain(elements, hops)


def open_whole(model: str | onnx.ModelProto, *, optimize: bool = True) -> Any:
    """Open a whole model on the CPU, with threads that rest when it does not run. Raises what ONNX Runtime does.

    Args:
        model: path of the file, or the model itself.
        optimize: whether nodes may be fused and replaced; constants are folded in any case.
    """
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # errors are raised; warnings about the parts of a model tell a user nothing
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if not optimize:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return runtime.InferenceSession(
        session_source(model, options), options, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def ort_reference(
    model: str | onnx.ModelProto,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    path: Path,
    called: Sequence[TensorSpec] | None = None,
) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:
    """Prepare a whole model in ONNX Runtime, as the reference for outputs.

    Args:
        model: path of the file, or the model itself.
        inputs: of the model.
        outputs: names of its outputs in the file.
        path: for messages.
        called: the outputs under the names by which callers know them; None if those are the same.

    Raises:
        DeviceError: ONNX Runtime does not open it.
    """
    with explaining(f"ONNX Runtime cannot open {path}"):
        session = open_whole(model)

    names = list(outputs) if called is None else [spec.name for spec in called]

    def run(values: Arrays) -> dict[str, NDArray[np.generic]]:
        with explaining(f"ONNX Runtime cannot run {path}"):
            answers = session.run(list(outputs), {spec.name: np.ascontiguousarray(values[spec.name]) for spec in inputs})
        return {name: np.asarray(answer) for name, answer in zip(names, answers, strict=True)}

    return run
