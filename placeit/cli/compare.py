"""``placeit compare``: race placements against each other and against each single-device placement."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli.command import exit_code
from placeit.cli.options import CheckedOptions, LengthOptions, SeedOption
from placeit.cli.placements import open_session
from placeit.cli.terminal import Output, Terminal
from placeit.cli.values import complete_objectives
from placeit.core.errors import UsageError
from placeit.report import as_text

if TYPE_CHECKING:
    from placeit.core.placement import Placement
    from placeit.profiler.costs import Progress
    from placeit.workbench import Workbench

__all__ = ["EXAMPLES", "compare", "race"]

EXAMPLES = """\b
Examples:
  placeit compare model.onnx -p a.json -p b.json --devices CPU@0,CPU@1
  placeit compare model.onnx -p placement.json --runs 100
  placeit compare model.onnx -p placement.json --duration 20 --warmup 5
  placeit compare model.onnx -p placement.json --rate 20
  placeit compare model.onnx -p replicas.json --objective throughput
"""


def compare(
    *,
    placement: Annotated[
        list[Path] | None,
        typer.Option("--placement", "-p", metavar="FILE", help="Placement to compare; repeatable."),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            "--objective", metavar="NAME", help="What is compared: latency or throughput.", autocompletion=complete_objectives
        ),
    ] = "latency",
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="R",
            help="For latency: runs to start per second; default: each starts when the one before has ended.",
        ),
    ] = None,
    length: LengthOptions,
    seed: SeedOption = 0,
    options: CheckedOptions,
    terminal: Terminal,
) -> Output:
    """Race placements against each single-device placement.

    Each round runs every placement, and the whole model on each device, for a while, in a new random order, so that a machine
    that slows down slows all of them down. The first runs of each turn do not count: caches then hold the data of others. Times
    are from the call to the answer. For throughput, a run has many requests in flight, by all replicas at once if the placement
    has some, and times are per request. A speed-up is a ratio of times, paired by round, with its 95 % interval. A placement
    that fails, or has wrong outputs, is excluded, with the reason; the others are compared, and the exit code is 1. Ctrl-C ends
    the race and keeps the results so far.
    """
    from placeit.optimizer.compare import check_compared

    length.rounds()
    check_compared(objective, rate)
    files = placement or []
    if len({path.resolve() for path in files}) < len(files):
        raise UsageError("--placement names the same file twice.")
    with terminal.progress() as progress, open_session(options, files) as (session, placements):
        return race(session, dict(zip(map(str, files), placements, strict=True)), length, objective, seed, progress, rate)


def race(
    session: Workbench,
    placements: Mapping[str, Placement],
    length: LengthOptions,
    objective: str,
    seed: int,
    progress: Progress | None,
    rate: float | None = None,
) -> Output:
    """Race placements, by name, against each single device."""
    from placeit.optimizer.compare import compare as compared

    session.profile(progress=progress)
    found = compared(
        session,
        placements,
        objective=objective,
        runs=length.rounds(),
        duration=length.duration,
        warmup=length.warmup,
        rate=rate,
        seed=seed,
        progress=progress,
    )
    failed = any(candidate.failed is not None for candidate in found.candidates)
    code = exit_code(interrupted=found.interrupted, failed=failed)
    return Output(found.to_dict(), partial(as_text.comparison, found=found), code, answer=as_text.fastest(found))
