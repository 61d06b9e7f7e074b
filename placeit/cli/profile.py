"""``placeit profile``: what each group of ops costs on each device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli import text
from placeit.cli.devices import link_dicts, show_links
from placeit.cli.options import SessionOptions
from placeit.cli.paths import check_outputs
from placeit.cli.terminal import Output, Terminal, jsonable, printable
from placeit.files import write_text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["EXAMPLES", "profile"]

EXAMPLES = """\b
Examples:
  placeit profile model.onnx --devices CPU@0,CPU@1
  placeit profile model.onnx --devices cluster.yaml --output costs.json
  placeit profile model.onnx --no-cache --max-groups 20
"""


def profile(
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also write the costs to a JSON file.")
    ] = None,
    options: SessionOptions,
    terminal: Terminal,
) -> Output:
    """Measure what ops cost on each device.

    A group of ops takes its time inside the whole model, and its cut time on top where it is cut off all its neighbours:
    layout conversions, lost fusion. Costs of described devices are estimates from their figures.
    """
    check_outputs(output, inputs=[options.model])
    with terminal.progress() as progress, options.session(progress) as session:
        costs, groups = session.costs, session.grouping.groups
        sizes = [len(members) for members in map(session.grouping.members, range(len(groups)))]
    cluster = costs.cluster
    names = cluster.names
    whole = dict(zip(names, costs.dispatch + costs.core.sum(axis=0), strict=True))
    data = {
        "model": str(options.model),
        "precision": options.precision.value,
        "graph": {"ops": len(session.model.graph), "edges": len(session.model.graph.edges), "groups": len(groups)},
        "devices": [
            {"name": device.name, "dispatch_s": dispatch, "whole_model_s": whole[device.name]}
            | {"emulated": device.emulated, "described": device.described}
            for device, dispatch in zip(cluster.devices, costs.dispatch.tolist(), strict=True)
        ],
        "groups": [
            {
                "name": groups.names[g],
                "kind": groups.kinds[g],
                "ops": sizes[g],
                "flops": groups.flops[g],
                "seconds": dict(zip(names, costs.core[g].tolist(), strict=True)),
                "cut_s": dict(zip(names, costs.cut[g].tolist(), strict=True)),
            }
            for g in range(len(groups))
        ],
        "links": link_dicts(cluster.links),
    }
    data = jsonable(data)
    if output is not None:
        write_text(output, json.dumps(data, indent=2, allow_nan=False) + "\n")

    def show(console: Console) -> None:
        heads = ("group", "kind", "ops", *names, *(f"cut {name}" for name in names))
        rows = [
            (groups.names[g], groups.kinds[g], str(sizes[g]), *map(text.seconds, [*costs.core[g], *costs.cut[g]]))
            for g in range(len(groups))
        ]
        cut = costs.cut.sum(axis=0)
        rows.append(("all", "", str(sum(sizes)), *map(text.seconds, [*costs.core.sum(axis=0), *cut])))
        rows.append(("dispatch of a segment", "", "", *map(text.seconds, costs.dispatch), *[""] * len(names)))
        text.table(console, heads, rows, left=2)
        if cluster.links:
            console.print()
            show_links(console, cluster.links)
        text.show_notes(console, cluster)
        if output is not None:
            console.print(f"\ncosts written to {printable(str(output))}")

    return Output(data, show)
