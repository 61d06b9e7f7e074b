"""``placeit optimize``: the placement that is measured to be fastest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli import text
from placeit.cli.command import INTERRUPTED
from placeit.cli.options import SeedOption, SessionOptions, cost_cache, parse_shapes
from placeit.cli.paths import check_outputs
from placeit.cli.terminal import Output, Terminal

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.optimize import Candidate, Optimized

__all__ = ["EXAMPLES", "optimize"]

EXAMPLES = """\b
Examples:
  placeit optimize model.onnx --devices CPU@0,CPU@1
  placeit optimize model.onnx --budget 20 --output placement.json
  placeit optimize model.onnx --devices cluster.yaml --placer heft --placer annealing:evaluations=200000
  placeit optimize model.onnx --devices cluster.yaml --objective energy
"""

_OBJECTIVES = {
    "total-cost": "total-cost: seconds that devices and links are busy, in sum",
    "energy": "energy: joules by the power model, from busy times; joules themselves were not measured",
}


def optimize(
    *,
    placer: Annotated[
        list[str] | None,
        typer.Option("--placer", metavar="NAME[:OPTION=VALUE,...]", help="Placer to ask; repeatable. Several without it."),
    ] = None,
    objective: Annotated[
        str, typer.Option("--objective", metavar="NAME", help="What to minimise: latency, total-cost or energy.")
    ] = "latency",
    budget: Annotated[float, typer.Option("--budget", metavar="SECONDS", help="Time for all of it.")] = 60.0,
    seed: SeedOption = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write the placement; MODEL.placement.json here without it."
        ),
    ] = None,
    options: SessionOptions,
    terminal: Terminal,
) -> Output:
    """Find the fastest placement by measuring.

    Candidates are every single device, what the placers propose, and what the search over segments finds. They are measured
    against each other; if none is faster than the best single device, or better by another objective, that device is the
    answer. Energy is that of a power model, from measured times. The answer is written to a file. Ctrl-C ends the search and
    keeps the best placement so far.
    """
    path = Path(f"{options.model.stem}.placement.json") if output is None else output
    check_outputs(path, inputs=[options.model])
    # imported only now, because it takes a second
    from placeit.clusterfile import find_cluster
    from placeit.optimize import DEFAULT_PLACERS
    from placeit.optimize import optimize as find

    cluster = find_cluster(options.devices)
    with terminal.progress() as progress:
        found = find(
            options.model,
            cluster,
            placers=placer or DEFAULT_PLACERS,
            budget=budget,
            seed=seed,
            objective=objective,
            input_shapes=parse_shapes(options.input_shape),
            batch=options.batch,
            max_groups=options.max_groups,
            precision=options.precision.value,
            cache=cost_cache(options.no_cache),
            progress=progress,
        )
    found.save(path)

    def show(console: Console) -> None:
        _show(console, found, path)
        text.show_notes(console, cluster)

    data = found.to_dict(path) | {"emulated": text.emulated(cluster)}
    return Output(data, show, INTERRUPTED if found.interrupted else 0)


def _show(console: Console, found: Optimized, path: Path) -> None:
    singles = [candidate for candidate in found.candidates if candidate.placer == "single"]
    heads = ["candidate (placer)", "devices (ops)", "segments", "simulated", "measured", "95 % interval"]
    modelled = found.objective != "latency"
    heads += [f"{found.objective} simulated", f"{found.objective} by measured times"] if modelled else []
    heads += [f"speed-up over {single.name}" for single in singles]
    rows = [
        (
            _name(candidate) + (" *" if candidate is found.chosen else ""),
            text.ops_by_device(candidate.placement.counts()),
            str(candidate.segments),
            text.seconds(candidate.simulated_s),
            text.seconds(None if candidate.measured is None else candidate.measured.median),
            text.interval(candidate.measured),
            *(_values(candidate, found.unit) if modelled else ()),
            *(_speedup(single, candidate) for single in singles),
            text.error(candidate.output_error),
            _simulator_error(candidate),
        )
        for candidate in found.candidates
    ]
    text.table(console, [*heads, "output error", "simulator off by"], rows, left=2)
    errors = found.simulator_error or {}
    best = None if found.best_single is None else found.best_single.name
    lines = {
        "chosen": f"{_name(found.chosen)}, marked * above",
        "why": found.reason,
        **({"objective": _OBJECTIVES[found.objective]} if modelled else {}),
        "speed-up": f"{text.ratio(found.speedup)} over {best}" if found.speedup is not None else text.NOTHING,
        "bound": f"{text.seconds(found.bound_s)}: no placement can be faster by the costs measured, were cutting free",
        "simulator": f"mean error {text.percent(errors.get('mape'))}, Pearson {_figure(errors.get('pearson'))}, "
        f"Spearman {_figure(errors.get('spearman'))}",
        "budget": f"{found.spent_s:.1f} s of {found.asked_s:g} s{', ended by Ctrl-C' if found.interrupted else ''}",
        "placement": f"written to {path}",
    }
    console.print()
    text.facts(console, lines)


def _name(candidate: Candidate) -> str:
    """Name of a candidate, and of the placer that proposed it unless that is the name or a part of it."""
    return candidate.name if candidate.placer in candidate.name else f"{candidate.name} ({candidate.placer})"


def _values(candidate: Candidate, unit: str) -> tuple[str, str]:
    """Objective of a candidate: by its simulated schedule, and by the times of its runs."""
    value = candidate.value
    return (
        text.amount(candidate.simulated_value, unit, least=-3),
        text.amount(None if value is None else value.median, unit, least=-3),
    )


def _speedup(single: Candidate, candidate: Candidate) -> str:
    """Speed-up over a single device, of medians: the two need not have been measured in the same rounds."""
    if single.measured is None or candidate.measured is None:
        return text.NOTHING
    return f"{single.measured.median / candidate.measured.median:.2f}"


def _simulator_error(candidate: Candidate) -> str:
    if candidate.measured is None:
        return text.NOTHING
    return f"{candidate.simulated_s / candidate.measured.median - 1:+.1%}".replace("%", " %")


def _figure(value: float | None) -> str:
    return text.NOTHING if value is None else f"{value:.3f}"
