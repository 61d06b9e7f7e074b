"""``placeit diff``: show how two placements differ, and what each move changes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from placeit.cli.command import exit_code, was_given
from placeit.cli.options import CheckedOptions, LengthOptions, SeedOption
from placeit.cli.placements import open_session
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import UsageError
from placeit.report import explained

__all__ = ["EXAMPLES", "diff"]

EXAMPLES = """\b
Examples:
  placeit diff model.onnx a.json b.json
  placeit diff model.onnx a.json b.json --measure --runs 100
  placeit diff model.onnx a.json b.json -d cluster.yaml --json | jq .moved
"""


def diff(
    *,
    options: CheckedOptions,
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="Placement to move from.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND", help="Placement to move to.")],
    measure: Annotated[bool, typer.Option("--measure", help="Also race both, as 'placeit compare' does.")] = False,
    length: LengthOptions,
    seed: SeedOption = 0,
    terminal: Terminal,
) -> Output:
    """Show how two placements differ, and what each move changes.

    Ops that are on other devices are listed by group, with the simulated effect of moving each group alone, and of all moves
    together. Costs are measured first, or taken from the cache. With --measure both placements are raced as well, beside each
    single device; if one fails, the exit code is 1.
    """
    from placeit.optimizer.compare import compare
    from placeit.optimizer.diff import check_differing
    from placeit.optimizer.diff import diff as difference

    runs, names = length.rounds(), (str(first), str(second))
    for option in () if measure else ("runs", "duration", "warmup", "seed", "tolerance"):
        if was_given(option):
            raise UsageError(f"--{option} is about a race: give --measure as well.")
    if measure and first.resolve() == second.resolve():
        raise UsageError(f"{first} is given twice: there is nothing to race.")
    with terminal.progress() as progress, open_session(options, [first, second]) as (session, placements):
        named = dict(zip(names, placements, strict=True))
        if measure and not session.cluster.executable:
            raise UsageError("--measure runs placements, and some of the devices exist in simulation only.")
        check_differing(session, named)
        session.profile(progress=progress)
        found = difference(session, *placements, names=names)
        if measure:
            raced = compare(
                session, named, runs=runs, duration=length.duration, warmup=length.warmup, seed=seed, progress=progress
            )
            found = replace(found, measured=raced)
    interrupted = found.measured is not None and found.measured.interrupted
    code = exit_code(interrupted=interrupted, failed=any(found.failed.values()))
    return Output(found.to_dict(), partial(explained.difference, found=found), code, answer=explained.effect(found))
