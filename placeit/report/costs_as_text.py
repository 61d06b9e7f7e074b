"""Print estimates, measured costs and links for people."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from placeit.report import machine, text

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from placeit.core.cluster import Link
    from placeit.planning.profiled import Profiled
    from placeit.profiler.profile_report import ProfileReport
    from placeit.workbench.estimating import Estimate

__all__ = ["estimate", "links", "profile", "whole_model"]


def estimate(console: Console, found: Estimate) -> None:
    """Print the predicted times of a model on each device, and the errors of such predictions."""
    text.facts(console, {"best": f"{found.best.name}, by these predictions; placeit optimize measures it"})
    console.print()
    answers = [*found.devices, *([] if found.split is None else [found.split])]
    rows = [
        (
            answer.name,
            "cannot run there" if answer.seconds is None else text.seconds(answer.seconds),
            ", ".join(text.amount(used, "B") for used in answer.memory.values()),
            "" if answer.placement is None else answer.placement.ops_by_device,
        )
        for answer in answers
    ]
    text.table(console, ("device", "predicted", "memory", "ops"), rows)
    console.print()
    for name, error in found.errors.items():
        known = "unknown: only one model was profiled there"
        if error is not None:
            known = (
                f"{text.percent(error.median)} (median of {error.models} models, each predicted without it; worst "
                f"{text.percent(error.worst)})"
            )
        text.facts(console, {f"error on {name}": known})


def profile(console: Console, found: ProfileReport, files: Sequence[Path] = ()) -> None:
    """Print the costs of groups on devices, and the names of written files."""
    costs, groups = found.costs, found.grouping.groups
    figures = {} if (busy := machine.disturbance(costs.profiled)) is None else {"machine": busy}
    figures |= {"whole model": whole_model(found)}
    figures |= {} if costs.profiled is None else {"costs": _origin(costs.profiled)}
    figures |= {"compiled": compiled} if (compiled := machine.compiling(found.compiling)) else {}
    text.facts(console, figures | dict(zip(("written", "and"), map(str, files), strict=False)))
    console.print()
    names = costs.cluster.names
    sizes = [len(found.grouping.members(g)) for g in range(len(groups))]
    heads = ("group", "kind", "ops", *names, *(f"cut {name}" for name in names))
    rows = [
        (groups.names[g], groups.kinds[g], str(sizes[g]), *map(text.seconds, [*costs.core[g], *costs.cut[g]]))
        for g in range(len(groups))
    ]
    cut = costs.cut.sum(axis=0)
    rows.append(("all", "", str(sum(sizes)), *map(text.seconds, [*costs.core.sum(axis=0), *cut])))
    rows.append(("dispatch of a segment", "", "", *map(text.seconds, costs.dispatch), *[""] * len(names)))
    several = f" ({text.seconds(costs.hosts[-1])} on several)" if len(names) > 1 else ""
    rows.append((f"host of a request{several}", "", "", *map(text.seconds, costs.hosts[:-1]), *[""] * len(names)))
    rows.append(("load of all", "", "", *map(text.seconds, costs.load.sum(axis=0).clip(0.0)), *[""] * len(names)))
    spare = ["kind", "ops", *(f"cut {name}" for name in reversed(names))]
    text.table(console, heads, rows, left=2, spare=spare)
    if costs.cluster.links:
        console.print()
        links(console, costs.cluster.links)
    text.show_notes(console, costs.cluster)


def whole_model(found: ProfileReport) -> str:
    """Return a line with the time of the whole model on each device, by measured costs."""
    costs = found.costs
    return ", ".join(f"{name} {text.seconds(s)}" for name, s in zip(costs.cluster.names, costs.whole, strict=True))


def _origin(profiled: Profiled) -> str:
    """Return when costs were measured, how busy the machine was then, and how many cut costs are predicted."""
    from placeit.core.units import about_seconds

    ago = about_seconds(time.time() - profiled.at)
    when = f"measured {ago} ago (from the cache; --no-cache measures anew)" if profiled.cached else "measured now"
    load = f", while other processes kept {profiled.load:.1f} cores busy" if profiled.load is not None else ""
    if profiled.cut == profiled.groups:
        return f"{when}{load}"
    error = profiled.error
    off = "" if error is None else f", {text.percent(error)} of a group's time off by the cut costs of one another"
    return f"{when}{load}; cut costs of {profiled.cut} of {profiled.groups} groups, and predicted for the others{off}"


def links(console: Console, known: Mapping[tuple[str, str], Link]) -> None:
    """Print a table of links."""
    rows = [
        (src, dst, link.origin, text.amount(link.bandwidth, "B/s"), text.seconds(link.latency))
        if math.isfinite(link.bandwidth) or link.origin != "measured"
        else (src, dst, link.origin, "too high to measure", text.seconds(link.latency))
        for (src, dst), link in known.items()
    ]
    text.table(console, ("from", "to", "origin", "bandwidth", "latency"), rows, left=3)
