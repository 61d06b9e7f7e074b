"""ONNX files for ONNX Runtime alone: models whose task graph has an op for each node of the file."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from placeit.backends.base import Arrays, Format, Model, TensorSpec
from placeit.backends.onnx.joined import relu_chain
from placeit.backends.onnx.parts import OnnxParts, reads
from placeit.backends.onnx.sessions import ort_reference
from placeit.backends.onnx.tensors import WEIGHTS, sizes_of, tensor_bytes
from placeit.backends.values import ValueRange, common, draw, draw_any
from placeit.core.cluster import Device

__all__ = ["OnnxFileModel", "draw_input"]

_INDICES = {
    ("Gather", 1): None,
    ("GatherElements", 1): None,
    ("ArrayFeatureExtractor", 1): -1,
    ("EmbedLayerNormalization", 0): 0,
}
"""Inputs of nodes that hold positions along an axis of the node's data, with this axis; None for the attribute ``axis``."""
_KEEPS_VALUES = frozenset(("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class OnnxFileModel(Model):
    """An ONNX file whose task graph has an op for each node of the file.

    It is for models that OpenVINO cannot read, and for cuts where OpenVINO's graph has no tensor.

    Attributes:
        proto: the model, with static inputs if ONNX Runtime opens it with them.
        parts: cuts segments out of it.
        why: why OpenVINO cannot run it, as a sentence; empty if it may be able to.
        cases: values of inputs that the model compares with integers, such as a sampling rate, by input name. The model would
            not accept random values.
    """

    proto: onnx.ModelProto
    parts: OnnxParts
    why: str = ""
    cases: Mapping[str, int] = field(default_factory=dict)

    @property
    def formats(self) -> frozenset[Format]:
        """The format of ONNX only."""
        return frozenset({"onnx"})

    def statistics(self) -> dict[str, int | float]:
        """Count ops, edges and parameters; ``layers`` are nodes and initializers. See :meth:`Model.statistics`."""
        graph = self.proto.graph
        weights = [tensor for tensor in graph.initializer if tensor.data_type in WEIGHTS]
        return {
            "ops": len(self.graph),
            "edges": len(self.graph.edges),
            "layers": len(graph.node) + len(graph.initializer) + len(self.inputs) + len(self.outputs),
            "layer_edges": sum(len(reads(node)) for node in graph.node) + len(self.outputs),
            "flops": float(self.graph.flops.sum()),
            "parameters": sum(math.prod(tensor.dims) for tensor in weights),
            "parameter_bytes": sum(map(tensor_bytes, graph.initializer)),
        }

    def random_inputs(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Draw inputs: positions along an axis that the model reads from, ``cases``, or any values."""
        rng = np.random.default_rng(seed)
        allowed = self._allowed
        return {
            spec.name: draw(rng, allowed[spec.name], spec.shape, spec.dtype)
            if spec.name in allowed
            else draw_input(rng, spec, self.cases)
            for spec in self.inputs
        }

    @cached_property
    def _allowed(self) -> dict[str, ValueRange]:
        """Ranges of positions that inputs may hold, by input name."""
        shapes = {value.name: sizes_of(value) for value in self.proto.graph.input}
        shapes |= {tensor.name: tuple(tensor.dims) for tensor in self.proto.graph.initializer}
        source = {spec.name: spec.name for spec in self.inputs}
        found: dict[str, list[ValueRange]] = {}
        for node in self.proto.graph.node:
            for port, name in enumerate(node.input):
                axis = _INDICES.get((node.op_type, port), -2)
                if name not in source or axis == -2 or np.dtype(self.settable[source[name]].dtype).kind not in "iu":
                    continue
                table = shapes.get(node.input[2] if node.op_type == "EmbedLayerNormalization" else node.input[0])
                axis = next((int(one.i) for one in node.attribute if one.name == "axis"), 0) if axis is None else axis
                if table and -len(table) <= axis < len(table) and table[axis] is not None:
                    found.setdefault(source[name], []).append(ValueRange(0, max(1, table[axis] or 1)))
            if node.op_type in _KEEPS_VALUES and node.input[0] in source:
                source[node.output[0]] = source[node.input[0]]
        return {name: allowed for name, ranges in found.items() if (allowed := common(ranges)) is not None}

    def segment(self, form: Format, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> Any:  # noqa: ARG002
        """Cut a part out; see :meth:`placeit.backends.base.Model.segment`."""
        return self.parts.cut(ops, enter, leave)

    def onnx_kinds(self) -> Iterator[tuple[Collection[str], onnx.ModelProto]]:
        """Yield the ops that can be cut out; see :meth:`placeit.backends.base.OnnxKinds.onnx_kinds`."""
        return self.parts.kinds()

    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:  # noqa: ARG002
        """Return a function that runs the whole model in ONNX Runtime. Raises DeviceError."""
        return ort_reference(self.proto, self.inputs, {spec.name: spec.name for spec in self.outputs}, self.path)

    def chain(self, elements: int, hops: int) -> Model:
        """Return a chain of ``hops`` ReLUs over ``float32[1, elements]``."""
        return relu_chain(elements, hops)


def draw_input(rng: np.random.Generator, spec: TensorSpec, cases: Mapping[str, int]) -> NDArray[Any]:
    """Draw any values for an input (:func:`placeit.backends.values.draw_any`), or fill an integer input with its case."""
    if spec.name in cases and np.dtype(spec.dtype).kind != "f":
        return np.full(spec.shape, cases[spec.name], spec.dtype)
    return draw_any(rng, spec.shape, spec.dtype)
