"""``placeit compare``: placements against each other and against each single-device placement, in one race."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli import text
from placeit.cli.command import FAILED
from placeit.cli.options import CheckedOptions, LengthOptions, SeedOption
from placeit.cli.placements import naming, open_session
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import UsageError
from placeit.core.interrupts import INTERRUPTED

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.core.placement import Placement
    from placeit.optimizer.entries import Entry
    from placeit.planning.segments import Plan
    from placeit.runtime.measure import Ratio
    from placeit.session import Session

__all__ = ["EXAMPLES", "compare"]

EXAMPLES = """\b
Examples:
  placeit compare model.onnx -p a.json -p b.json --devices CPU@0,CPU@1
  placeit compare model.onnx -p placement.json --runs 100
  placeit compare model.onnx -p placement.json --duration 20 --warmup 5
"""


def compare(
    *,
    placement: Annotated[
        list[Path] | None,
        typer.Option("--placement", "-p", metavar="FILE", help="Placement to compare; repeatable.", show_default=False),
    ] = None,
    length: LengthOptions,
    seed: SeedOption = 0,
    options: CheckedOptions,
    terminal: Terminal,
) -> Output:
    """Race placements against each single-device placement.

    Each round runs every placement, and the whole model on each device, once, in a new random order, so that a machine that
    slows down slows all of them down. A speed-up is a ratio of times, paired by round, with its 95 % interval. A placement that
    fails, or has wrong outputs, is excluded, with the reason; the others are compared, and the exit code is 1. Ctrl-C ends
    the race and keeps the results so far.
    """
    from placeit.optimizer.entries import measured_median
    from placeit.optimizer.races import race_all
    from placeit.runtime.measure import faster

    runs = length.rounds()
    files = placement or []
    if len({path.resolve() for path in files}) < len(files):
        raise UsageError("--placement names the same file twice.")
    with terminal.progress() as progress, open_session(options, files) as (session, placements):
        session.profile(progress=progress)
        named = dict(zip(map(str, files), placements, strict=True))
        alone = {name: home for name, given in named.items() if (home := session.home_of(given)) is not session}
        plans = _candidates(session, {name: given for name, given in named.items() if name not in alone})
        entries, interrupted = race_all(
            session,
            plans,
            alone,
            rounds=runs,
            duration=length.duration,
            warmup=length.warmup,
            seed=seed,
            progress=progress,
        )
        cluster = session.cluster
        counts = {entry.name: entry.home(session).placement(entry.groups).counts() for entry in entries}
    singles = [entry.name for entry in entries if entry.name not in named]
    entries.sort(key=lambda entry: (entry.failed is not None, measured_median(entry)))
    by_name = {entry.name: entry for entry in entries}

    def speedups(entry: Entry) -> dict[str, Ratio | None]:
        mine, others = entry.measured, {single: by_name[single].measured for single in singles}
        return {single: None if mine is None or other is None else faster(other, mine) for single, other in others.items()}

    def row(entry: Entry) -> dict[str, Any]:
        measured, error = entry.measured, entry.output_error
        return {
            "name": entry.name,
            "placement_file": None if entry.name in singles else entry.name,
            "segments": text.programs(entry.plan),
            "devices": counts[entry.name],
            "simulated_s": entry.simulated_s,
            "measured_s": None if measured is None else measured.median,
            "p95_s": None if measured is None else measured.p95,
            "ci_s": [None, None] if measured is None else [measured.ci_low, measured.ci_high],
            "speedup_over": {
                single: None if ratio is None else {"ratio": ratio.ratio, "ci": [ratio.ci_low, ratio.ci_high]}
                for single, ratio in speedups(entry).items()
            },
            "output_error": None if error is None else error.to_dict(),
            "failed": entry.failed,
        }

    data = {
        "model": str(options.model),
        "rounds": max((len(entry.measured.samples) for entry in entries if entry.measured is not None), default=0),
        "warmup": length.warmup,
        "duration_s": length.duration,
        "candidates": [row(entry) for entry in entries],
        "emulated": text.emulated(cluster),
        "interrupted": interrupted,
    }

    def show(console: Console) -> None:
        heads = ["placement", "devices (ops)", "segments", "simulated", "measured", "95 % interval", "p95"]
        heads += [f"speed-up over {single}" for single in singles]
        rows = [
            (
                entry.name,
                text.ops_by_device(counts[entry.name]),
                str(text.programs(entry.plan)),
                text.seconds(entry.simulated_s),
                text.seconds(None if entry.measured is None else entry.measured.median),
                text.interval(entry.measured),
                text.seconds(None if entry.measured is None else entry.measured.p95),
                *map(text.ratio, speedups(entry).values()),
                text.error(entry.output_error),
            )
            for entry in entries
        ]
        fastest = next((entry.name for entry in entries if entry.name in singles), None)
        spare = ["segments", "p95", "output error", "simulated"]
        spare += [f"speed-up over {single}" for single in singles if single != fastest]
        text.table(console, [*heads, "output error"], rows, left=2, spare=spare)
        text.show_failures(console, {entry.name: entry.failed for entry in entries})
        text.show_unchecked(console, (entry.output_error for entry in entries))
        if interrupted:
            console.print("Ended by Ctrl-C: results so far.")
        text.show_notes(console, cluster)

    code = FAILED if any(entry.failed is not None for entry in entries) else 0
    return Output(data, show, INTERRUPTED if interrupted else code)


def _candidates(session: Session, placements: dict[str, Placement]) -> dict[str, Plan]:
    """Plan each single-device placement that fits into memory, and each given placement, by name."""
    import numpy as np

    problem = session.segmenter.problem()
    names = session.cluster.names
    singles = {names[d]: np.full(len(problem), d, np.int32) for d in problem.single_devices}
    candidates = {name: session.segmenter.plan(groups) for name, groups in singles.items()}
    for name, placement in placements.items():
        with naming(name):
            candidates[name] = session.plan_of(placement)
    if not candidates:
        raise UsageError(
            "No single device can hold the whole model (too little memory, or some op cannot run there), and no --placement is "
            "given: there is nothing to compare."
        )
    return candidates
