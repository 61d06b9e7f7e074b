"""Models for OpenVINO and ONNX Runtime together: one task graph, with segments in the formats of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from placeit.backends.base import Arrays, Format, Model, fields_of
from placeit.backends.onnx.parts import OnnxParts
from placeit.backends.onnx.sessions import ort_reference
from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.cluster import Cluster, Device
from placeit.core.telemetry import import_openvino

__all__ = ["JoinedModel", "join", "relu_chain"]

openvino = import_openvino()


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class JoinedModel(OpenVinoModel):
    """A model for OpenVINO and ONNX Runtime: one task graph, with segments for both.

    Attributes:
        parts: cuts segments out of the ONNX model.
    """

    parts: OnnxParts

    @property
    def identity(self) -> str:
        """Digest of the graph and of the ONNX model, since different ONNX nodes may become equal by conversion."""
        return f"{self.graph.hash} {self.parts.content}"

    @property
    def channels_last(self) -> frozenset[int]:
        """No tensors, since both runtimes exchange tensors in ONNX's layout."""
        return frozenset()

    @property
    def formats(self) -> frozenset[Format]:
        """The formats of both runtimes."""
        return frozenset({"openvino", "onnx"})

    def segment(self, form: Format, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> Any:
        """Cut a part out; see :meth:`placeit.backends.base.Model.segment`."""
        return self.parts.cut(ops, enter, leave) if form == "onnx" else super().segment(form, ops, enter, leave)

    def function(self, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> str | None:  # noqa: ARG002
        """Return None, since parts that are equal for OpenVINO may differ as ONNX models."""
        return None

    def reference(self, device: Device | None, precision: str) -> Callable[[Arrays], dict[str, NDArray[np.generic]]]:  # noqa: ARG002
        """Return a function that runs the whole ONNX model in ONNX Runtime. Raises DeviceError."""
        whole = self.parts.cut(range(len(self.graph)), (), ())
        results = {spec.op: spec for spec in self.outputs}
        names = [results[name].name for name in self.graph.names if name in results]  # states follow them
        outputs = {name: value.name for name, value in zip(names, whole.graph.output, strict=False)}
        return ort_reference(whole, self.inputs, outputs, self.path)

    def prepared(self, cluster: Cluster, graph: str = "") -> Model:  # noqa: ARG002
        """Return the model itself."""
        return self

    def onnx_kinds(self) -> Iterator[tuple[list[str], onnx.ModelProto]]:
        """Yield the ops that can be cut out as ONNX; see :meth:`placeit.backends.base.OnnxKinds.onnx_kinds`."""
        return self.parts.kinds()

    def chain(self, elements: int, hops: int) -> OpenVinoModel:
        """Return a chain of ``hops`` ReLUs over ``float32[1, elements]``, for both runtimes."""
        return relu_chain(elements, hops)


J = TypeVar("J", bound=JoinedModel)


def join(kind: type[J], model: OpenVinoModel, proto: onnx.ModelProto) -> J:
    """Return a model for both runtimes.

    Args:
        kind: class of the model.
        model: the model as OpenVINO has read it.
        proto: the ONNX model from which it was read; it is changed.
    """
    parts = OnnxParts(
        proto, model.graph, model.outputs, model.bounded, _tensor_names(model), limits=model.limits, states=_states(model)
    )
    return kind(**fields_of(model) | {"together": (*model.together, *parts.together()), "parts": parts})


def relu_chain(elements: int, hops: int) -> JoinedModel:
    """Return a chain of ``hops`` ReLUs over ``float32[1, elements]``, for OpenVINO and ONNX Runtime."""
    ops = openvino.opset13
    parameter = ops.parameter([1, elements], openvino.Type.f32, name="0")
    value = parameter.output(0)
    value.get_tensor().set_names({"0"})
    for hop in range(hops):
        value = ops.relu(value).output(0)
        value.get_tensor().set_names({str(hop + 1)})
    model = describe(openvino.Model([ops.result(value)], [parameter], "chain"), Path("chain"))
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, elements]) for name in ("0", str(hops))]
    nodes = [helper.make_node("Relu", [str(hop)], [str(hop + 1)]) for hop in range(hops)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    joined = join(JoinedModel, model, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    return replace(joined, uniform=True)


def _states(model: OpenVinoModel) -> dict[str, tuple[str, list[int | None]]]:
    """Return the output with the next value of each state, and the state's sizes, as :class:`OnnxParts` takes them."""
    reads = {node.get_friendly_name(): node for node in model.ov_model.get_ops() if node.get_type_name() == "ReadValue"}
    return {
        name: (following, [size.get_length() if size.is_static else None for size in reads[name].get_output_partial_shape(0)])
        for name, following in model.caches.items()
    }


def _tensor_names(model: OpenVinoModel) -> Iterator[tuple[int, set[str]]]:
    """Yield each tensor of the task graph with its names, which include its names in the ONNX model."""
    nodes = {node.get_friendly_name(): node for node in model.ov_model.get_ops()}
    for tensor, holders in enumerate(model.view.holders):
        yield tensor, {name for node, port in holders for name in nodes[node].output(port).get_names()}
