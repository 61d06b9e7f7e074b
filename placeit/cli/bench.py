"""``placeit bench``: list the problems of PlaceBench, run placers on them, and check what others have found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli.command import FAILED, Command, command
from placeit.cli.commands import settings
from placeit.cli.options import SeedOption
from placeit.cli.paths import OutputFile, check_outputs, named_files
from placeit.cli.terminal import Output, Terminal
from placeit.cli.values import check_placers
from placeit.core.errors import UsageError
from placeit.core.interrupts import INTERRUPTED
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.bench.problems import BenchProblem
    from placeit.bench.submissions import Solution

__all__ = ["app"]

app = typer.Typer(**settings(), name="bench", help="Compare placers on PlaceBench, a public set of placement problems.")

_EXAMPLES = """\b
Examples:
  placeit bench list --problems '*/gpus4/*'
  placeit bench run --placer heft --placer annealing --problems '*/soc/*'
  placeit bench run --placer dp --placer annealing --seconds 10 -o mine.json
  placeit bench run --placer module:Class --seconds 60 -o mine.json --resume
  placeit bench check mine.json
  placeit bench run --problems layergraphs_gnmt_inference.json
"""

ProblemsOption = Annotated[
    str,
    typer.Option(
        "--problems",
        metavar="PATTERN|FILE|FOLDER",
        help="Problems by name, MODEL/CLUSTER/OBJECTIVE, where * stands for any text; or a JSON file of problems, or a folder "
        "of such files.",
    ),
]


def list_problems(*, problems: ProblemsOption = "*", terminal: Terminal) -> Output:  # noqa: ARG001
    """List problems, with the best value that is known and a lower bound.

    A value is seconds, or in the unit of a file of problems. The gap is the share by which the best known value is above the
    bound. The best value that is possible is between the two.
    """
    from placeit.bench.problems import VERSION
    from placeit.bench.submissions import Listed, listed

    given = _of_file(problems)
    found = (
        listed(problems) if given is None else [Listed(one.name, one.bound(), None, None, None, None) for one in given.values()]
    )

    def show(console: Console) -> None:
        rows = [
            (
                one.problem,
                text.seconds(one.best),
                _value(one.bound, given, one.problem),
                text.percent(one.gap),
                one.placer or "-",
            )
            for one in found
        ]
        text.table(console, ("problem", "best known", "bound", "gap", "found by"), rows)

    return Output({"version": VERSION, "problems": [asdict(one) for one in found]}, show)


def run(
    *,
    placer: Annotated[
        list[str] | None,
        typer.Option(
            "--placer",
            metavar="NAME[:OPTION=VALUE,...]",
            help="Placer, as for placeit optimize, or module:Class; repeatable.",
            show_default="annealing",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.0, help="Most seconds of a placer for a problem.")
    ] = 1.0,
    problems: ProblemsOption = "*",
    seed: SeedOption = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Submission to write: the best placement of each problem."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what the submission has, and ask about the other problems only.")
    ] = False,
    terminal: Terminal,
) -> Output:
    """Ask placers about problems, and value their answers.

    A value is seconds, by the rules of PlaceBench. The gap is the share by which the value is above the lower bound. Over best
    is its ratio to the best known value; a value below 1 is a new best. For the problems of a file, values are in its unit, and
    over best is the ratio to the best value of this run. A placer that fails has no value, and the others go on. Ctrl-C keeps
    the problems that all placers have been asked about.
    """
    from placeit.bench import problems as bench
    from placeit.bench.submissions import best, better, read, solutions, write
    from placeit.simulator.scheduler import EXECUTED_RULES

    asked = [*dict.fromkeys(placer or ["annealing"])]
    given = _of_file(problems)
    rules = EXECUTED_RULES if given is None else next(iter(given.values())).rules
    if resume and output is None:
        raise UsageError("--resume goes with -o FILE, the submission to go on with.")
    check_outputs(output, inputs=named_files(asked))
    check_placers(asked)
    kept = read(output, rules, versions=(bench.VERSION,)) if output is not None and resume and output.exists() else {}
    every = bench.names(problems) if given is None else list(given)
    left = [name for name in every if name not in kept]
    found: list[Solution] = []
    interrupted = False
    try:
        with terminal.progress() as progress:
            for some in solutions(
                left if given is None else [given[n] for n in left], asked, seconds, seed=seed, progress=progress
            ):
                found += some
    except KeyboardInterrupt:
        interrupted = True
    known = best() if given is None else better({}, found)
    over = [_ratio(one.value, known[one.problem].value) for one in found]
    data = {
        "version": bench.VERSION,
        "seconds": seconds,
        "seed": seed,
        "solutions": [asdict(one) | {"best": None if given else known[one.problem].value} for one in found],
        "kept": len(every) - len(left),
        "interrupted": interrupted,
    }
    answer = _means(asked, zip(found, over, strict=True))
    answer += " of the best known values" if given is None else " of the best values of this run"
    said = [f"geometric mean: {answer}"] if found else []
    if kept:
        said.append(f"{output} had {len(every) - len(left)} of {len(every)} problems; they were not asked about again.")
    if interrupted:
        more = "" if output is None else " The same command with --resume asks about the others."
        said.append(f"Ended by Ctrl-C after {len(found) // len(asked)} of {len(left)} problems.{more}")

    def show(console: Console) -> None:
        rows = [
            (
                one.problem,
                one.placer,
                _value(one.value, given, one.problem),
                text.percent(one.gap),
                text.NOTHING if ratio is None else f"{ratio:.3f}",
                text.duration(one.seconds),
            )
            for one, ratio in zip(found, over, strict=True)
        ]
        if rows:
            text.table(console, ("problem", "placer", "value", "gap", "over best", "taken"), rows, left=2)
        text.show_failures(console, _failures(found), title="no placement")
        for line in said:
            console.print()
            text.paragraph(console, line)

    files = (
        [] if output is None else [OutputFile(output, "the submission", lambda: write(output, [*kept.values(), *found], rules))]
    )
    return Output(data, show, INTERRUPTED if interrupted else 0, files, answer if found else "; ".join(said))


def check(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Submission to check.", show_default=False)],
    problems: Annotated[
        Path | None,
        typer.Option("--problems", metavar="FILE|FOLDER", help="File or folder of its problems, if they are not PlaceBench's."),
    ] = None,
    terminal: Terminal,  # noqa: ARG001
) -> Output:
    """Check a submission by two independent implementations of the rules.

    Each placement has to name devices that exist, keep to their memory, and have the value that the submission states. The exit
    code is 1 if one does not.
    """
    from placeit.bench.files import read_problems
    from placeit.bench.problems import VERSION
    from placeit.bench.submissions import check

    found = check(file, None if problems is None else read_problems(problems))
    wrong = {one.problem: one.fault for one in found if one.fault is not None}
    new = [one for one in found if one.fault is None and one.value is not None and one.best and one.value < one.best]
    answer = f"{len(found) - len(wrong)} of {len(found)} placements are correct"
    if problems is None:
        answer += f", {len(new)} better than the best known"

    def show(console: Console) -> None:
        text.paragraph(console, answer)
        text.show_failures(console, wrong, title="wrong")
        if new:
            console.print()
            rows = [(one.problem, text.seconds(one.value), text.seconds(one.best), one.placer) for one in new]
            text.table(console, ("better", "value", "best known", "found by"), rows)

    data = {"version": VERSION, "placements": [asdict(one) for one in found]}
    return Output(data, show, FAILED if wrong else 0, answer=answer)


def _ratio(value: float, best: float) -> float | None:
    """Return the ratio of a value to the best one; None if there is no placement."""
    if value == math.inf:
        return None
    return 1.0 if value == best else value / best if best else math.inf


def _means(placers: Sequence[str], ratios: Iterable[tuple[Solution, float | None]]) -> str:
    """Return the geometric mean of each placer's ratios, and how many problems have none."""
    from statistics import geometric_mean

    of: dict[str, list[float | None]] = {name: [] for name in placers}
    for one, ratio in ratios:
        of[one.placer].append(ratio)
    said = []
    for name, every in of.items():
        solved = [ratio for ratio in every if ratio is not None]
        missing = f" ({len(every) - len(solved)} of {len(every)} without a placement)" if len(solved) < len(every) else ""
        said.append(f"{name} {geometric_mean(solved):.3f}{missing}" if solved else f"{name} {text.NOTHING}{missing}")
    return ", ".join(said)


def _failures(found: Iterable[Solution]) -> dict[str, str]:
    """Return why placers gave no placement, by the placer and the first of the problems with that reason."""
    on: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if one.failure is not None:
            on.setdefault((one.placer, one.failure), []).append(one.problem)
    return {
        f"{placer} on {first}{f' and {len(others)} others' if others else ''}": why
        for (placer, why), (first, *others) in on.items()
    }


def _value(value: float | None, given: Mapping[str, BenchProblem] | None, name: str) -> str:
    """Format a value in the unit of its problem."""
    return text.seconds(value) if given is None or given[name].unit else text.amount(value)


def _of_file(problems: str) -> Mapping[str, BenchProblem] | None:
    """Read the problems of a file or a folder; None if the text is a pattern."""
    from placeit.bench.files import read_problems

    if not Path(problems).exists() and not problems.endswith((".json", ".json.gz", "/")):
        return None
    return read_problems(problems)


for _name, _function in (("list", list_problems), ("run", run), ("check", check)):
    app.command(_name, cls=Command, epilog=_EXAMPLES)(command(_function))
