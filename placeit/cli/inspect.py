"""``placeit inspect``: show the contents of a model, without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli.options import GroupOptions
from placeit.cli.terminal import Output, Terminal
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.backends.base import TensorSpec

__all__ = ["EXAMPLES", "inspect"]

_MAX_STATES = 2  # maximum number of states that are all listed

EXAMPLES = """\b
Examples:
  placeit inspect model.onnx
  placeit inspect bert.onnx --batch 1 --input-shape input_ids:1,128
  placeit inspect bert.onnx --inputs sentence.npz
  placeit inspect model.xml --groups
  placeit inspect model.onnx --json | jq .kinds
"""


def inspect(
    *,
    groups: Annotated[bool, typer.Option("--groups", help="List the groups and the ops in each.")] = False,
    options: GroupOptions,
    terminal: Terminal,  # noqa: ARG001 (every command takes one)
) -> Output:
    """Show the contents of a model.

    Inputs, outputs, ops of each kind with their floating-point operations, and the groups of ops that are placed together.
    """
    from placeit.planning.coarsen import LARGEST, coarsen

    model = options.load_with_inputs()
    grouping = coarsen(
        model.graph, max_groups=options.max_groups, keep_together=model.together, pairs=model.pairs, largest=LARGEST
    )
    counts = model.statistics()
    graph, grouped = model.graph, grouping.groups
    kinds = dict(sorted(Counter(graph.kinds).items(), key=lambda item: (-item[1], item[0])))
    flops = dict.fromkeys(kinds, 0.0)
    for kind, operations in zip(graph.kinds, graph.flops.tolist(), strict=True):
        flops[kind] += operations
    listed: list[dict[str, Any]] = [
        {
            "name": name,
            "kind": kind,
            "ops": list(grouping.members(g)),
            "flops": grouped.flops[g],
            "parameter_bytes": grouped.param_bytes[g],
        }
        for g, (name, kind) in enumerate(zip(grouped.names, grouped.kinds, strict=True))
    ]
    data = {
        "model": str(options.model),
        "inputs": [_tensor(spec) for spec in model.inputs],
        "outputs": [_tensor(spec) for spec in model.outputs],
        "states": [_tensor(spec) for spec in model.states],
        "graph": {
            "ops": len(graph),
            "edges": len(graph.edges),
            "groups": len(grouped),
            "group_edges": len(grouped.edges),
            "ops_with_constants": counts["layers"],
            "edges_with_constants": counts["layer_edges"],
        },
        "flops": counts["flops"],
        "parameters": counts["parameters"],
        "parameter_bytes": counts["parameter_bytes"],
        "kinds": kinds,
        "groups": listed if groups else None,
    }

    def show(console: Console) -> None:
        text.facts(
            console,
            {
                "model": str(options.model),
                "inputs": _tensors(model.inputs),
                "outputs": _tensors(model.outputs),
                **({"state": _states(model.states)} if model.states else {}),
                "ops": f"{len(graph)} (with constants: {counts['layers']})",
                "edges": f"{len(graph.edges)} (with constants: {counts['layer_edges']})",
                "groups": f"{len(grouped)}, joined by {len(grouped.edges)} edges",
                "compute": text.amount(counts["flops"], "FLOP"),
                "parameters": f"{text.amount(counts['parameters'])} in {text.amount(counts['parameter_bytes'], 'B')}",
            },
        )
        console.print()
        rows = [(kind, str(count), text.amount(flops[kind], "FLOP")) for kind, count in kinds.items()]
        text.table(console, ("kind", "ops", "compute"), rows)
        for item in listed if groups else ():
            flop, size = text.amount(item["flops"], "FLOP"), text.amount(item["parameter_bytes"], "B")
            console.print()
            text.paragraph(console, f"group of {len(item['ops'])} ops, {item['kind']}: {flop}, weights {size}", style="bold")
            for name in item["ops"]:
                console.print(f"  {text.printable(name)}")

    return Output(data, show)


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    sizes = None if spec.limits is None else spec.sizes()
    return {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype, "sizes": sizes}


def _tensors(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype} {text.shape(spec.sizes())}" for spec in specs)


def _states(specs: Sequence[TensorSpec]) -> str:
    """Return a list of a model's states, as text; of many, only the first and the last."""
    if len(specs) <= _MAX_STATES:
        return _tensors(specs)
    return f"{len(specs)} tensors, {_tensors(specs[:1])} to {_tensors(specs[-1:])}"
