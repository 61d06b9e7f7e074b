"""The backend of ``torch.compile``: places the graph of a module, and runs the placement in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from placeit.core.errors import UsageError
from placeit.session import optimize

__all__ = ["compile_graph"]


def compile_graph(
    graph: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Place a graph for :func:`torch.compile`, which finds this function by the name ``placeit``.

    Weights are fixed to the present ones, and results have no gradients.

    Args:
        graph: the graph of a module, or a part of it if the graph has breaks.
        example_inputs: values of its inputs, among them the module's weights.
        options: options of :func:`placeit.optimize`, such as ``devices`` and ``budget``.

    Raises:
        UsageError: sizes are dynamic.
        PlaceitError: as by :func:`placeit.optimize`.
    """
    if any(isinstance(value, torch.SymInt | int) for value in example_inputs):
        raise UsageError(
            "torch.compile makes a graph for any size, and a placement is for fixed sizes: give torch.compile the argument "
            "dynamic=False, and the graph is placed once for each size."
        )
    places = graph.graph.find_nodes(op="placeholder")
    weights = {number: example_inputs[number].detach() for number, node in enumerate(places) if _is_weight(node)}
    example = tuple(value for number, value in enumerate(example_inputs) if number not in weights)
    with torch._guards.tracing(None):
        placed = optimize(_Bound(graph, weights), example=example, **(options or {})).module

    def run(*args: Any) -> Any:
        return placed(*(value for number, value in enumerate(args) if number not in weights))

    return run


class _Bound(torch.nn.Module):
    """A graph with weights for some of its inputs, which are given by their numbers."""

    def __init__(self, graph: GraphModule, weights: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self.graph, self.numbers = graph, list(weights)
        for number, value in weights.items():
            self.register_buffer(f"weight_{number}", value)

    def forward(self, *inputs: torch.Tensor) -> Any:
        values = list(inputs)
        for number in self.numbers:
            values.insert(number, self.get_buffer(f"weight_{number}"))
        return self.graph(*values)


def _is_weight(node: Node) -> bool:
    """Return whether an input of a graph is a parameter or buffer of the module, by the expression that it is read from."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    text = str(name() if callable(name) else name)
    return "._parameters[" in text or "._buffers[" in text
