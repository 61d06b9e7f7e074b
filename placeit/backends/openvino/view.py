"""Map the ops of a task graph to the nodes of its model: an op stands for all nodes that OpenVINO's fusions merge."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from placeit.backends.openvino.graph import constant_nodes
from placeit.backends.openvino.sized import Sized
from placeit.core.graph import OpGraph
from placeit.core.telemetry import import_openvino

__all__ = [
    "Holder",
    "View",
    "connected",
    "end_nodes",
    "exact_view",
    "foreign_inputs",
    "fuse_in_place",
    "fused_copy",
    "inseparable",
    "match",
    "nodes_between",
]

openvino = import_openvino()

Holder = tuple[str, int]
"""An output of a node: the node's friendly name, and the number of the output."""

_MAX_VISIBLE = 1 << 16  # most bytes of a constant whose value fusions may use: numbers, axes, one value per channel
_ENDS = frozenset(("Parameter", "Result", "Assign"))


@dataclass(frozen=True)
class View:
    """The nodes of an ``openvino.Model`` for the ops and tensors of its task graph.

    Attributes:
        holders: for each tensor of the graph, the outputs of nodes that have its value, in topological order; empty if the
            model has no such tensor, because several ops of the graph stand for the same nodes.
        op_of: name of the op that each node is part of, by the node's friendly name; without constants.
    """

    holders: tuple[tuple[Holder, ...], ...]
    op_of: Mapping[str, str]

    def ops_named(self, nodes: str) -> list[str]:
        """Return the ops in OpenVINO's list of nodes, which is separated by commas; names may contain commas as well."""
        pieces, found, start = nodes.split(","), dict[str, None](), 0
        while start < len(pieces):
            ends = range(len(pieces), start, -1)
            end = next((end for end in ends if ",".join(pieces[start:end]) in self.op_of), None)
            if end is not None:
                found[self.op_of[",".join(pieces[start:end])]] = None
            start = end or start + 1
        return list(found)


def exact_view(graph: OpGraph) -> View:
    """Return the view of a graph whose ops are the nodes of the model."""
    holders = zip(graph.tensor_op.tolist(), graph.tensor_port.tolist(), strict=True)
    return View(tuple(((graph.names[op], port),) for op, port in holders), {name: name for name in graph.names})


@dataclass(frozen=True)
class FusedCopy:
    """A copy of a model without its weights, after the fusions with which OpenVINO's conversion ends.

    Attributes:
        model: the ``openvino.Model``.
        weights: its parameters that replace weights.
        marks: outputs of nodes of the original model, by unique names that were given to the tensors of the copy before the
            fusions, which keep them.
    """

    model: Any
    weights: list[Any]
    marks: Mapping[str, Holder]


def fused_copy(model: Any) -> FusedCopy:
    """Return a fused copy of a model. Parameters replace its weights, so that no fusion computes new weights.

    Args:
        model: an ``openvino.Model`` with unique friendly names and without state.
    """
    copy = model.clone()
    marks, weights = _mark(copy), [stand_in for stand_in, _ in _hide_weights(copy)]
    _fuse(copy)
    _add_constants_first(copy, {node.get_friendly_name() for node in weights})
    return FusedCopy(copy, weights, marks)


def fuse_in_place(model: Any) -> None:
    """Apply the fusions of :func:`fused_copy` to a model itself, without changing its weights.

    A name that a fusion passes on to a tensor of another shape or type is removed.
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


# The next functions are separate, so that no variable refers to a node during fusions: such a node would not be fused.


def _mark(copy: Any) -> dict[str, Holder]:
    """Give each output of a node that is no constant a unique name; return the outputs by these names."""
    nodes = copy.get_ordered_ops()
    names = {name for node in nodes for output in node.outputs() for name in output.get_names()}
    prefix = "placeit"
    while any(name.startswith(prefix) for name in names):
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
    """Replace the weights of a model by parameters. Returns pairs of parameter and weight."""
    weights: list[tuple[Any, Any]] = []
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and node.get_byte_size() > _MAX_VISIBLE:
            stand_in = openvino.op.Parameter(node.get_output_element_type(0), node.get_output_partial_shape(0))
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(stand_in.output(0))
            weights.append((stand_in, node))
    model.add_parameters([stand_in for stand_in, _ in weights])
    return weights


def _add_constants_first(model: Any, stand_ins: Collection[str]) -> None:
    """Rewrite (x + a) + b as x + (a + b) for constants a and b, as OpenVINO's fusions do if they know the values."""
    constant = constant_nodes(model, stand_ins)

    def split(node: Any) -> tuple[Any, Any] | None:
        """Return the constant and the other input of an addition; None for other nodes, or unless exactly one is constant."""
        ports = {port.get_source_output().get_node().get_friendly_name() in constant: port for port in node.inputs()}
        return (ports[True], ports[False]) if len(ports) == 2 and node.get_type_name() == "Add" else None

    for node in model.get_ordered_ops():
        outer = split(node)
        if outer is None:
            continue
        inner = outer[1].get_source_output()
        parts = split(inner.get_node())
        if parts is not None and len(inner.get_target_inputs()) == 1:
            total = openvino.opset13.add(parts[0].get_source_output(), outer[0].get_source_output())
            outer[1].replace_source_output(parts[1].get_source_output())
            outer[0].replace_source_output(total.output(0))


def match(model: Any, whole: Sized, copy: FusedCopy, fused: Sized, graph: OpGraph) -> View:
    """Return the nodes of a model for which the ops of its fused copy stand.

    Args:
        model: the ``openvino.Model``.
        whole: nodes of the model at its first typical sizes.
        copy: the fused copy; its friendly names are unique.
        fused: nodes of the copy at these sizes.
        graph: the task graph of the copy.
    """
    nodes = model.get_ordered_ops()
    position = {node.get_friendly_name(): i for i, node in enumerate(nodes)}
    names = {node.get_friendly_name(): node for node in copy.model.get_ops()}
    holders: list[tuple[Holder, ...]] = []
    op_of: dict[str, str] = {}
    taken: set[Holder] = set()
    for op, port in zip(graph.tensor_op.tolist(), graph.tensor_port.tolist(), strict=True):
        output = names[graph.names[op]].output(port)
        shape, kind = fused.shape(graph.names[op], port), output.get_element_type()
        marked = {copy.marks[name] for name in output.get_names() if name in copy.marks} - taken
        found: list[Holder] = []
        for owner, number in sorted(marked, key=lambda holder: (position[holder[0]], holder[1])):
            same = shape.is_static and whole.shape(owner, number) == shape
            if same and nodes[position[owner]].get_output_element_type(number) == kind:
                found.append((owner, number))
        taken.update(found)
        holders.append(tuple(found))
        op_of |= dict.fromkeys((owner for owner, _ in found), graph.names[op])
    ends = zip(model.get_results(), copy.model.get_results(), strict=True)
    parameters = zip(model.get_parameters(), copy.model.get_parameters(), strict=False)  # the copy's weights follow
    op_of |= {mine.get_friendly_name(): theirs.get_friendly_name() for mine, theirs in (*ends, *parameters)}
    constant = constant_nodes(model)
    for node in reversed(nodes):
        name = node.get_friendly_name()
        if name not in op_of and name not in constant:
            readers = (port.get_node().get_friendly_name() for output in node.outputs() for port in output.get_target_inputs())
            first = min((reader for reader in readers if reader in op_of), key=position.__getitem__, default=None)
            if first is not None:
                op_of[name] = op_of[first]
    return View(tuple(holders), op_of)


def inseparable(model: Any, graph: OpGraph, view: View) -> tuple[tuple[str, ...], ...]:
    """Return sets of ops that can only be cut out together, since the model has no tensor between them."""
    edges = zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True)
    pairs = [(u, v) for (u, v), tensor in edges if not view.holders[tensor]]
    nodes = {node.get_friendly_name(): node for node in model.get_ops()}
    end = end_nodes(view, nodes)
    while True:
        before, parts = len(pairs), connected(len(graph), pairs)
        for part in parts:
            inside = set(part)
            enter = [e for v in part for e in graph.predecessors.row(v) if int(graph.edges[e, 0]) not in inside]
            leave = [e for v in part for e in graph.successors.row(v) if int(graph.edges[e, 1]) not in inside]
            own = [nodes[end[graph.names[v]]] for v in part if graph.kinds[v] in _ENDS]
            last = [*own, *(nodes[view.holders[int(graph.edge_tensor[e])][0][0]] for e in leave)]
            between = nodes_between([holder for e in enter for holder in view.holders[int(graph.edge_tensor[e])]], last)
            outside = foreign_inputs(between, nodes, {node.get_friendly_name() for node in own})
            if outside:  # the computation here depends on nodes that are not in the graph
                producers = {int(graph.edges[e, 0]) for e in enter} or {graph.index[view.op_of[name]] for name in outside}
                pairs += [(u, part[0]) for u in producers]
        if len(pairs) == before:
            return tuple(tuple(graph.names[v] for v in part) for part in parts if len(part) > 1)


def nodes_between(first: Iterable[Holder], last: Iterable[Any]) -> set[str]:
    """Return the friendly names of the nodes that are needed to compute some nodes from given outputs.

    Args:
        first: outputs whose values are given.
        last: the nodes to compute; they are among the result, and so are constants.
    """
    given, seen, stack = set(first), set[str](), list(last)
    while stack:
        node = stack.pop()
        if node.get_friendly_name() not in seen:
            seen.add(node.get_friendly_name())
            sources = ((value.get_node(), value.get_index()) for value in node.input_values())
            stack += [source for source, port in sources if (source.get_friendly_name(), port) not in given]
    return seen


def end_nodes(view: View, nodes: Mapping[str, Any]) -> dict[str, str]:
    """Return the nodes that are inputs or outputs of the model or write its state: friendly names, by op name."""
    return {op: name for name, op in view.op_of.items() if nodes[name].get_type_name() in _ENDS}


def foreign_inputs(names: Iterable[str], nodes: Mapping[str, Any], own: Collection[str]) -> list[str]:
    """Return the names of nodes that are inputs of the model but are not in ``own``."""
    return [name for name in names if nodes[name].get_type_name() == "Parameter" and name not in own]


def connected(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the connected components of the numbers below ``count``, each ascending, ordered by their first numbers.

    Args:
        count: how many numbers there are.
        pairs: numbers that are in one component.
    """
    parent = list(range(count))

    def root(v: int) -> int:
        while parent[v] != v:
            parent[v] = v = parent[parent[v]]
        return v

    for u, v in pairs:
        parent[root(u)] = root(v)
    components: dict[int, list[int]] = {}
    for v in range(count):
        components.setdefault(root(v), []).append(v)
    return list(components.values())
