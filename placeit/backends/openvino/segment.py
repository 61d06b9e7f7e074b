"""Cut a part out of an OpenVINO model as a separate model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from placeit.backends.openvino.view import View, ends, foreign, part_behind
from placeit.core.errors import DeviceError
from placeit.core.graph import OpGraph
from placeit.core.telemetry import import_openvino

__all__ = ["RUNTIME_OPTIONS", "channels_last_tensors", "extract", "name_new_nodes"]

_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
_IMAGE_SOURCES = {"Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"}
_ELEMENT_WISE = {
    "Add",
    "Clamp",
    "Divide",
    "Elu",
    "Gelu",
    "HSigmoid",
    "HSwish",
    "Mish",
    "Multiply",
    "PRelu",
    "Relu",
    "Sigmoid",
    "Subtract",
    "Swish",
    "Tanh",
}
_IMAGE_KEEPERS = _ELEMENT_WISE | {
    "AvgPool",
    "BatchNormInference",
    "Concat",
    "FakeQuantize",
    "Interpolate",
    "LRN",
    "MaxPool",
    "Pad",
}


def channels_last_tensors(graph: OpGraph) -> frozenset[int]:
    """Return the tensors that should cross a segment's border in channels-last layout.

    Inside, the CPU plugin keeps images channels-last, while plain tensors at a border are channels-first, so that each cut
    would need a layout conversion on both sides. An image is the output of a convolution, or of element-wise ops, pooling and
    concatenation on images.

    Sums of several images, and images that only such sums read, stay plain: the plugin fuses a sum into the convolution before
    it, and would then convert the result to channels-last by its slow reference code (7 ms where a plain border takes 1 ms, for
    256 channels of 56 x 56 in OpenVINO 2026.4).
    """
    image, of_several = [False] * len(graph), [False] * len(graph)
    for v, kind in enumerate(graph.kinds):
        makers = [u for u, _ in _reads(graph, v)]
        image[v] = kind in _IMAGE_SOURCES or (kind in _IMAGE_KEEPERS and any(image[u] for u in makers))
        if kind in _ELEMENT_WISE:
            of_several[v] = len(makers) > 1 or any(of_several[u] for u in makers)
    elsewhere = {int(t) for (_, v), t in zip(graph.edges, graph.edge_tensor, strict=True) if not of_several[v]}
    return frozenset(
        t
        for t, op in enumerate(graph.tensor_op.tolist())
        if image[op] and not of_several[op] and t in elsewhere and len(graph.tensor_shapes[t]) == 4
    )


RUNTIME_OPTIONS = ["runtime_options"]
"""Where a model asks plugins for properties, such as ``KV_CACHE_PRECISION``."""


def extract(
    model: Any,
    view: View,
    graph: OpGraph,
    ops: Sequence[int],
    inputs: Sequence[int],
    outputs: Sequence[int],
    channels_last: frozenset[int] = frozenset(),
) -> Any:
    """Return ``ops`` of a model as a separate model. Its weights are in the memory of the whole model's weights.

    Args:
        model: the whole model; it is not changed.
        view: nodes of the model for the ops and tensors of the task graph.
        graph: its task graph.
        ops: op numbers of the part.
        inputs: tensors that the part reads from outside, in the order of the new model's first parameters; the model's own
            parameters among ``ops`` follow, in op order.
        outputs: tensors that leave the part, in the order of the new model's first results; the model's own results among
            ``ops`` follow, in op order.
        channels_last: rank-4 tensors that cross the border as ``[N, H, W, C]``.

    Raises:
        DeviceError: the model has no such tensor, or the part reads something else as well. Both occur only if ops are
            separated that :func:`placeit.backends.openvino.view.inseparable` names together.
    """
    ov = import_openvino()
    copy = model.clone()
    nodes: dict[str, Any] = {node.get_friendly_name(): node for node in copy.get_ops()}
    for tensor in (*inputs, *outputs):
        if not view.holders[tensor]:
            raise _inseparable(graph, int(graph.tensor_op[tensor]))
    own = [nodes[name] for name in map(ends(view, nodes).get, (graph.names[v] for v in ops)) if name is not None]
    last_ones = [*own, *(nodes[view.holders[tensor][0][0]] for tensor in outputs)]
    given = [holder for tensor in inputs for holder in view.holders[tensor]]
    part = part_behind(last_ones, given)
    if foreign(part, nodes, {node.get_friendly_name() for node in own}):
        raise _inseparable(graph, ops[0])

    def output_of(tensor: int) -> Any:
        name, port = view.holders[tensor][0]
        return nodes[name].output(port)

    def readers(tensor: int) -> list[Any]:
        holding = (nodes[name].output(port) for name, port in view.holders[tensor])
        return [i for value in holding for i in value.get_target_inputs() if i.get_node().get_friendly_name() in part]

    parameters: list[Any] = []
    last: dict[int, Any] = {}
    for tensor in inputs:
        shape, dtype = output_of(tensor).get_partial_shape(), output_of(tensor).get_element_type()
        if tensor in channels_last:
            shape = ov.PartialShape([shape[i] for i in _TO_LAST])
            parameter = ov.opset13.parameter(shape, dtype, name=f"enters {tensor}")
            last[tensor] = parameter.output(0)
        else:
            parameter = ov.opset13.parameter(shape, dtype, name=f"enters {tensor}")
            for reader in readers(tensor):
                reader.replace_source_output(parameter.output(0))
        parameters.append(parameter)
    leaving = {tensor: output_of(tensor) for tensor in outputs}
    for v in ops:
        rewritten = _concat_last(graph, view, v, outputs, channels_last, last, output_of)
        if rewritten is not None:
            tensor, last[tensor] = rewritten
    for tensor, value in last.items():
        # one Transpose per consumer: the plugin folds a Transpose away only if it has no other reader
        for reader in readers(tensor):
            reader.replace_source_output(_transpose(value, _TO_FIRST))
    results = []
    for tensor, value in leaving.items():
        if tensor in last:
            value = last[tensor]
        elif tensor in channels_last:
            value = _transpose(value, _TO_LAST)
        results.append(ov.opset13.result(value, name=f"leaves {tensor}"))
    own_of_kind: dict[str, list[Any]] = {"Parameter": parameters, "Result": results, "Assign": []}
    for node in own:
        own_of_kind[node.get_type_name()].append(node)
    made = ov.Model(results, own_of_kind["Assign"], parameters, "segment")
    made.validate_nodes_and_infer_types()  # a size that follows from a value is open where the value comes from outside
    if model.has_rt_info(RUNTIME_OPTIONS):
        made.set_rt_info(model.get_rt_info(RUNTIME_OPTIONS).value, RUNTIME_OPTIONS)
    name_new_nodes(made, nodes, "border")
    return made


def name_new_nodes(model: Any, known: Collection[str], kind: str) -> None:
    """Name the nodes of a model whose names are not known by their places, after the kind of node.

    Names that OpenVINO invents differ each time, and compiled models on disk are found by names as well.
    """
    for i, node in enumerate(model.get_ordered_ops()):
        if node.get_friendly_name() not in known and node.get_type_name() not in ("Parameter", "Result"):
            node.set_friendly_name(f"{kind} {i}")


def _inseparable(graph: OpGraph, op: int) -> DeviceError:
    return DeviceError(
        f"The model cannot be cut beside op '{graph.names[op]}': it has no tensor there. Group it with "
        "keep_together=model.together."
    )


def _concat_last(
    graph: OpGraph,
    view: View,
    op: int,
    outputs: Sequence[int],
    channels_last: frozenset[int],
    last: Mapping[int, Any],
    output_of: Callable[[int], Any],
) -> tuple[int, Any] | None:
    """Write a concatenation of channels at a border along the last axis, so that it needs no layout conversion."""
    ov = import_openvino()
    if graph.kinds[op] != "Concat":
        return None
    made = [t for t, maker in enumerate(graph.tensor_op.tolist()) if maker == op and t in channels_last and view.holders[t]]
    if not made:
        return None
    node = output_of(made[0]).get_node()
    if node.get_type_name() != "Concat" or node.get_axis() % 4 != 1:
        return None
    number = {holder: t for _, t in _reads(graph, op) for holder in view.holders[t]}
    read = [number.get((value.get_node().get_friendly_name(), value.get_index())) for value in node.input_values()]
    if None in read or not (made[0] in outputs or any(t in last for t in read)):
        return None
    values = [last[t] if t in last else _transpose(output_of(t), _TO_LAST) for t in read if t is not None]
    return made[0], ov.opset13.concat(values, 3).output(0)


def _reads(graph: OpGraph, op: int) -> list[tuple[int, int]]:
    edges = graph.predecessors.edge[graph.predecessors.ptr[op] : graph.predecessors.ptr[op + 1]]
    return [(int(graph.edges[e, 0]), int(graph.edge_tensor[e])) for e in edges]


def _transpose(value: Any, order: tuple[int, ...]) -> Any:
    ov = import_openvino()
    return ov.opset13.transpose(value, ov.opset13.constant(list(order), ov.Type.i64)).output(0)
