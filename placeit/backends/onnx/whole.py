"""Whole ONNX files in ONNX Runtime, as programs without placeit open them: references for outputs and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, Format, Model, Sample
from placeit.backends.onnx.sessions import ort_reference
from placeit.backends.onnx_external import OnnxFile
from placeit.backends.onnx_file import ROUNDING_OPS, find_ops, output_names
from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.devices.onnxruntime import has_onnxruntime

__all__ = ["FromOnnxFile", "WholeOnnxModel"]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FromOnnxFile(OpenVinoModel):
    """A model that OpenVINO has read from an ONNX file, which ONNX Runtime can read as well."""

    def whole_file(self, form: Format) -> Model:
        """Return the model that ONNX Runtime reads from the file if ``form`` is its format, else the model itself.

        The model itself is also returned if it has state, since its file has other inputs, or if an output is an input, since
        ONNX Runtime (1.31) does not write such an output into memory of the caller.
        """
        passed_on = {spec.name for spec in self.inputs} & {spec.name for spec in self.outputs}
        return self if form != "onnx" or self.states or passed_on else self.of_file()

    def of_file(self) -> WholeOnnxModel:
        """Return the model that ONNX Runtime reads from the file."""
        in_file, names = output_names(self.path), dict[str, str]()
        for i, (spec, port) in enumerate(zip(self.outputs, self.ov_model.outputs, strict=True)):
            found = [name for name in in_file if name in port.get_names() or name == spec.name]
            names[spec.name] = (found or in_file[i : i + 1] or [spec.name])[0]
        return WholeOnnxModel(**{field.name: getattr(self, field.name) for field in fields(Model)}, of=self, names=names)

    @cached_property
    def rounds(self) -> bool:
        """True if the file has operators on quantised numbers, which dynamic quantisation writes."""
        return bool(find_ops(self.path, ROUNDING_OPS))

    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:
        """Return a function that runs the whole model in OpenVINO, or in ONNX Runtime if the model :attr:`rounds`.

        Raises:
            DeviceError: neither runtime can run it.
        """
        if self.rounds and has_onnxruntime() and not self.states:
            return self.of_file().reference(device, precision)
        return super().reference(device, precision)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WholeOnnxModel(Model):
    """A model that OpenVINO has read from an ONNX file, and that ONNX Runtime runs whole from this file.

    Attributes:
        of: the model as OpenVINO has read it.
        names: names of its outputs in the file, by their names in ``of``.
    """

    of: Model
    names: Mapping[str, str]

    @property
    def formats(self) -> frozenset[Format]:
        """The format of ONNX only."""
        return frozenset({"onnx"})

    def statistics(self) -> dict[str, int | float]:
        """Count ops, edges and parameters of the model as OpenVINO has read it."""
        return self.of.statistics()

    def random_inputs(self, seed: int = 0) -> dict[str, NDArray[np.generic]]:
        """Draw inputs that are valid for the model, by input name."""
        return self.of.random_inputs(seed)

    def inputs_at(self, shapes: Mapping[str, Sequence[int]], seed: int = 0) -> dict[str, NDArray[np.generic]]:
        """Draw inputs of given shapes; see :meth:`placeit.backends.base.Model.inputs_at`."""
        return self.of.inputs_at(shapes, seed)

    def contradiction(self, shapes: Sequence[Sequence[int]]) -> str | None:
        """Return why shapes of the inputs contradict each other; see :meth:`placeit.backends.base.Model.contradiction`."""
        return self.of.contradiction(shapes)

    def sample_requests(self, seed: int = 0) -> Sequence[Sample]:
        """Return the requests for measurements of the model as OpenVINO has read it."""
        return self.of.sample_requests(seed) if self.given is None else super().sample_requests(seed)

    def segment(self, form: Format, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> OnnxFile:  # noqa: ARG002
        """Return the file. Raises DeviceError if ``ops`` are only a part of the model."""
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

    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:  # noqa: ARG002
        """Return a function that runs the file in ONNX Runtime. Raises DeviceError."""
        return ort_reference(str(self.path), self.inputs, self.names, self.path)

    def chain(self, elements: int, hops: int) -> Model:
        """Return a chain of ``hops`` ReLUs over ``float32[1, elements]``."""
        from placeit.backends.onnx.joined import relu_chain

        return relu_chain(elements, hops)
