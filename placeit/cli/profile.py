"""``placeit profile``: the costs of each group of ops on each device."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli import text
from placeit.cli.devices import link_dicts, show_links
from placeit.cli.options import SessionOptions
from placeit.cli.paths import OutputFile, check_outputs
from placeit.cli.terminal import Output, Terminal, jsonable, printable
from placeit.core.files import write_text

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.planning.segments import Profiled

__all__ = ["EXAMPLES", "profile"]

EXAMPLES = """\b
Examples:
  placeit profile model.onnx --devices CPU@0,CPU@1
  placeit profile model.onnx --devices cluster.yaml --output costs.json
  placeit profile model.onnx --csv costs.csv
  placeit profile model.onnx --inputs x.npz
  placeit profile model.onnx --no-cache --max-groups 20
"""


def profile(
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also write the costs to a JSON file.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Also write them as a table: a row for each group and device.")
    ] = None,
    options: SessionOptions,
    terminal: Terminal,
) -> Output:
    """Measure the costs of ops on each device.

    The time of a group of ops is that inside the whole model; its cut time is added where it is cut off from its neighbours:
    layout conversions, lost fusion. Its load is the additional time while other devices work. Costs of described devices are
    estimates from their figures.
    """
    check_outputs(output, csv, inputs=options.files())
    with terminal.progress() as progress, options.session() as session:
        costs, groups = session.profile(check=True, progress=progress), session.grouping.groups
        sizes = [len(members) for members in map(session.grouping.members, range(len(groups)))]
    cluster = costs.cluster
    names = cluster.names
    whole = dict(zip(names, costs.dispatch + costs.core.sum(axis=0), strict=True))
    data = {
        "model": str(options.model),
        "precision": options.precision.value,
        "graph": {"ops": len(session.model.graph), "edges": len(session.model.graph.edges), "groups": len(groups)},
        "devices": [
            {"name": device.name, "dispatch_s": dispatch, "whole_model_s": whole[device.name], "read_s_per_byte": read}
            | {"emulated": device.emulated, "described": device.described}
            for device, dispatch, read in zip(cluster.devices, costs.dispatch.tolist(), costs.read.tolist(), strict=True)
        ],
        "groups": [
            {
                "name": groups.names[g],
                "kind": groups.kinds[g],
                "ops": sizes[g],
                "flops": groups.flops[g],
                "seconds": dict(zip(names, costs.core[g].tolist(), strict=True)),
                "cut_s": dict(zip(names, costs.cut[g].tolist(), strict=True)),
                "load_s": dict(zip(names, costs.load[g].tolist(), strict=True)),
            }
            for g in range(len(groups))
        ],
        "links": link_dicts(cluster.links),
        "profiled": _profiled_dict(costs.profiled),
    }
    data = jsonable(data)
    files = []
    if csv is not None:
        files.append(OutputFile(csv, "the table of costs", lambda: write_text(csv, _table(data["groups"]))))
    if output is not None:
        content = json.dumps(data, indent=2, allow_nan=False) + "\n"
        files.append(OutputFile(output, "the list of costs", lambda: write_text(output, content)))

    def show(console: Console) -> None:
        heads = ("group", "kind", "ops", *names, *(f"cut {name}" for name in names))
        rows = [
            (groups.names[g], groups.kinds[g], str(sizes[g]), *map(text.seconds, [*costs.core[g], *costs.cut[g]]))
            for g in range(len(groups))
        ]
        cut = costs.cut.sum(axis=0)
        rows.append(("all", "", str(sum(sizes)), *map(text.seconds, [*costs.core.sum(axis=0), *cut])))
        rows.append(("dispatch of a segment", "", "", *map(text.seconds, costs.dispatch), *[""] * len(names)))
        rows.append(("load of all", "", "", *map(text.seconds, costs.load.sum(axis=0).clip(0.0)), *[""] * len(names)))
        text.table(console, heads, rows, left=2)
        if cluster.links:
            console.print()
            show_links(console, cluster.links)
        text.show_notes(console, cluster)
        if costs.profiled is not None:
            console.print(f"\n{_said(costs.profiled)}")
        for path in (output, csv):
            if path is not None:
                console.print(f"\ncosts  {printable(str(path))}")

    return Output(data, show, files=files)


def _table(groups: Sequence[Mapping[str, Any]]) -> str:
    """Write the costs as CSV; what a device cannot run has no times."""
    import csv

    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("group", "kind", "ops", "flops", "device", "seconds", "cut_s", "load_s"))
    for group in groups:
        for device, seconds in group["seconds"].items():
            times = () if seconds is None else (seconds, group["cut_s"][device], group["load_s"][device])
            table.writerow((group["name"], group["kind"], group["ops"], group["flops"], device, *times))
    return text.getvalue()


def _profiled_dict(profiled: Profiled | None) -> dict[str, Any] | None:
    if profiled is None:
        return None
    at = datetime.fromtimestamp(profiled.at, UTC).isoformat(timespec="seconds")
    age = max(0.0, time.time() - profiled.at)
    return {"at": at, "age_s": age, "other_load_cores": profiled.load, "cached": profiled.cached}


def _said(profiled: Profiled) -> str:
    """Say how old costs are, and what else the machine did when they were measured."""
    from placeit.core.units import about_seconds

    ago = about_seconds(time.time() - profiled.at)
    when = f"Measured {ago} ago (from the cache; --no-cache measures anew)" if profiled.cached else "Measured now"
    load = f", while other processes kept {profiled.load:.1f} cores busy" if profiled.load is not None else ""
    return f"{when}{load}."
