"""Make the task graph of an OpenVINO model."""

from __future__ import annotations

import math
import re
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
    "constants",
    "dtype_name",
    "fix_shapes",
    "inseparable_ops",
    "name_nodes",
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
_LIGHT = 1 << 16  # most bytes of weights of an op that only scales or shifts
ARRANGING = frozenset(("Broadcast", "Concat", "Convert", "Gather", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
"""Kinds of ops between a state and the attention that reads it."""
KEEPS_WEIGHT = frozenset(("Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
"""Kinds of ops that pass their first input on, if that is a weight."""
_NO_TENSOR = frozenset(("Result", "Assign"))
_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "boolean": "bool"}
_GENERATED_NAME = re.compile(r"[A-Z][A-Za-z0-9]*_\d+")


def dtype_name(element_type: Any) -> str:
    """Return the NumPy spelling of an OpenVINO element type: ``float32`` for f32, ``int64`` for i64, ``uint4`` for u4."""
    short = str(element_type.get_type_name())
    if short in _DTYPES:
        return _DTYPES[short]
    return re.sub(r"^u(?=\d)", "uint", re.sub(r"^i(?=\d)", "int", short))


def name_nodes(model: Any, keep: Callable[[str], bool]) -> None:
    """Give every node a unique friendly name, which is equal whenever this model is loaded.

    A converter numbers the nodes that it invents by a counter of the whole process, as in ``MVN_10734``: such names are
    numbered anew within the model, in topological order.

    Args:
        model: an ``openvino.Model``; its friendly names are changed.
        keep: whether a name that looks invented is part of the file and stays.
    """
    nodes = model.get_ordered_ops()
    names: list[str] = [node.get_friendly_name() for node in nodes]
    made_up = [bool(_GENERATED_NAME.fullmatch(name)) and not keep(name) for name in names]
    taken = {name for name, fresh in zip(names, made_up, strict=True) if not fresh}
    used: set[str] = set()
    counts: dict[str, int] = {}
    for node, name, fresh in zip(nodes, names, made_up, strict=True):
        if not fresh and name not in used:
            used.add(name)
            continue
        stem = node.get_type_name() if fresh else name
        while True:
            counts[stem] = counts.get(stem, 0) + 1
            name = f"{stem}_{counts[stem]}"
            if name not in taken and name not in used:
                break
        used.add(name)
        node.set_friendly_name(name)


def fix_shapes(model: Any) -> None:
    """Replace every ``ShapeOf`` whose value is known, so that everything computed from it is constant.

    The condition of an ``If`` is also known if it depends only on sizes that are not open. Cut off from them, the ``If`` could
    have either branch, and OpenVINO compiles none whose branches differ in rank.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ShapeOf" and node.get_input_partial_shape(0).is_static:
            shape = list(node.get_input_shape(0))
            constant = openvino.op.Constant(node.get_output_element_type(0), openvino.Shape([len(shape)]), shape)
            constant.set_friendly_name(node.get_friendly_name())
            openvino.utils.replace_node(node, constant)
        elif node.get_type_name() == "If" and (chosen := _known_condition(node.input_value(0))) is not None:
            node.input(0).replace_source_output(openvino.opset13.constant(chosen).output(0))


def _known_condition(value: Any) -> bool | None:
    """Return the condition of an ``If`` as far as OpenVINO can infer it from shapes; None if it is not known."""
    ops = openvino.opset13
    size = ops.reshape(ops.convert(value, "i64"), ops.constant([1]), special_zero=False)
    inferred = ops.broadcast(ops.constant(0.0), size).get_output_partial_shape(0)  # it has as many elements as the value says
    return bool(inferred.to_shape()[0]) if inferred.is_static else None


def separate_transposed(model: Any) -> None:
    """Copy a square weight for ops that read it transposed, if other ops read it as stored, also inside of other ops.

    OpenVINO's CPU plugin identifies the weights that it has reordered by address and shape, and confuses a square one with its
    transpose (2026.4).

    Args:
        model: an ``openvino.Model``; it is changed.
    """
    readers: dict[int, dict[bool, list[tuple[Any, Any, list[Any]]]]] = {}
    for node in _products(model):
        source, between = node.input_value(1).get_node(), list[Any]()
        while source.get_type_name() in KEEPS_WEIGHT:
            between.append(source)
            source = source.input_value(0).get_node()
        shape = node.get_input_partial_shape(1)
        if source.get_type_name() == "Constant" and len(shape) > 1 and shape[-1] == shape[-2] and shape[-1] != 1:
            turns = sum(map(swaps, between)) + bool(node.get_attributes()["transpose_b"])
            of = readers.setdefault(source.data.ctypes.data, {False: [], True: []})
            of[turns % 2 == 1].append((node, source, between))
    for of in readers.values():
        if of[False] and of[True]:
            _read_copy(of[True])


def _products(model: Any) -> list[Any]:
    """Return the ``MatMul`` nodes of a model and of the models inside its ops."""
    nodes = model.get_ordered_ops()
    own = [node for node in nodes if node.get_type_name() == "MatMul"]
    return own + [product for node in nodes for body in bodies(node) for product in _products(body)]


def swaps(node: Any) -> bool:
    """Return whether a node is a ``Transpose`` that changes the order of dimensions, as far as that is known."""
    if node.get_type_name() != "Transpose":
        return False
    order = node.input_value(1).get_node()
    return bool(order.get_type_name() != "Constant" or list(order.get_vector()) != sorted(order.get_vector()))


def _read_copy(readers: Collection[tuple[Any, Any, list[Any]]]) -> None:
    """Make products read a copy of the memory of their constants, also through copies of the nodes between."""
    first = next(iter(readers))[1]
    tensor = openvino.Tensor(first.get_element_type(), first.get_output_shape(0))
    tensor.data[...] = first.data
    create, copies = openvino.utils.node_factory.NodeFactory("opset13").create, dict[str, Any]()
    for product, constant, between in readers:
        name = constant.get_name()
        if name not in copies:
            copies[name] = openvino.op.Constant(tensor)
            copies[name].set_friendly_name(f"{constant.get_friendly_name()}/copy")
        value = copies[name].output(0)
        for node in reversed(between):
            made = create(node.get_type_name(), [value, *node.input_values()[1:]], node.get_attributes())
            made.set_friendly_name(f"{node.get_friendly_name()}/copy")
            value = made.output(0)
        product.input(1).replace_source_output(value)


def constant_nodes(model: Any, stand_ins: Collection[str] = ()) -> dict[str, frozenset[str]]:
    """Return the nodes whose value is fixed: constants, and nodes computed from constants only.

    Args:
        model: an ``openvino.Model`` with unique friendly names.
        stand_ins: friendly names of nodes that stand for constants.

    Returns:
        for each such node, the constants that it is computed from (itself, for a constant), all by friendly name.
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

    Constants, and nodes computed from constants only (weights being decompressed or dequantised), are part of the op that
    reads them; the graph does not have their bytes yet. Two inputs of an op that are one tensor are one edge. The outputs
    of every op but ``Result`` and ``Assign`` are tensors, read or not. A tensor whose size depends on the data has its upper
    bound.

    Args:
        model: an ``openvino.Model`` with unique friendly names.
        path: the file it came from, for messages.
        sized: the model's nodes with their shapes at each typical size. The graph has the first shapes; operations and bytes
            are means.
        shares: share of the requests that have each typical size.
        stand_ins: friendly names of nodes that stand for constants.

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
        moved: set[int] = set()
        for value in node.input_values():
            producer = value.get_node().get_friendly_name()
            if producer in constant:
                continue
            tensor = tensors[index[producer], value.get_index()]
            if tensor not in moved:
                moved.add(tensor)
                edges.append((index[producer], v))
                edge_tensor.append(tensor)
        at = [point.node(name) for point in sized]
        flops[v] = sum(share * node_flops(seen) for share, seen in zip(shares, at, strict=True))
        if kind in _NO_TENSOR:
            continue
        for port, output in enumerate(node.outputs()):
            each = [_sizes(seen.output(port), name, kind, path) for seen in at]
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


def constants(model: Any) -> list[Any]:
    """Return the ``Constant`` nodes of a model and of the models inside its ops."""
    nodes = model.get_ops()
    own = [node for node in nodes if node.get_type_name() == "Constant"]
    return own + [constant for node in nodes for body in bodies(node) for constant in constants(body)]


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
    """Return the named ops whose output sizes depend on the data, with only an upper bound known."""
    return tuple(
        node.get_friendly_name()
        for node in model.get_ordered_ops()
        if node.get_friendly_name() in names
        and any(output.get_partial_shape().is_dynamic for output in sized.node(node.get_friendly_name()).outputs())
    )


def inseparable_ops(model: Any, graph: OpGraph, bounded: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Return sets of ops that must be on one device and in one segment.

    They are ops that share a variable (``ReadValue`` and ``Assign``), with the attention that reads it, which OpenVINO fuses
    with them; and each op whose output sizes depend on the data, with its readers, since buffers between programs have fixed
    sizes.

    Args:
        model: an ``openvino.Model``.
        graph: its task graph.
        bounded: from :func:`upper_bound_ops`.
    """
    names = graph.names
    readers: dict[str, list[str]] = {}
    for u, v in graph.edges.tolist():
        if names[u] in bounded:
            readers.setdefault(names[u], [names[u]]).append(names[v])
    return (*_state_sharers(model), *map(tuple, readers.values()))


def single_reader_ops(graph: OpGraph, bounded: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Return sets of two or more ops: an op, and ops without weights and products whose results only this set reads.

    These are the parts of a normalization or of a rotary embedding, which OpenVINO fuses when it compiles a model. The sums of
    the outputs of experts, whose sizes are ``bounded``, are in no set, so that experts can be placed on several devices.
    """
    ends = {v for u, v in graph.edges.tolist() if graph.names[u] in bounded}
    ends |= {v for u, v in graph.edges.tolist() if u in ends}
    cone = list(range(len(graph)))
    for v in range(len(graph) - 1, -1, -1):
        edges = graph.successors.edge[graph.successors.ptr[v] : graph.successors.ptr[v + 1]]
        readers = {cone[int(graph.edges[e, 1])] for e in edges}
        light = graph.param_bytes[v] <= _LIGHT and graph.kinds[v] not in _HEAVY and v not in ends
        if light and len(readers) == 1:
            cone[v] = readers.pop()
    members: dict[int, list[str]] = {}
    for v, root in enumerate(cone):
        members.setdefault(root, []).append(graph.names[v])
    return tuple(tuple(names) for names in members.values() if len(names) > 1)


def _state_sharers(model: Any) -> tuple[tuple[str, ...], ...]:
    by_variable: dict[str, list[str]] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() in ("ReadValue", "Assign"):
            sharing = by_variable.setdefault(node.get_variable_id(), [])
            sharing.append(node.get_friendly_name())
            sharing += _attention(node)
    return tuple(tuple(dict.fromkeys(names)) for names in by_variable.values())


def _attention(read: Any) -> list[str]:
    """Return the attention that reads a state, and ops that read the state's shape; ops between only rearrange the state."""
    found: list[str] = []
    waiting, seen = [read], set[str]()
    while waiting:
        for output in waiting.pop().outputs():
            for reader in (port.get_node() for port in output.get_target_inputs()):
                kind, name = reader.get_type_name(), reader.get_friendly_name()
                if name in seen:
                    continue
                seen.add(name)
                if kind in ("ScaledDotProductAttention", "ShapeOf"):
                    found.append(name)
                elif kind in ARRANGING:
                    waiting.append(reader)
    return found
