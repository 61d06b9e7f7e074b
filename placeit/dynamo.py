"""The backend of ``torch.compile``: places the graph of a module, and runs the placement in its place."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from placeit.backends.torch.model import load
from placeit.core.errors import UsageError
from placeit.core.nearest import nearest
from placeit.session import optimize

__all__ = ["compile_graph"]


def compile_graph(
    graph: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Place a graph for :func:`torch.compile`, which finds this function by the name ``placeit``.

    Weights keep the values that they have at the first call with them, a later change of which is an error, and results have no
    gradients.

    Args:
        graph: the graph of a module, or a part of it if the graph has breaks.
        example_inputs: values of its inputs, among them the module's weights.
        options: options of :func:`placeit.optimize`, such as ``devices`` and ``budget``.

    Raises:
        UsageError: sizes are dynamic, the graph changes buffers of the module, or torch.autocast is on.
        PlaceitError: an error of :func:`placeit.optimize`.
    """
    if any(isinstance(value, torch.SymInt | int) for value in example_inputs):
        raise UsageError(
            "torch.compile makes a graph for any size, and a placement is for fixed sizes: give torch.compile the argument "
            "dynamic=False, and the graph is placed once for each size."
        )
    if torch.is_autocast_enabled("cpu"):
        raise UsageError(
            "A placement is not under torch.autocast: call the compiled module outside of it, and for lower precision give "
            "torch.compile options={'precision': 'bf16'}."
        )
    known = [name for name in inspect.signature(optimize).parameters if name not in ("model", "example", "kwargs")]
    if unknown := next((name for name in options or {} if name not in known), None):
        raise UsageError(f"placeit has no option '{unknown}'{nearest(unknown, known)}.")
    placeholders = graph.graph.find_nodes(op="placeholder")
    weight_names = {number: name for number, node in enumerate(placeholders) if (name := _weight_name(node)) is not None}
    input_numbers = [number for number in range(len(placeholders)) if number not in weight_names]
    placements: dict[tuple[int, ...], tuple[list[int], Callable[..., Any]]] = {}

    def placed(args: Sequence[Any]) -> Callable[..., Any]:
        """Return the placement for the weights in ``args``: modules of one class share a graph, and differ in their weights."""
        weights = {number: args[number] for number in weight_names}
        addresses = tuple(weight.data_ptr() for weight in weights.values())  # not reused, as placements keep their weights
        versions = [0 if weight.is_inference() else weight._version for weight in weights.values()]
        if addresses not in placements:
            example = tuple(args[number] for number in input_numbers)
            placements[addresses] = versions, _place(graph, weights, example, options or {})
        before, placement = placements[addresses]
        if versions != before:
            changed = next(name for name, old, new in zip(weight_names.values(), before, versions, strict=True) if old != new)
            raise UsageError(
                f"The weight '{changed}' has changed since the module was placed, and the placement has its former values: "
                "call torch._dynamo.reset(), and the next call places the module anew."
            )
        return placement

    def run(*args: Any) -> Any:
        return placed(args)(*(args[number] for number in input_numbers))

    placed(example_inputs)
    return run


def _place(
    graph: GraphModule, weights: Mapping[int, torch.Tensor], example: tuple[Any, ...], options: Mapping[str, Any]
) -> Callable[..., Any]:
    with torch._guards.tracing(None):
        model = load(_Bound(graph, weights), example, name="graph")
        if model.lowered.state:
            raise UsageError(
                "The graph changes buffers of the module, which a placement cannot: leave this part out of torch.compile."
            )
        return optimize(model, **options).module


class _Bound(torch.nn.Module):
    """A graph with weights bound to some of its inputs, by their numbers."""

    def __init__(self, graph: GraphModule, weights: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self.graph, self.numbers = graph, list(weights)
        for number, value in weights.items():
            self.register_buffer(f"weight_{number}", value.detach())

    def forward(self, *inputs: torch.Tensor) -> Any:
        values = list(inputs)
        for number in self.numbers:
            values.insert(number, self.get_buffer(f"weight_{number}"))
        return self.graph(*values)


def _weight_name(node: Node) -> str | None:
    """Return the name of the parameter or buffer that an input of a graph is, by the expression it is read from; else None."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    text = str(name() if callable(name) else name)
    is_weight = "._parameters[" in text or "._buffers[" in text
    return ".".join(re.findall(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", text)) if is_weight else None
