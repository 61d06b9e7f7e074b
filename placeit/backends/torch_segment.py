"""Cutting a part of a PyTorch program out as a module of its own."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.fx import Graph, GraphModule, Node

from placeit.backends.torch_program import Value, value_of

if TYPE_CHECKING:
    from placeit.backends.torch import Model

__all__ = ["OP", "extract"]

OP = "placeit_op"
"""Key under which ``Node.meta`` of a segment has the number of the op that a node stands for."""


def extract(model: Model, ops: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> GraphModule:
    """Cut ``ops`` out of a model.

    Args:
        model: the whole model; it is not changed.
        ops: op numbers of the part, ascending.
        inputs: tensors that the part reads from outside, in the order of the module's first arguments; the model's own inputs
            among ``ops`` follow, in op order.
        outputs: tensors that leave the part, in the order of the first elements of the tuple that the module returns; the
            model's own outputs among ``ops`` follow, in op order.

    Returns:
        A module whose weights are buffers, in the memory of the model's. It computes in the order of ``ops``.
    """
    return _Cut(model).module(ops, inputs, outputs)


class _Cut:
    """A segment under construction."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.graph = Graph()
        self.root = torch.nn.Module()
        self.made: dict[Value, Node] = {}  # what stands for each value here

    def module(self, ops: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> GraphModule:
        layout, kinds = self.model.layout, self.model.graph.kinds
        for tensor in inputs:
            self.made[layout.values[tensor]] = self.graph.placeholder(f"tensor_{tensor}")
        ends = [layout.values[tensor] for tensor in outputs]
        for v in ops:
            node = layout.nodes[v]
            if node is None:
                ends.append(layout.results[v])
            elif kinds[v] == "Parameter":
                self.made[node, ()] = self.graph.placeholder(node.name)
        for v in ops:
            node = layout.nodes[v]
            if node is not None and kinds[v] != "Parameter":
                copy = self.graph.node_copy(node, lambda read: self._at(value_of(read)))
                copy.meta[OP] = v
                self.made[node, ()] = copy
        self.graph.output(tuple(map(self._at, ends)))
        return GraphModule(self.root, self.graph, "Segment")

    def _at(self, value: Value) -> Node:
        """Return what stands for a value: an argument, an op, an item of what an op returns, or a weight."""
        if value not in self.made:
            node, place = value
            constant = self.model.lowered.constants.get(value)
            if constant is None:
                self.made[value] = self.graph.call_function(operator.getitem, (self._at((node, place[:-1])), place[-1]))
            else:
                name = "_".join(map(str, (node.name, *place)))
                self.root.register_buffer(name, constant)
                self.made[value] = self.graph.get_attr(name)
        return self.made[value]
