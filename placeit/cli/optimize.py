"""``placeit optimize``: find the fastest placement by measuring."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli import text
from placeit.cli.options import CheckedOptions, SeedOption, cost_cache
from placeit.cli.paths import OutputFile, check_outputs, named_files
from placeit.cli.terminal import Output, Terminal
from placeit.core.interrupts import INTERRUPTED

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.optimizer.result import Candidate, Optimized, Unplanned

__all__ = ["EXAMPLES", "optimize", "show"]

EXAMPLES = """\b
Examples:
  placeit optimize model.onnx --devices CPU@0,CPU@1
  placeit optimize model.onnx --budget 20 --output placement.json
  placeit optimize model.onnx --inputs x.npz
  placeit optimize model.onnx --devices cluster.yaml --placer heft --placer annealing:evaluations=200000
  placeit optimize model.onnx --devices cluster.yaml --objective energy
  placeit optimize model.onnx --devices CPU@0,GPU.0 --pin 'conv1*=CPU@0'
  placeit optimize model.onnx --devices CPU@0,CPU@1 --memory CPU@0=2GB
  placeit optimize model.onnx --start placement.json --output better.json
  placeit optimize model.onnx --budget 600 --resume search.jsonl
  placeit optimize model.onnx --devices CPU --compare-precisions
"""


def optimize(
    *,
    placer: Annotated[
        list[str] | None,
        typer.Option(
            "--placer", metavar="NAME[:OPTION=VALUE,...]", help="Placer to use; repeatable. Default: those marked * below."
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option("--objective", metavar="NAME", help="What to minimise: latency, total-cost or energy.")
    ] = "latency",
    budget: Annotated[
        float,
        typer.Option("--budget", metavar="SECONDS", help="Time limit, without the first compilation of placeit's kernels."),
    ] = 60.0,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            "--pin", metavar="PATTERN=DEVICE", help="Device of the ops whose names match, as in 'conv1*=CPU@0'; repeatable."
        ),
    ] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option("--memory", metavar="DEVICE=SIZE", help="Memory limit for weights, as in CPU@0=2GB; repeatable."),
    ] = None,
    start: Annotated[
        list[Path] | None,
        typer.Option("--start", metavar="FILE", help="Placement on the same devices to measure and to start from; repeatable."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="FILE", help="Store measurements in a file, and continue from those already in it."),
    ] = None,
    seed: SeedOption = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write the placement; default: MODEL.placement.json."),
    ] = None,
    compare_precisions: Annotated[
        bool,
        typer.Option("--compare-precisions", help="Also measure single devices in another precision (bf16, f16 or f32)."),
    ] = False,
    options: CheckedOptions,
    terminal: Terminal,
) -> Output:
    """Find the fastest placement by measuring.

    Candidates are each single-device placement, the whole CPU as its runtime uses it by itself (if devices are parts of it),
    the placers' proposals, and the results of a search among plans. They are measured against each other; if no placement on
    several devices is faster than the best single device, or better by another objective, that device is the answer. Energy is
    computed by a power model from measured times. The answer is written to a file, by default beside the model. Ctrl-C
    ends the search and keeps the best placement so far. A candidate that fails, or has wrong outputs, is excluded; the table
    says why.
    """
    path = options.model.parent / f"{options.model.name}.placement.json" if output is None else output
    beside_nothing = output is None and not path.parent.is_dir()  # then there is no model, which reading it will say
    check_outputs(None if beside_nothing else path, inputs=[*options.files(), *named_files(placer), *(start or ()), resume])
    # imported only now, because it takes a second
    from placeit.devices.caps import parse_caps
    from placeit.devices.clusterfile import find_cluster
    from placeit.optimizer.optimize import DEFAULT_PLACERS
    from placeit.optimizer.optimize import optimize as find
    from placeit.planning.pins import parse_pins

    pins, caps = parse_pins(pin or ()), parse_caps(memory or ())
    cluster = find_cluster(options.devices)
    model = options.load()
    inputs = options.arrays(model)
    with terminal.progress() as progress:
        found = find(
            model,
            cluster,
            placers=placer or DEFAULT_PLACERS,
            budget=budget,
            seed=seed,
            objective=objective,
            max_groups=options.max_groups,
            precision=options.precision.value,
            tolerance=options.tolerance,
            inputs=inputs,
            compare_precisions=compare_precisions,
            cache=cost_cache(options.no_cache),
            progress=progress,
            pins=pins,
            memory=caps,
            start=start,
            resume=resume,
        )

    def shown(console: Console) -> None:
        show(console, found, path)
        text.show_notes(console, cluster)

    data = found.to_dict(path) | {"emulated": text.emulated(cluster)}
    file = OutputFile(path, "the placement", lambda: found.save(path))
    return Output(data, shown, INTERRUPTED if found.interrupted else 0, [file])


def show(console: Console, found: Optimized, path: Path) -> None:
    """Print what was found, a table for each race, and why it was chosen."""
    best = found.best_single
    others = [candidate for candidate in found.candidates if candidate.placer == "single" and candidate is not best]
    singles = [*([] if best is None else [best]), *others]
    objective, modelled = found.objective, not found.objective.is_makespan
    heads = ["candidate (placer)", "devices (ops)", "segments", "simulated", "measured", "95 % interval"]
    heads += [f"{objective.name} simulated", f"{objective.name} by measured times"] if modelled else []
    heads += [f"speed-up over {single.name}" for single in singles]
    heads += ["output error", "simulator off by"]

    def row(candidate: Candidate) -> list[str]:
        return [
            _name(candidate) + (" *" if candidate is found.chosen else ""),
            text.ops_by_device(candidate.placement.counts()),
            str(candidate.segments),
            text.seconds(candidate.simulated_s),
            text.seconds(None if candidate.measured is None else candidate.measured.median),
            text.interval(candidate.measured),
            *(_values(candidate, objective.unit) if modelled else ()),
            *(_speedup(found, single, candidate) for single in singles),
            text.error(candidate.output_error),
            _simulator_error(candidate),
        ]

    sections: dict[str, list[list[str]]] = {}
    for candidate in (*found.candidates, *(other.row for other in found.precisions)):
        sections.setdefault(_section(found, candidate), []).append(row(candidate))
    spare = ["simulator off by", "output error", "segments", *(f"speed-up over {single.name}" for single in others)]
    spare += ["95 % interval", *(["simulated"] if modelled else [])]
    every = [cells for rows in sections.values() for cells in rows]
    shown = [i for i in range(len(heads)) if i < 3 or any(cells[i] != text.NOTHING for cells in every)]
    sections = {title: [[cells[i] for i in shown] for cells in rows] for title, rows in sections.items()}
    text.tables(console, [heads[i] for i in shown], sections, left=2, spare=spare)
    failed = {_name(one): one.failed for one in (*found.candidates, *(other.row for other in found.precisions))}
    text.show_failures(console, failed | {_name(one): one.failed for one in found.unplanned})
    text.show_failures(console, {_name(candidate): candidate.not_run for candidate in found.candidates}, title="not run")
    text.show_unchecked(console, (candidate.output_error for candidate in found.candidates))
    for candidate in found.candidates:
        if candidate.plain:
            note = f"{candidate.name} is a plain device: all core sets together, as their runtime uses them without placeit."
            text.paragraph(console, note)
    console.print()
    text.facts(console, _facts(found) | {"placement": str(path)})


def _section(found: Optimized, candidate: Candidate) -> str:
    """Title of the table that a candidate stands in: each race has its own, since times of different races do not compare."""
    if candidate.failed is not None:
        return "failed"
    if candidate.race is None:
        if candidate.measured is None:
            return "not measured"
        if candidate.earlier:
            return "measured by an earlier search; times are not comparable with the others"
        return "run one after the other, because time was short; times are hardly comparable"
    race = found.races[candidate.race]
    earlier = ", earlier; times are not comparable with those above" if race is not found.races[-1] else ""
    return f"race {candidate.race + 1}: {race.what}, {race.rounds} round{'s' if race.rounds != 1 else ''}{earlier}"


def _facts(found: Optimized) -> dict[str, str]:
    """Sum up; what was not measured is not mentioned."""
    errors, best, error = found.simulator_error, found.best_single, found.chosen.output_error
    described = [device.name for device in found.cluster.devices if device.described]
    costs = "by measured costs" if not described else f"by costs that are described for {', '.join(described)}"
    if len(described) == len(found.cluster):
        costs = "by the figures of the described devices"
    limits = ", ".join(f"{text.amount(held, 'B')} on {name}" for name, held in found.memory.items())
    lines = {
        "chosen": f"{_name(found.chosen)}, marked * above",
        "why": found.reason,
        "objective": None if found.objective.note is None else f"{found.objective.name}: {found.objective.note}",
        "speed-up": None
        if found.speedup is None or best is None or found.chosen is best
        else f"{text.ratio(found.speedup)} over {best.name}",
        "output error": None if error is None else f"{text.error(error)} (relative to the largest output of the uncut model)",
        "precisions": "; ".join(_precisions(found)) or None,
        "lower bound": None
        if math.isnan(found.bound_s) or len(found.cluster) == 1
        else f"{text.seconds(found.bound_s)} on {', '.join(found.cluster.names)}, ignoring cut costs, {costs}",
        "simulator": None
        if errors is None
        else f"mean error {text.percent(errors.get('mape'))}, Pearson {_figure(errors.get('pearson'))}, "
        f"Spearman {_figure(errors.get('spearman'))}",
        "budget": f"{found.spent_s:.1f} s of {found.asked_s:g} s{', ended by Ctrl-C' if found.interrupted else ''}",
        "compiling": f"{found.compiling_s:.1f} s of that, not limited by the budget" if found.compiling_s >= 0.05 else None,
        "pinned": ", ".join(f"{ops} to {device}" for ops, device in found.pins.items()) or None,
        "memory": f"at most {limits}" if limits else None,
    }
    return {name: line for name, line in lines.items() if line is not None}


def _precisions(found: Optimized) -> Iterator[str]:
    """Say what another precision would take, over the same device in the precision that was asked for."""
    for other in found.precisions:
        measured = other.row.measured
        if measured is None:
            yield f"{other.row.name} {'was not measured' if other.row.failed is None else 'failed, see above'}"
            continue
        share = "" if other.ratio is None else f", {text.ratio(other.ratio)} of the time of {other.of}"
        yield f"{other.row.name} takes {text.seconds(measured.median)}{share}; not a candidate"
    yield from found.without_precisions


def _name(candidate: Candidate | Unplanned) -> str:
    """Name of a candidate, and of the placer that proposed it unless that is the name or a part of it."""
    return candidate.name if candidate.placer in candidate.name else f"{candidate.name} ({candidate.placer})"


def _values(candidate: Candidate, unit: str) -> tuple[str, str]:
    """Objective of a candidate: by its simulated schedule, and by the times of its runs."""
    value = candidate.value
    return (
        text.amount(candidate.simulated_value, unit, least=-3),
        text.amount(None if value is None else value.median, unit, least=-3),
    )


def _speedup(found: Optimized, single: Candidate, candidate: Candidate) -> str:
    """Speed-up over a single device, where the two were measured in the same race."""
    ratio = found.speedup_over(single, candidate)
    return text.NOTHING if ratio is None else f"{ratio.ratio:.2f}"


def _simulator_error(candidate: Candidate) -> str:
    if candidate.measured is None or candidate.simulated_s is None:
        return text.NOTHING
    return f"{candidate.simulated_s / candidate.measured.median - 1:+.1%}".replace("%", " %")


def _figure(value: float | None) -> str:
    return text.NOTHING if value is None else f"{value:.3f}"
