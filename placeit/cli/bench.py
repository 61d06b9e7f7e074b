"""``placeit bench``: list the problems of PlaceBench, run placers on them, and check submissions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli.command import Command, command, exit_code
from placeit.cli.commands import settings
from placeit.cli.options import SeedOption
from placeit.cli.paths import OutputFile, check_outputs, named_files
from placeit.cli.terminal import Output, Terminal
from placeit.cli.values import check_placers
from placeit.core.errors import UsageError
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
    """List problems, with the best known value and a lower bound.

    A value is in seconds, or in the unit of a file of problems. The gap is the share by which the best known value is above the
    bound. The optimum is between the two.
    """
    from placeit.bench.problems import VERSION
    from placeit.bench.submissions import Listed, listed

    from_file = _read_file(problems)
    own = () if from_file is None else from_file.values()
    found = listed(problems) if from_file is None else [Listed(one.name, one.bound(), None, None, None, None) for one in own]

    def show(console: Console) -> None:
        rows = [
            (
                one.problem,
                text.seconds(one.best),
                _value(one.bound, from_file, one.problem),
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
        bool, typer.Option("--resume", help="Keep the placements of the submission, and run only the other problems.")
    ] = False,
    terminal: Terminal,
) -> Output:
    """Run placers on problems, and evaluate their placements.

    A value is seconds, by the rules of PlaceBench. The gap is the share by which the value is above the lower bound. Over best
    is its ratio to the best known value; a value below 1 is a new best. For the problems of a file, values are in its unit, and
    over best is the ratio to the best value of this run. If a placer fails, the others continue. Ctrl-C keeps the problems that
    all placers have finished.
    """
    from placeit.bench import problems as bench
    from placeit.bench.submissions import best, better, read, solutions, write
    from placeit.simulator.scheduler import EXECUTED_RULES

    placers = [*dict.fromkeys(placer or ["annealing"])]
    own = _read_file(problems)
    rules = EXECUTED_RULES if own is None else next(iter(own.values())).rules
    if resume and output is None:
        raise UsageError("--resume needs -o FILE, the submission to continue.")
    check_outputs(output, inputs=named_files(placers))
    check_placers(placers)
    earlier = read(output, rules, versions=(bench.VERSION,)) if output is not None and resume and output.exists() else {}
    names = bench.names(problems) if own is None else list(own)
    todo = [name for name in names if name not in earlier]
    found: list[Solution] = []
    interrupted = False
    try:
        with terminal.progress() as progress:
            asked = todo if own is None else [own[name] for name in todo]
            for batch in solutions(asked, placers, seconds, seed=seed, progress=progress):
                found += batch
    except KeyboardInterrupt:
        interrupted = True
    best_known = best() if own is None else better({}, found)
    ratios = [_ratio(solution.value, best_known[solution.problem].value) for solution in found]
    data = {
        "version": bench.VERSION,
        "seconds": seconds,
        "seed": seed,
        "solutions": [asdict(solution) | {"best": None if own else best_known[solution.problem].value} for solution in found],
        "kept": len(names) - len(todo),
        "interrupted": interrupted,
    }
    answer = _geometric_means(placers, zip(found, ratios, strict=True))
    answer += " of the best known values" if own is None else " of the best values of this run"
    notes = [f"geometric mean: {answer}"] if found else []
    if earlier:
        notes.append(f"{output} had {len(names) - len(todo)} of {len(names)} problems; they were not run again.")
    if interrupted:
        how_to_resume = "" if output is None else " The same command with --resume runs the others."
        notes.append(f"Ended by Ctrl-C after {len(found) // len(placers)} of {len(todo)} problems.{how_to_resume}")

    def show(console: Console) -> None:
        rows = [
            (
                solution.problem,
                solution.placer,
                _value(solution.value, own, solution.problem),
                text.percent(solution.gap),
                text.NOTHING if ratio is None else f"{ratio:.3f}",
                text.duration(solution.seconds),
            )
            for solution, ratio in zip(found, ratios, strict=True)
        ]
        if rows:
            text.table(console, ("problem", "placer", "value", "gap", "over best", "taken"), rows, left=2)
        text.show_failures(console, _failures(found), title="no placement")
        for line in notes:
            console.print()
            text.paragraph(console, line)

    files = []
    if output is not None:
        files.append(OutputFile(output, "the submission", lambda: write(output, [*earlier.values(), *found], rules)))
    return Output(data, show, exit_code(interrupted=interrupted), files, answer if found else "; ".join(notes))


def check(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Submission to check.")],
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
    wrong = {row.problem: row.fault for row in found if row.fault is not None}
    new = [row for row in found if row.fault is None and row.value is not None and row.best and row.value < row.best]
    answer = f"{len(found) - len(wrong)} of {len(found)} placements are correct"
    if problems is None:
        answer += f", {len(new)} better than the best known"

    def show(console: Console) -> None:
        text.paragraph(console, answer)
        text.show_failures(console, wrong, title="wrong")
        if new:
            console.print()
            rows = [(row.problem, text.seconds(row.value), text.seconds(row.best), row.placer) for row in new]
            text.table(console, ("better", "value", "best known", "found by"), rows)

    data = {"version": VERSION, "placements": [asdict(row) for row in found]}
    return Output(data, show, exit_code(failed=bool(wrong)), answer=answer)


def _ratio(value: float, best: float) -> float | None:
    """Return the ratio of a value to the best value; None if there is no placement."""
    if value == math.inf:
        return None
    return 1.0 if value == best else value / best if best else math.inf


def _geometric_means(placers: Sequence[str], ratios: Iterable[tuple[Solution, float | None]]) -> str:
    """Format the geometric mean of each placer's ratios, and the number of problems without a placement."""
    from statistics import geometric_mean

    by_placer: dict[str, list[float | None]] = {name: [] for name in placers}
    for solution, ratio in ratios:
        by_placer[solution.placer].append(ratio)
    parts = []
    for name, ratios_ in by_placer.items():
        solved = [ratio for ratio in ratios_ if ratio is not None]
        missing = f" ({len(ratios_) - len(solved)} of {len(ratios_)} without a placement)" if len(solved) < len(ratios_) else ""
        parts.append(f"{name} {geometric_mean(solved):.3f}{missing}" if solved else f"{name} {text.NOTHING}{missing}")
    return ", ".join(parts)


def _failures(found: Iterable[Solution]) -> dict[str, str]:
    """Return the reasons of placers that gave no placement, by the placer and the first problem with that reason."""
    problems: dict[tuple[str, str], list[str]] = {}
    for solution in found:
        if solution.failure is not None:
            problems.setdefault((solution.placer, solution.failure), []).append(solution.problem)
    return {
        f"{placer} on {first}{f' and {len(others)} others' if others else ''}": why
        for (placer, why), (first, *others) in problems.items()
    }


def _value(value: float | None, from_file: Mapping[str, BenchProblem] | None, name: str) -> str:
    """Format a value in the unit of its problem."""
    return text.seconds(value) if from_file is None or from_file[name].unit else text.amount(value)


def _read_file(problems: str) -> Mapping[str, BenchProblem] | None:
    """Read the problems of a file or a folder; None if the text is a pattern."""
    from placeit.bench.files import read_problems

    if not Path(problems).exists() and not problems.endswith((".json", ".json.gz", "/")):
        return None
    return read_problems(problems)


for _name, _function in (("list", list_problems), ("run", run), ("check", check)):
    app.command(_name, cls=Command, epilog=_EXAMPLES)(command(_function))
