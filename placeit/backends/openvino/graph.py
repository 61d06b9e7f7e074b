"""Build the task graph of an OpenVINO model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from placeit.backends.digest import digest
from placeit.backends.openvino.digest import openvino_digest
from placeit.backends.openvino.flops import bodies, bounded_shape, node_flops
from placeit.backends.openvino.sized import Sized
from placeit.core.errors import ModelError
from placeit.core.graph import OpGraph
from placeit.core.telemetry import import_openvino

__all__ = [
    "ARRANGING",
    "KEEPS_WEIGHT",
    "build_graph",
    "constant_nodes",
    "copied",
    "dtype_name",
    "fix_shapes",
    "inseparable_ops",
    "is_named",
    "name_nodes",
    "nodes_of",
    "separate_transposed",
    "single_reader_ops",
    "swaps",
    "upper_bound_ops",
]

openvino = import_openvino()

_NEVER_CONSTANT = frozenset(
    ("Parameter", "Result", "ReadValue", "Assign", "RandomUniform", "Multinomial", "If", "Loop", "TensorIterator")
)
_HEAVY = frozenset(("Convolution", "GroupConvolution", "MatMul", "Parameter", "ReadValue", "ScaledDotProductAttention"))
_MAX_LIGHT_BYTES = 1 << 16  # most bytes of weights of an op that only scales or shifts
ARRANGING = frozenset(("Broadcast", "Concat", "Convert", "Gather", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
"""Kinds of ops between a state and the attention that reads it."""
KEEPS_WEIGHT = frozenset(("Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
"""Kinds of ops that only rearrange or convert their first input, such as a weight."""
_NO_TENSOR = frozenset(("Result", "Assign"))
_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "boolean": "bool"}
_GENERATED_NAME = re.compile(r"[A-Z][A-Za-z0-9]*_\d+")


def dtype_name(element_type: Any) -> str:
    """Return the NumPy spelling of an OpenVINO element type: ``float32`` for f32, ``int64`` for i64, ``uint4`` for u4."""
    short = str(element_type.get_type_name())
    if short in _DTYPES:
        return _DTYPES[short]
    return re.sub(r"^u(?=\d)", "uint", re.sub(r"^i(?=\d)", "int", short))


def is_named(node: Any) -> bool:
    """Return whether something has given a node a friendly name; otherwise, it has the number of a counter of the process."""
    return bool(node.get_friendly_name() != node.get_name())


def name_nodes(model: Any, keep: Callable[[Any], bool]) -> None:
    """Give every node a unique friendly name that is the same each time the model is loaded.

    A converter numbers the nodes that it generates with a counter of the whole process, as in ``MVN_10734``. Such names are
    replaced by names that are numbered within the model, in topological order. A node of the file may have the same name, as
    another process has written the file.

    Args:
        model: an ``openvino.Model``; its friendly names are changed.
        keep: returns whether the name of a node is part of the file, and stays though it looks generated.
    """
    nodes = model.get_ordered_ops()
    names: list[str] = [node.get_friendly_name() for node in nodes]
    generated = [bool(_GENERATED_NAME.fullmatch(name)) and not keep(node) for node, name in zip(nodes, names, strict=True)]
    reserved = {name for name, is_generated in zip(names, generated, strict=True) if not is_generated}
    used: set[str] = set()
    counts: Counter[str] = Counter()
    for node, name, is_generated in zip(nodes, names, generated, strict=True):
        if is_generated or name in used:
            stem = node.get_type_name() if is_generated else name
            while True:
                counts[stem] += 1
                name = f"{stem}_{counts[stem]}"
                if name not in reserved and name not in used:
                    break
            node.set_friendly_name(name)
        used.add(name)


def fix_shapes(model: Any) -> None:
    """Replace every ``ShapeOf`` of a known shape by a constant, so that everything computed from it is constant.

    The condition of an ``If`` is replaced as well if it depends only on sizes that are not open. In a segment without these
    sizes, the ``If`` could take either branch, and OpenVINO compiles no ``If`` whose branches differ in rank.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ShapeOf" and node.get_input_partial_shape(0).is_static:
            shape = list(node.get_input_shape(0))
            constant = openvino.op.Constant(node.get_output_element_type(0), openvino.Shape([len(shape)]), shape)
            constant.set_friendly_name(node.get_friendly_name())
            openvino.utils.replace_node(node, constant)
        elif node.get_type_name() == "If" and (condition := _known_condition(node.input_value(0))) is not None:
            node.input(0).replace_source_output(openvino.opset13.constant(condition).output(0))


def _known_condition(value: Any) -> bool | None:
    """Return the condition of an ``If`` if OpenVINO can infer it from shapes, else None."""
    ops = openvino.opset13
    size = ops.reshape(ops.convert(value, "i64"), ops.constant([1]), special_zero=False)
    inferred = ops.broadcast(ops.constant(0.0), size).get_output_partial_shape(0)  # the value is its number of elements
    return bool(inferred.to_shape()[0]) if inferred.is_static else None


def separate_transposed(model: Any) -> None:
    """Copy each square weight that some products read transposed and others as stored, for the former.

    OpenVINO's CPU plugin identifies the weights that it has reordered by address and shape, so it confuses a square weight with
    its transpose (2026.4). Products in models inside ops count as well.

    Args:
        model: an ``openvino.Model``; it is changed.
    """
    readers: dict[int, dict[bool, list[tuple[Any, Any, list[Any]]]]] = {}
    for node in nodes_of(model, "MatMul"):
        source, between = node.input_value(1).get_node(), list[Any]()
        while source.get_type_name() in KEEPS_WEIGHT:
            between.append(source)
            source = source.input_value(0).get_node()
        shape = node.get_input_partial_shape(1)
        if source.get_type_name() == "Constant" and len(shape) > 1 and shape[-1] == shape[-2] and shape[-1] != 1:
            transposes = sum(map(swaps, between)) + bool(node.get_attributes()["transpose_b"])
            by_order = readers.setdefault(source.data.ctypes.data, {False: [], True: []})
            by_order[transposes % 2 == 1].append((node, source, between))
    for by_order in readers.values():
        if by_order[False] and by_order[True]:
            _read_copy(by_order[True])


def swaps(node: Any) -> bool:
    """Return whether a node is a ``Transpose`` that changes, or may change, the order of dimensions."""
    if node.get_type_name() != "Transpose":
        return False
    order = node.input_value(1).get_node()
    if order.get_type_name() != "Constant":
        return True
    axes = [int(axis) for axis in order.get_vector()]
    return axes != sorted(axes) or not axes  # no axes: their order is reversed


def _read_copy(readers: Collection[tuple[Any, Any, list[Any]]]) -> None:
    """Make products read a copy of their weight, through copies of the nodes between weight and product.

    Args:
        readers: each product with its constant and the nodes between both; all constants are in the same memory.
    """
    tensor = copied(next(iter(readers))[1])
    create, copies = openvino.utils.node_factory.NodeFactory("opset13").create, dict[str, Any]()
    for product, constant, between in readers:
        name = constant.get_name()
        if name not in copies:
            copies[name] = openvino.op.Constant(tensor)
            copies[name].set_friendly_name(f"{constant.get_friendly_name()}/copy")
        value = copies[name].output(0)
        for node in reversed(between):
            copy = create(node.get_type_name(), [value, *node.input_values()[1:]], node.get_attributes())
            copy.set_friendly_name(f"{node.get_friendly_name()}/copy")
            value = copy.output(0)
        product.input(1).replace_source_output(value)


def copied(constant: Any) -> Any:
    """Return a tensor with a copy of a constant's values."""
    tensor = openvino.Tensor(constant.get_element_type(), constant.get_output_shape(0))
    tensor.data[...] = constant.data
    return tensor


def constant_nodes(model: Any, stand_ins: Collection[str] = ()) -> dict[str, frozenset[str]]:
    """Return the nodes with a constant value: constants, and nodes computed from constants only.

    Args:
        model: an ``openvino.Model`` with unique friendly names.
        stand_ins: friendly names of parameters that replace constants.

    Returns:
        For each such node, the constants from which it is computed (for a constant, itself), all by friendly name.
    """
    leaves: dict[str, frozenset[str]] = {}
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_friendly_name()
        if kind == "Constant" or name in stand_ins:
            leaves[name] = frozenset((name,))
        elif kind not in _NEVER_CONSTANT:
            producers = [value.get_node().get_friendly_name() for value in node.input_values()]
            if producers and all(producer in leaves for producer in producers):
                leaves[name] = frozenset().union(*(leaves[producer] for producer in producers))
    return leaves


def build_graph(
    model: Any, path: object, sized: Sequence[Sized], *, shares: Sequence[float] = (1.0,), stand_ins: Collection[str] = ()
) -> OpGraph:
    """Build the task graph of a model.

    Constants, and nodes computed from constants only (the decompression or dequantization of weights), are part of the op that
    reads them; their bytes are not in the graph yet. Two inputs of an op that are the same tensor are one edge. All outputs of
    ops other than ``Result`` and ``Assign`` are tensors, even if no op reads them. A tensor whose size depends on the data has
    its upper bound as size.

    Args:
        model: an ``openvino.Model`` with unique friendly names.
        path: the file it came from, for messages.
        sized: the model's nodes with their shapes at each typical size. The graph has the first shapes; operations and bytes
            are means.
        shares: share of the requests that have each typical size.
        stand_ins: friendly names of parameters that replace constants.

    Raises:
        ModelError: the model has no outputs, or a tensor holds strings or has a size without a bound.
    """
    constant = constant_nodes(model, stand_ins)
    nodes = model.get_ordered_ops()
    ops = [node for node in nodes if node.get_friendly_name() not in constant]
    if not model.outputs:
        raise ModelError(f"{path} has no outputs: there is nothing to compute.")
    index = {node.get_friendly_name(): v for v, node in enumerate(ops)}
    flops = np.zeros(len(ops))
    tensors: dict[tuple[int, int], int] = {}
    shapes: list[tuple[int, ...]] = []
    dtypes: list[str] = []
    sizes: list[float] = []
    edges: list[tuple[int, int]] = []
    edge_tensor: list[int] = []
    for v, node in enumerate(ops):
        kind, name = node.get_type_name(), node.get_friendly_name()
        values = ((value.get_node().get_friendly_name(), value.get_index()) for value in node.input_values())
        read = dict.fromkeys((index[producer], port) for producer, port in values if producer not in constant)
        edges += [(u, v) for u, _ in read]
        edge_tensor += [tensors[source] for source in read]
        nodes_at = [point.node(name) for point in sized]
        flops[v] = sum(share * node_flops(sized_node) for share, sized_node in zip(shares, nodes_at, strict=True))
        if kind in _NO_TENSOR:
            continue
        for port, output in enumerate(node.outputs()):
            each = [_sizes(sized_node.output(port), name, kind, path) for sized_node in nodes_at]
            tensors[v, port] = len(shapes)
            shapes.append(each[0])
            dtypes.append(dtype_name(output.get_element_type()))
            bits = output.get_element_type().bitwidth
            sizes.append(sum(share * math.ceil(math.prod(shape) * bits / 8) for share, shape in zip(shares, each, strict=True)))
    return OpGraph(
        names=tuple(index),
        kinds=tuple(node.get_type_name() for node in ops),
        flops=flops,
        param_bytes=np.zeros(len(ops)),
        tensor_op=np.array([v for v, _ in tensors], np.int32),
        tensor_port=np.array([port for _, port in tensors], np.int32),
        tensor_bytes=np.array(sizes, np.float64),
        tensor_shapes=tuple(shapes),
        tensor_dtypes=tuple(dtypes),
        edges=np.array(edges, np.int32).reshape(-1, 2),
        edge_tensor=np.array(edge_tensor, np.int32),
        content=openvino_digest(model) + ("" if len(sized) == 1 else digest([*shares])),
    ).verify()


def nodes_of(model: Any, kind: str) -> list[Any]:
    """Return the nodes of a kind in a model and in the models inside its ops."""
    nodes = model.get_ordered_ops()
    own = [node for node in nodes if node.get_type_name() == kind]
    return own + [inner for node in nodes for body in bodies(node) for inner in nodes_of(body, kind)]


def _sizes(output: Any, name: str, kind: str, path: object) -> tuple[int, ...]:
    if output.get_element_type().get_type_name() in ("string", "dynamic", "undefined"):
        raise ModelError(
            f"{path}: op '{name}' ({kind}) produces a tensor of type {output.get_element_type().get_type_name()}, which cannot "
            "be moved between devices; cut it off the model, for example into a separate tokenizer."
        )
    partial = output.get_partial_shape()
    shape = bounded_shape(partial)
    if shape is None:
        raise ModelError(
            f"{path}: the output of op '{name}' ({kind}) has shape {partial}, whose size depends on the data and has no upper "
            "bound, so it cannot be placed; limit its size in the model, or cut the model before it."
        )
    return shape


def upper_bound_ops(model: Any, sized: Sized, names: Collection[str]) -> tuple[str, ...]:
    """Return the named ops whose output sizes depend on the data, so that only an upper bound is known."""
    return tuple(
        node.get_friendly_name()
        for node in model.get_ordered_ops()
        if node.get_friendly_name() in names
        and any(output.get_partial_shape().is_dynamic for output in sized.node(node.get_friendly_name()).outputs())
    )


def inseparable_ops(model: Any, graph: OpGraph, bounded: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Return sets of ops that must be on one device and in one segment.

    Such a set has the ops that share a variable (``ReadValue`` and ``Assign``), and the attention that reads it, which OpenVINO
    fuses with them. Or it has an op whose output sizes depend on the data, and the readers of the outputs, since buffers
    between programs have fixed sizes.

    Args:
        model: an ``openvino.Model``.
        graph: its task graph.
        bounded: from :func:`upper_bound_ops`.
    """
    names, sets = graph.names, dict[str, list[str]]()
    for node in model.get_ordered_ops():
        if node.get_type_name() in ("ReadValue", "Assign"):
            sets.setdefault(f"state {node.get_variable_id()}", []).extend([node.get_friendly_name(), *_attention(node)])
    for u, v in graph.edges.tolist():
        if names[u] in bounded:
            sets.setdefault(f"op {names[u]}", [names[u]]).append(names[v])
    return tuple(tuple(dict.fromkeys(ops)) for ops in sets.values())


def single_reader_ops(graph: OpGraph, bounded: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Return sets of ops that OpenVINO is likely to fuse: an op with all light ops whose results only this set reads.

    Light ops have few weights, and are no products, inputs or states. Sets are the parts of a normalization or of a rotary
    embedding, for example. The sums of the outputs of experts, whose sizes are ``bounded``, are in no set, so that experts can
    be placed on several devices. Each set has two or more ops.
    """
    sums = {v for u, v in graph.edges.tolist() if graph.names[u] in bounded}
    sums |= {v for u, v in graph.edges.tolist() if u in sums}
    root_of = list(range(len(graph)))
    for v in range(len(graph) - 1, -1, -1):
        readers = {root_of[int(graph.edges[e, 1])] for e in graph.successors.row(v)}
        light = graph.param_bytes[v] <= _MAX_LIGHT_BYTES and graph.kinds[v] not in _HEAVY and v not in sums
        if light and len(readers) == 1:
            root_of[v] = readers.pop()
    members: dict[int, list[str]] = {}
    for v, root in enumerate(root_of):
        members.setdefault(root, []).append(graph.names[v])
    return tuple(tuple(names) for names in members.values() if len(names) > 1)


def _attention(read: Any) -> list[str]:
    """Return the attention that reads a state, and ops that read its shape, directly or behind ops that only rearrange it."""
    found: list[str] = []
    stack, seen = [read], set[str]()
    while stack:
        for reader in [port.get_node() for output in stack.pop().outputs() for port in output.get_target_inputs()]:
            kind, name = reader.get_type_name(), reader.get_friendly_name()
            if name not in seen and kind in ("ScaledDotProductAttention", "ShapeOf"):
                found.append(name)
            elif name not in seen and kind in ARRANGING:
                stack.append(reader)
            seen.add(name)
    return found
