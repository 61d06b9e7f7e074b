"""State in segments of PyTorch programs: buffers that a program changes, whose next value a run makes from the last one.

In a graph, a call of :data:`KEEP` without readers stands for the change of a buffer. A run of the graph as it is starts from
the initial value.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch.fx import Graph, GraphModule, Node

__all__ = ["KEEP", "changing", "kept", "with_states"]

KEEP = torch.ops.aten.copy.default
"""The op that stands for a change: it takes the buffer and its next value."""


def kept(module: torch.nn.Module) -> dict[str, Node]:
    """Return the calls in a segment that stand for changes, by the name of the buffer."""
    if not isinstance(module, GraphModule):
        return {}
    calls = (node for node in module.graph.find_nodes(op="call_function", target=KEEP) if not node.users)
    return {str(node.args[0].target): node for node in calls if isinstance(node.args[0], Node)}


def changing(module: GraphModule) -> GraphModule:
    """Return a segment that writes the next values of its states into its buffers, as ``torch.export`` takes it."""
    made = GraphModule(module, copy.deepcopy(module.graph), "Segment")
    (end,) = made.graph.find_nodes(op="output")
    for call in kept(made).values():
        buffer = cast("Node", call.args[0])
        with made.graph.inserting_after(buffer):
            value = made.graph.call_function(torch.ops.aten.clone.default, (buffer,))
        buffer.replace_all_uses_with(value, value.__ne__)  # views of the buffer do not change with it
        end.prepend(call)
        call.target, call.args = torch.ops.aten.copy_.default, (buffer, call.args[1])
    made.recompile()
    return made


def with_states(module: GraphModule) -> tuple[GraphModule, dict[str, torch.Tensor]]:
    """Return a segment with its states as further inputs and their next values as further outputs; and initial values by name.

    Args:
        module: a module from :meth:`placeit.backends.torch.model.TorchModel.segment`, which is not changed.
    """
    changes = kept(module)
    graph, made = Graph(), dict[Node, Node]()
    states = {name: module.get_buffer(name) for name in changes}
    nodes = list(module.graph.nodes)
    for node in nodes:
        if node.op == "placeholder":
            made[node] = graph.node_copy(node)
    given = {name: graph.placeholder(name) for name in states}
    for node in nodes:
        if node.op == "get_attr" and str(node.target) in given:
            made[node] = given[str(node.target)]
        elif node.op == "output":
            (ends,) = node.args
            following = (change.args[1] for change in changes.values())
            graph.output(tuple(made[cast("Node", value)] for value in (*ends, *following)))
        elif node.op != "placeholder" and node not in changes.values():
            made[node] = graph.node_copy(node, made.__getitem__)
    return GraphModule(module, graph, "Segment"), states
