"""State in segments of PyTorch programs: buffers that a program changes. Each run computes their next values.

In a graph, a call of :data:`STATE_UPDATE` whose result no op reads stands for the change of a buffer. The call itself changes
nothing: each run of such a graph starts from the initial values.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch.fx import Graph, GraphModule, Node

__all__ = ["STATE_UPDATE", "state_updates", "with_buffer_updates", "with_states"]

STATE_UPDATE = torch.ops.aten.copy.default
"""The op that stands for the change of a buffer; its arguments are the buffer and the next value."""


def state_updates(module: torch.nn.Module) -> dict[str, Node]:
    """Return the calls of :data:`STATE_UPDATE` in a segment, by the name of the buffer."""
    if not isinstance(module, GraphModule):
        return {}
    calls = (node for node in module.graph.find_nodes(op="call_function", target=STATE_UPDATE) if not node.users)
    return {str(node.args[0].target): node for node in calls if isinstance(node.args[0], Node)}


def with_buffer_updates(module: GraphModule) -> GraphModule:
    """Return a segment that writes the next values of its states into its buffers, in the form that ``torch.export`` takes."""
    copied = GraphModule(module, copy.deepcopy(module.graph), "Segment")
    (end,) = copied.graph.find_nodes(op="output")
    for call in state_updates(copied).values():
        buffer = cast("Node", call.args[0])
        with copied.graph.inserting_after(buffer):
            value = copied.graph.call_function(torch.ops.aten.clone.default, (buffer,))
        buffer.replace_all_uses_with(value, value.__ne__)  # views of the buffer do not change with it
        end.prepend(call)
        call.target, call.args = torch.ops.aten.copy_.default, (buffer, call.args[1])
    copied.recompile()
    return copied


def with_states(module: GraphModule) -> tuple[GraphModule, dict[str, torch.Tensor]]:
    """Return a segment that takes its states as further inputs and returns their next values as further outputs.

    The second result maps the names of the states to their initial values.

    Args:
        module: a module from :meth:`placeit.backends.torch.model.TorchModel.segment`, which is not changed.
    """
    updates = state_updates(module)
    graph, new = Graph(), dict[Node, Node]()
    states = {name: module.get_buffer(name) for name in updates}
    nodes = list(module.graph.nodes)
    for node in nodes:
        if node.op == "placeholder":
            new[node] = graph.node_copy(node)
    state_inputs = {name: graph.placeholder(name) for name in states}
    for node in nodes:
        if node.op == "get_attr" and str(node.target) in state_inputs:
            new[node] = state_inputs[str(node.target)]
        elif node.op == "output":
            (results,) = node.args
            next_values = (update.args[1] for update in updates.values())
            graph.output(tuple(new[cast("Node", value)] for value in (*results, *next_values)))
        elif node.op != "placeholder" and node not in updates.values():
            new[node] = graph.node_copy(node, new.__getitem__)
    return GraphModule(module, graph, "Segment"), states
