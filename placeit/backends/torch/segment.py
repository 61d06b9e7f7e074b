"""Cut a part out of a PyTorch program, as a separate module."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import torch
from torch.fx import Graph, GraphModule, Node

from placeit.backends.torch.graph import ProgramMap
from placeit.backends.torch.open_sizes import SIZE, dimensions, is_size, read_size
from placeit.backends.torch.program import Value, indexed_value, meta_tensor, reads

__all__ = ["extract"]

_VIEWS = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default}
"""Ops that fail if a tensor of another segment has other strides than in the traced program."""


def extract(
    layout: ProgramMap, constants: Mapping[Value, torch.Tensor], ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]
) -> GraphModule:
    """Return ``ops`` of a program as a separate module.

    Args:
        layout: positions of ops and tensors in the program, which is not changed.
        constants: constants of the program.
        ops: op numbers of the part, ascending.
        enter: tensors that the part reads from outside, in the order of the module's first arguments; the program's own inputs
            among ``ops`` follow, in op order.
        leave: tensors that leave the part, in the order of the first elements of the tuple that the module returns; the
            program's own outputs among ``ops`` follow, in op order.

    Returns:
        A module whose weights are buffers, in the memory of the program's weights. It computes in the order of ``ops``.
    """
    return _SegmentBuilder(layout, constants).module(ops, enter, leave)


class _SegmentBuilder:
    """Builds the module of a segment."""

    def __init__(self, layout: ProgramMap, constants: Mapping[Value, torch.Tensor]) -> None:
        self.layout, self.constants = layout, constants
        self.graph = Graph()
        self.root = torch.nn.Module()
        self.nodes: dict[Value, Node] = {}  # the node for each value in the segment

    def module(self, ops: Sequence[int], enter: Sequence[int], leave: Sequence[int]) -> GraphModule:
        for tensor in enter:
            value = self.layout.values[tensor]
            self.nodes[value] = self._argument(f"tensor_{tensor}", value)
        ends = [self.layout.values[tensor] for tensor in leave]
        calls: list[Node] = []
        for v in ops:
            node = self.layout.nodes[v]
            if node is None:
                ends.append(self.layout.results[v])
            elif node.op == "placeholder":
                self.nodes[node, ()] = self._argument(node.name, (node, ()))
            else:
                calls.append(node)
        for node in calls:
            call = self.graph.node_copy(node, lambda read, op=node: self._argument_of(op, read))  # type: ignore[misc]
            if call.all_input_nodes:  # it makes tensors on the device of its inputs, not on the CPU, where it was traced
                call.kwargs = {name: value for name, value in call.kwargs.items() if name != "device"}
            if node.target in _VIEWS:
                call.target = torch.ops.aten.reshape.default
            self.nodes[node, ()] = call
        self.graph.output(tuple(map(self._node_of, ends)))
        return GraphModule(self.root, self.graph, "Segment")

    def _argument(self, name: str, value: Value) -> Node:
        argument = self.graph.placeholder(name)
        argument.meta |= {"val": meta_tensor(value), "dimensions": dimensions(*value)}
        return argument

    def _argument_of(self, op: Node, read: Node) -> Node:
        """Return the node for what an op reads: a value, or a size, which is read from one of its tensors."""
        if not is_size(read):
            return self._node_of(indexed_value(read))
        if (read, ()) not in self.nodes:
            if read.target is not SIZE:
                self.nodes[read, ()] = self.graph.node_copy(read, lambda one: self._argument_of(op, one))
            else:
                of, axis = read_size(read)
                wanted = dimensions(*indexed_value(of))[axis]
                value = next(value for value in reads(op) if wanted in dimensions(*value))
                place = dimensions(*value).index(wanted)
                self.nodes[read, ()] = self.graph.call_function(SIZE, (self._node_of(value), place))
                self.nodes[read, ()].meta["val"] = read.meta["val"]
        return self.nodes[read, ()]

    def _node_of(self, value: Value) -> Node:
        """Return the node for a value: an argument, an op, an item of an op's result, or a weight."""
        if value not in self.nodes:
            node, place = value
            if value in self.constants:
                name = "_".join(map(str, (node.name, *place)))
                self.root.register_buffer(name, self.constants[value])
                self.nodes[value] = self.graph.get_attr(name)
            else:
                self.nodes[value] = self.graph.call_function(operator.getitem, (self._node_of((node, place[:-1])), place[-1]))
        return self.nodes[value]
