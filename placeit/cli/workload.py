"""Workloads of several models on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from placeit.cli.command import exit_code, was_given
from placeit.cli.options import CheckedOptions, cost_cache
from placeit.cli.paths import OutputFile, check_outputs
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import UsageError
from placeit.core.units import percentage
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.workload.optimize import PlacedWorkload, Together

__all__ = ["is_workload", "optimize_workload"]

_OF_ONE_MODEL = (
    *("placer", "policy", "objective", "in_flight", "pin", "resume", "record", "page", "live"),
    *("compare_precisions", "pareto", "input_shape", "batch", "state", "context", "texts", "logits", "trust", "inputs"),
)
"""Options of 'placeit optimize' that a workload does not take."""


def is_workload(path: Path) -> bool:
    """Return whether a path names a workload file, by its suffix."""
    return path.suffix.lower() in (".yaml", ".yml")


def optimize_workload(
    options: CheckedOptions,
    output: Path | None,
    budget: float,
    *,
    memory: Sequence[str],
    start: Sequence[Path],
    rates: Sequence[str],
    predict: bool,
    seed: int,
    terminal: Terminal,
) -> Output:
    """Place the models of a workload together; see :func:`placeit.cli.optimize.optimize`."""
    from placeit.devices.caps import parse_caps
    from placeit.workbench.options import Constraints
    from placeit.workload.entries import Workload
    from placeit.workload.optimize import optimize_workload

    if given := [f"--{name.replace('_', '-')}" for name in _OF_ONE_MODEL if was_given(name)]:
        raise UsageError(f"{given[0]} is about one model, and {options.model} is a workload: leave it out.")
    workload = Workload.load(options.model)
    workload = workload.at(_rates(rates, [entry.name for entry in workload]))
    path = output or options.model.with_name(f"{options.model.stem}.placed.yaml")
    if len(start) > 1:
        raise UsageError("One plan of a workload serves at a time: give --start once.")
    before = Workload.load(start[0]).placed() if start else None
    inputs = [*options.files(), *workload.files(), *(before.files() if before is not None else ())]
    check_outputs(path, *workload.placements(path), inputs=inputs)
    with terminal.progress() as progress:
        found = optimize_workload(
            workload,
            options.reach(),
            budget=budget,
            seed=seed,
            start=before,
            measure=not predict,
            progress=progress,
            precision=options.precision.value,
            constraints=Constraints({}, parse_caps(memory), options.max_groups, options.tolerance),
            cache=cost_cache(options.no_cache),
        )
    files = [] if found.chosen is None else [OutputFile(path, "the placed workload", partial(found.save, path))]
    code = exit_code(interrupted=found.interrupted, failed=found.chosen is None)
    written = {"workload_file": None if found.chosen is None else str(path)}
    answer = f"{'nothing' if found.chosen is None else found.chosen.name}: {found.reason}"
    shown = partial(_show, found=found, path=path, devices=options.devices)
    return Output({"schema": "placeit.workload/1", **found.to_dict(), **written}, shown, code, files, answer)


def only_rate(rates: Sequence[str] | None) -> float | None:
    """Parse ``--rate`` for a single model. Raises UsageError."""
    if not rates:
        return None
    try:
        (rate,) = map(float, rates)
    except ValueError:
        raise UsageError(f"--rate is {', '.join(rates)}: give one number of requests per second.") from None
    return rate


def _rates(rates_given: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Parse ``--rate`` for a workload: rates by the names of its models. Raises UsageError."""
    rates = {}
    for text_ in rates_given:
        name, equals, rate = text_.rpartition("=")
        try:
            rates[name] = float(rate if equals else "")
        except ValueError:
            raise UsageError(f"--rate is '{text_}': give NAME=PER_SECOND, such as {names[0]}=20.") from None
    return rates


def _show(console: Console, found: PlacedWorkload, path: Path, devices: str | None) -> None:
    facts: dict[str, str | Sequence[str]] = {
        "chosen": "nothing" if found.chosen is None else found.chosen.name,
        "why": found.reason,
        "largest rates": f"{found.factor:.2f} times these, if placed as predicted" if found.factor else "none (predicted)",
    }
    if found.start is not None and found.chosen is not None:
        facts["moves"] = ", ".join(found.chosen.moves) or "none"
    if found.chosen is not None:
        facts["placed"] = str(path)
        facts["next"] = ["placeit", "serve", str(path), *([] if devices is None else ["-d", devices])]
    text.facts(console, facts)
    console.print()
    heads = ["model", "placement", "load", "limit", "predicted", "measured", "95 % interval", "error", "kept"]
    text.tables(console, heads, {_title(found, way): _rows(found, way) for way in found.every}, left=4, spare=["error", "load"])
    _show_interference(console, found)
    text.paragraph(console, "Predicted and measured are the percentiles that are limited, p95 without a limit.")
    text.show_notes(console, found.cluster)


def _show_interference(console: Console, found: PlacedWorkload) -> None:
    """Print by how much models slowed each other, if that was measured."""
    if not found.interference.pairs:
        return
    rows = [
        [*(f"{name} on {device}" for name, device in places), f"{factor:.2f}"]
        for pair in found.interference.pairs
        for *places, factor in pair.both_ways
    ]
    console.print()
    text.tables(console, ["model", "beside", "slowdown"], {"slowdown of models on different devices": rows}, left=2)
    error = found.interference.error
    off = "" if error is None else f", which is off by {text.percent(error)} in the median"
    text.paragraph(console, f"Other pairs of devices without a common core have the mean of such pairs{off}.")


def _title(found: PlacedWorkload, way: Together) -> str:
    how = "" if way.kept else ", limits not kept"
    return f"{way.name}{' *' if way is found.chosen else ''}{how}"


def _rows(found: PlacedWorkload, way: Together) -> list[list[str]]:
    rows = []
    for k, (entry, option) in enumerate(zip(found.workload, way.options, strict=True)):
        measured, error = None if way.measured is None else way.measured[k], found.error(way, k)
        at = entry.limited.at
        rows.append(
            [
                entry.name,
                option.name,
                entry.load,
                "" if entry.limit is None else str(entry.limit),
                text.seconds(at(way.predicted[k])),
                text.seconds(None if measured is None else at(measured)),
                text.NOTHING if measured is None or measured.ci[1] == inf else " .. ".join(map(text.seconds, measured.ci)),
                text.NOTHING if error is None else percentage(error, "+.0%"),
                "yes" if way.points[k].kept else "no",
            ]
        )
    return rows
