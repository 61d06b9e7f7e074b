"""Map a task graph to its model: OpenVINO's fusions merge nodes into ops of the graph, and the model stays unchanged."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from placeit.backends.openvino.graph import constant_nodes
from placeit.backends.openvino.sized import Sized
from placeit.core.graph import Csr, OpGraph
from placeit.core.telemetry import import_openvino

__all__ = [
    "Holder",
    "View",
    "ends",
    "exact_view",
    "foreign",
    "fuse_in_place",
    "fused_copy",
    "inseparable",
    "match",
    "part_behind",
]

openvino = import_openvino()

Holder = tuple[str, int]
"""An output of a node: the node's friendly name, and the number of the output."""

_SMALL = 1 << 16  # most bytes of a constant whose value fusions may use: numbers, axes, one value per channel
_ENDS = frozenset(("Parameter", "Result", "Assign"))


@dataclass(frozen=True)
class View:
    """The nodes of an ``openvino.Model`` for the ops and tensors of its task graph.

    Attributes:
        holders: for each tensor of the graph, the outputs with its value, in topological order; empty if the model has no such
            tensor, because several ops of the graph stand for the same nodes.
        op_of: the op that each node is part of, by friendly names, without constants.
    """

    holders: tuple[tuple[Holder, ...], ...]
    op_of: Mapping[str, str]

    def ops_named(self, nodes: str) -> list[str]:
        """Return the ops in OpenVINO's list of nodes, which separates names by commas; names may have commas, too."""
        pieces, found, at = nodes.split(","), dict[str, None](), 0
        while at < len(pieces):
            for end in range(len(pieces), at, -1):
                op = self.op_of.get(",".join(pieces[at:end]))
                if op is not None:
                    found[op] = None
                    at = end - 1
                    break
            at += 1
        return list(found)


def exact_view(graph: OpGraph) -> View:
    """Return the view of a graph whose ops are the nodes of the model."""
    holders = zip(graph.tensor_op.tolist(), graph.tensor_port.tolist(), strict=True)
    return View(tuple(((graph.names[op], port),) for op, port in holders), {name: name for name in graph.names})


@dataclass(frozen=True)
class FusedCopy:
    """A copy of a model without its weights, after the fusions at the end of OpenVINO's conversion.

    Attributes:
        model: the ``openvino.Model``.
        weights: its parameters that stand for weights.
        marks: outputs of the original model, by names that tensors have in the copy, and that fusions pass on.
    """

    model: Any
    weights: list[Any]
    marks: Mapping[str, Holder]


def fused_copy(model: Any) -> FusedCopy:
    """Return a fused copy of a model. Its weights are parameters, so no fusion computes new ones from them.

    Args:
        model: an ``openvino.Model`` with unique friendly names and without state.
    """
    copy = model.clone()
    marks, weights = _mark(copy), [stand_in for stand_in, _ in _hide_weights(copy)]
    _fuse(copy)
    _add_constants_first(copy, {node.get_friendly_name() for node in weights})
    return FusedCopy(copy, weights, marks)


def fuse_in_place(model: Any) -> None:
    """Apply the same fusions to a model itself, without changing its weights.

    Names of tensors that a fusion passes on to a tensor of another shape or type are removed.
    """
    hidden, named = _hide_weights(model), _named(model)
    _fuse(model)
    for stand_in, weight in hidden:
        for reader in stand_in.output(0).get_target_inputs():
            reader.replace_source_output(weight.output(0))
        model.remove_parameter(stand_in)
    model.validate_nodes_and_infer_types()
    for output in (output for node in model.get_ops() for output in node.outputs()):
        kind, shape, names = output.get_element_type(), output.get_partial_shape(), output.get_names()
        kept = {name for name in names if name not in named or (named[name][0] == kind and named[name][1].compatible(shape))}
        if kept != names:
            output.get_tensor().set_names(kept)


def _named(model: Any) -> dict[str, tuple[Any, Any]]:
    """Return the type and the shape of each tensor that has a name."""
    outputs = (output for node in model.get_ops() for output in node.outputs())
    return {name: (output.get_element_type(), output.get_partial_shape()) for output in outputs for name in output.get_names()}


def _fuse(model: Any) -> None:
    fuse = importlib.import_module("openvino._offline_transformations").apply_moc_transformations
    # without "smart reshape", which computes the shape of reshaped weights from the other factor's shape
    for _ in range(2):  # some fusions, such as attention, fit only after others
        fuse(model, cf=False)


# The next functions are separate because fusions do not change nodes with other readers, and a node that Python still holds has
# one.


def _mark(copy: Any) -> dict[str, Holder]:
    nodes = copy.get_ordered_ops()
    known = {name for node in nodes for output in node.outputs() for name in output.get_names()}
    prefix = "placeit"
    while any(name.startswith(prefix) for name in known):
        prefix += "'"
    marks: dict[str, Holder] = {}
    for node in nodes:
        for port, output in enumerate(node.outputs()):
            if node.get_type_name() != "Constant":
                mark = f"{prefix} {len(marks)}"
                marks[mark] = (node.get_friendly_name(), port)
                output.get_tensor().add_names({mark})
    return marks


def _hide_weights(model: Any) -> list[tuple[Any, Any]]:
    """Replace weights by parameters; return both."""
    weights: list[tuple[Any, Any]] = []
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and node.get_byte_size() > _SMALL:
            stand_in = openvino.op.Parameter(node.get_output_element_type(0), node.get_output_partial_shape(0))
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(stand_in.output(0))
            weights.append((stand_in, node))
    model.add_parameters([stand_in for stand_in, _ in weights])
    return weights


def _add_constants_first(model: Any, stand_ins: Collection[str]) -> None:
    """Rewrite (x + a) + b as x + (a + b) for constants a and b, as OpenVINO's fusions do if they know both."""
    constant = constant_nodes(model, stand_ins)

    def split(node: Any) -> tuple[Any, Any] | None:
        """Return the constant input and the other one; None unless exactly one input is constant."""
        ports = sorted(node.inputs(), key=lambda port: port.get_source_output().get_node().get_friendly_name() not in constant)
        fixed = [port.get_source_output().get_node().get_friendly_name() in constant for port in ports]
        return (ports[0], ports[1]) if fixed == [True, False] else None

    for node in model.get_ordered_ops():
        outer = split(node)
        if node.get_type_name() != "Add" or outer is None:
            continue
        inner = outer[1].get_source_output()
        parts = split(inner.get_node())
        if inner.get_node().get_type_name() == "Add" and parts is not None and len(inner.get_target_inputs()) == 1:
            total = openvino.opset13.add(parts[0].get_source_output(), outer[0].get_source_output())
            outer[1].replace_source_output(parts[1].get_source_output())
            outer[0].replace_source_output(total.output(0))


def match(model: Any, whole: Sized, copy: FusedCopy, fused: Sized, graph: OpGraph) -> View:
    """Return the nodes of a model that the ops of its fused copy stand for.

    Args:
        model: the ``openvino.Model``.
        whole: nodes of the model at typical sizes.
        copy: the fused copy; its friendly names are unique.
        fused: nodes of the copy at typical sizes.
        graph: the task graph of the copy.
    """
    nodes = model.get_ordered_ops()
    place = {node.get_friendly_name(): i for i, node in enumerate(nodes)}
    names = {node.get_friendly_name(): node for node in copy.model.get_ops()}
    holders: list[tuple[Holder, ...]] = []
    op_of: dict[str, str] = {}
    taken: set[Holder] = set()
    for op, port in zip(graph.tensor_op.tolist(), graph.tensor_port.tolist(), strict=True):
        output = names[graph.names[op]].output(port)
        shape, kind = fused.shape(graph.names[op], port), output.get_element_type()
        found: list[Holder] = []
        for holder in (copy.marks[name] for name in output.get_names() if name in copy.marks):
            theirs = nodes[place[holder[0]]].output(holder[1])
            same = shape.is_static and whole.shape(*holder) == shape and theirs.get_element_type() == kind
            if same and holder not in taken:
                found.append(holder)
        taken.update(found)
        found.sort(key=lambda holder: (place[holder[0]], holder[1]))
        holders.append(tuple(found))
        op_of |= dict.fromkeys((owner for owner, _ in found), graph.names[op])
    for mine, theirs in zip(model.get_results(), copy.model.get_results(), strict=True):
        op_of[mine.get_friendly_name()] = theirs.get_friendly_name()
    for mine, theirs in zip(model.get_parameters(), copy.model.get_parameters(), strict=False):
        op_of[mine.get_friendly_name()] = theirs.get_friendly_name()
    constant = constant_nodes(model)
    for node in reversed(nodes):
        name = node.get_friendly_name()
        if name not in op_of and name not in constant:
            readers = (port.get_node().get_friendly_name() for output in node.outputs() for port in output.get_target_inputs())
            owner = min((reader for reader in readers if reader in op_of), key=place.__getitem__, default=None)
            if owner is not None:
                op_of[name] = op_of[owner]
    return View(tuple(holders), op_of)


def inseparable(model: Any, graph: OpGraph, view: View) -> tuple[tuple[str, ...], ...]:
    """Return sets of ops that can only be cut out together, since the model has no tensor between them."""
    parts = _Parts(len(graph))
    for (u, v), tensor in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True):
        if not view.holders[tensor]:
            parts.join(u, v)
    nodes = {node.get_friendly_name(): node for node in model.get_ops()}
    end = ends(view, nodes)
    while True:
        joined = False
        for part in parts.all():
            inside = set(part)
            enter = [e for v in part for e in _edges(graph.predecessors, v) if int(graph.edges[e, 0]) not in inside]
            leave = [e for v in part for e in _edges(graph.successors, v) if int(graph.edges[e, 1]) not in inside]
            given = [holder for e in enter for holder in view.holders[int(graph.edge_tensor[e])]]
            own = [nodes[end[graph.names[v]]] for v in part if graph.kinds[v] in _ENDS]
            begins = [nodes[view.holders[int(graph.edge_tensor[e])][0][0]] for e in leave]
            outside = foreign(part_behind([*own, *begins], given), nodes, {node.get_friendly_name() for node in own})
            if outside:  # the computation here depends on nodes that are not in the graph
                before = {int(graph.edges[e, 0]) for e in enter} or {graph.index[view.op_of[name]] for name in outside}
                for u in before:
                    parts.join(u, part[0])
                joined = True
        if not joined:
            return tuple(tuple(graph.names[v] for v in part) for part in parts.all() if len(part) > 1)


def part_behind(last: Iterable[Any], given: Iterable[Holder]) -> set[str]:
    """Return all nodes on paths from given outputs to some nodes, by friendly name, including constants."""
    stop, seen = set(given), set()
    waiting = list(last)
    while waiting:
        node = waiting.pop()
        name = node.get_friendly_name()
        if name not in seen:
            seen.add(name)
            for value in node.input_values():
                maker = value.get_node()
                if (maker.get_friendly_name(), value.get_index()) not in stop:
                    waiting.append(maker)
    return seen


def ends(view: View, nodes: Mapping[str, Any]) -> dict[str, str]:
    """Return the node of each op that is an input or output of the model or writes its state, by friendly name."""
    return {op: name for name, op in view.op_of.items() if nodes[name].get_type_name() in _ENDS}


def foreign(names: Iterable[str], nodes: Mapping[str, Any], own: Collection[str]) -> list[str]:
    """Return the model inputs among nodes that do not belong to the part itself."""
    return [name for name in names if nodes[name].get_type_name() == "Parameter" and name not in own]


def _edges(adjacency: Csr, op: int) -> list[int]:
    edges: list[int] = adjacency.edge[adjacency.ptr[op] : adjacency.ptr[op + 1]].tolist()
    return edges


class _Parts:
    """A partition of numbers whose parts can be joined."""

    def __init__(self, count: int) -> None:
        self._root = list(range(count))

    def _find(self, v: int) -> int:
        while self._root[v] != v:
            self._root[v] = v = self._root[self._root[v]]
        return v

    def join(self, u: int, v: int) -> None:
        self._root[self._find(u)] = self._find(v)

    def all(self) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        for v in range(len(self._root)):
            found.setdefault(self._find(v), []).append(v)
        return list(found.values())
