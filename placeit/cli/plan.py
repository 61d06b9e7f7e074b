"""``placeit plan``: assign the models of a fleet to its nodes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli.command import exit_code
from placeit.cli.terminal import Output, Terminal
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.workload.fleet_plan import FleetPlan

__all__ = ["EXAMPLES", "plan"]

EXAMPLES = """\b
Examples:
  placeit plan fleet.yaml
  placeit plan fleet.yaml --json | jq '.nodes[] | {name, models}'
"""


def plan(
    *,
    fleet: Annotated[Path, typer.Argument(metavar="FLEET", help="Fleet file (.yaml).")],
    terminal: Terminal,  # noqa: ARG001 (every command takes one)
) -> Output:
    """Assign the models of a fleet to its nodes, by given times.

    The file describes sites and the links between them, nodes of a few classes, and models: the seconds of a request on each
    class, given or measured by 'placeit run', sizes, limits on latency, and the requests that arrive at each site. Each model
    keeps its limit by prediction, weights fit in the memory of nodes, and requests in the bandwidth of links. A model that no
    node can hold is split over up to four. Nothing is run.

    If some requests cannot be placed, the output names them, with the rates and the limits at which all would be placed, and
    the exit code is 1.
    """
    from placeit.workload.fleet_plan import plan_fleet

    found = plan_fleet(fleet)
    shown = partial(_show, found=found)
    return Output({"fleet": str(fleet), **found.to_dict()}, shown, exit_code(failed=not found.placed), answer=found.reason)


def _show(console: Console, found: FleetPlan) -> None:
    rates = f"{found.factor:.3g} times these" if found.factor else text.NOTHING
    text.facts(console, {"plan": found.reason, "largest rates": rates})
    console.print()
    rows = [
        [
            one["name"],
            one["limit"] or "",
            text.rate(one["rate_per_s"]),
            text.rate(one["placed_per_s"]),
            text.percent(one["in_time"]),
        ]
        for one in found.models()
    ]
    text.table(console, ["model", "limit", "arriving", "placed", "in time"], rows, left=2)
    console.print()
    rows = [
        [node["name"], node["site"], node["class"], one["name"], text.rate(one["rate_per_s"]), text.percent(node["busy"])]
        for node in found.nodes()
        for one in node["models"]
    ]
    text.table(console, ["node", "site", "class", "model", "requests", "busy"], rows, left=4)
    if found.unplaced:
        console.print()
        rows = [[model, site, text.rate(rate), why] for model, site, rate, why in found.unplaced]
        text.table(console, ["not placed", "from", "requests", "why"], rows, left=2)
    console.print()
    text.paragraph(console, "In time is the predicted share of the requests that arrive which are answered within their limit.")
