"""Cut a part out of an OpenVINO model as a separate model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from placeit.backends.openvino.view import View, end_nodes, foreign_inputs, nodes_between
from placeit.core.errors import DeviceError
from placeit.core.graph import OpGraph
from placeit.core.telemetry import import_openvino

__all__ = ["RUNTIME_OPTIONS", "channels_last_tensors", "extract", "name_new_nodes"]

openvino = import_openvino()

_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
_IMAGE_SOURCES = {"Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"}
_ELEMENT_WISE = {
    *("Add", "Clamp", "Divide", "Elu", "Gelu", "HSigmoid", "HSwish", "Mish", "Multiply", "PRelu", "Relu", "Sigmoid"),
    *("Subtract", "Swish", "Tanh"),
}
_KEEPS_IMAGE = _ELEMENT_WISE | {
    *("AvgPool", "BatchNormInference", "Concat", "FakeQuantize", "Interpolate", "LRN", "MaxPool", "Pad"),
}


def channels_last_tensors(graph: OpGraph) -> frozenset[int]:
    """Return the tensors that should cross a segment's border in channels-last layout.

    Inside a segment, the CPU plugin keeps images channels-last. Tensors at a border are channels-first by default, so each cut
    would need a layout conversion on both sides. An image is the output of a convolution, or of element-wise ops, pooling and
    concatenation on images.

    Sums of several images, and images that only such sums read, stay channels-first. The plugin fuses a sum into the
    convolution before it, and would convert the result to channels-last by its slow reference code (7 ms where a channels-first
    border takes 1 ms, for 256 channels of 56 x 56 in OpenVINO 2026.4).
    """
    is_image, is_sum = [False] * len(graph), [False] * len(graph)
    for v, kind in enumerate(graph.kinds):
        producers = [u for u, _ in _reads(graph, v)]
        is_image[v] = kind in _IMAGE_SOURCES or (kind in _KEEPS_IMAGE and any(is_image[u] for u in producers))
        is_sum[v] = kind in _ELEMENT_WISE and (len(producers) > 1 or any(is_sum[u] for u in producers))
    read_by_others = {int(t) for (_, v), t in zip(graph.edges, graph.edge_tensor, strict=True) if not is_sum[v]}
    return frozenset(
        t
        for t, op in enumerate(graph.tensor_op.tolist())
        if is_image[op] and not is_sum[op] and t in read_by_others and len(graph.tensor_shapes[t]) == 4
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
    """Return some ops of a model as a separate model, whose weights are in the memory of the whole model's weights.

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
        DeviceError: the model has no such tensor, or the part reads other tensors as well. Both occur only if ops are
            separated that are in one set of :func:`placeit.backends.openvino.view.inseparable`.
    """
    copy = model.clone()
    nodes: dict[str, Any] = {node.get_friendly_name(): node for node in copy.get_ops()}
    for tensor in (*inputs, *outputs):
        if not view.holders[tensor]:
            raise _inseparable(graph, int(graph.tensor_op[tensor]))
    own = [nodes[name] for name in map(end_nodes(view, nodes).get, (graph.names[v] for v in ops)) if name is not None]
    last = [*own, *(nodes[view.holders[tensor][0][0]] for tensor in outputs)]
    part = nodes_between([holder for tensor in inputs for holder in view.holders[tensor]], last)
    if foreign_inputs(part, nodes, {node.get_friendly_name() for node in own}):
        raise _inseparable(graph, ops[0])

    def output_of(tensor: int) -> Any:
        name, port = view.holders[tensor][0]
        return nodes[name].output(port)

    def readers(tensor: int) -> list[Any]:
        holding = (nodes[name].output(port) for name, port in view.holders[tensor])
        return [i for value in holding for i in value.get_target_inputs() if i.get_node().get_friendly_name() in part]

    parameters: list[Any] = []
    converted: dict[int, Any] = {}  # values of tensors in channels-last layout
    for tensor in inputs:
        shape, dtype = output_of(tensor).get_partial_shape(), output_of(tensor).get_element_type()
        if tensor in channels_last:
            shape = openvino.PartialShape([shape[i] for i in _TO_LAST])
        parameter = openvino.opset13.parameter(shape, dtype, name=f"enters {tensor}")
        parameters.append(parameter)
        if tensor in channels_last:
            converted[tensor] = parameter.output(0)
        else:
            for reader in readers(tensor):
                reader.replace_source_output(parameter.output(0))
    leaving = {tensor: output_of(tensor) for tensor in outputs}
    for v in ops:
        concatenated = _concat_last(graph, view, v, outputs, channels_last, converted, output_of)
        if concatenated is not None:
            tensor, converted[tensor] = concatenated
    for tensor, value in converted.items():
        # one Transpose per consumer: the plugin folds a Transpose away only if it has no other reader
        for reader in readers(tensor):
            reader.replace_source_output(_transpose(value, _TO_FIRST))
    results = []
    for tensor, value in leaving.items():
        if tensor in converted:
            value = converted[tensor]
        elif tensor in channels_last:
            value = _transpose(value, _TO_LAST)
        results.append(openvino.opset13.result(value, name=f"leaves {tensor}"))
    sinks: list[Any] = []
    for node in own:
        {"Parameter": parameters, "Result": results, "Assign": sinks}[node.get_type_name()].append(node)
    segment = openvino.Model(results, sinks, parameters, "segment")
    segment.validate_nodes_and_infer_types()  # a size that follows from a value is open where the value comes from outside
    if model.has_rt_info(RUNTIME_OPTIONS):
        segment.set_rt_info(model.get_rt_info(RUNTIME_OPTIONS).value, RUNTIME_OPTIONS)
    name_new_nodes(segment, nodes, "border")
    return segment


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
    converted: Mapping[int, Any],
    output_of: Callable[[int], Any],
) -> tuple[int, Any] | None:
    """Return the tensor of a concatenation of channels at a border, and its value computed in channels-last layout.

    So it needs no layout conversion. None if the op is no such concatenation.
    """
    if graph.kinds[op] != "Concat":
        return None
    tensor = next((t for t in channels_last if graph.tensor_op[t] == op and view.holders[t]), None)
    if tensor is None:
        return None
    node = output_of(tensor).get_node()
    if node.get_type_name() != "Concat" or node.get_axis() % 4 != 1:
        return None
    number = {holder: t for _, t in _reads(graph, op) for holder in view.holders[t]}
    read = [number.get((value.get_node().get_friendly_name(), value.get_index())) for value in node.input_values()]
    if None in read or not (tensor in outputs or any(t in converted for t in read)):
        return None
    values = [converted[t] if t in converted else _transpose(output_of(t), _TO_LAST) for t in read if t is not None]
    return tensor, openvino.opset13.concat(values, 3).output(0)


def _reads(graph: OpGraph, op: int) -> list[tuple[int, int]]:
    """Return the producer and the number of each tensor that an op reads."""
    return [(int(graph.edges[e, 0]), int(graph.edge_tensor[e])) for e in graph.predecessors.row(op)]


def _transpose(value: Any, order: tuple[int, ...]) -> Any:
    ops = openvino.opset13
    return ops.transpose(value, ops.constant(list(order), openvino.Type.i64)).output(0)
