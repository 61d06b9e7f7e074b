"""``placeit bench``: list the problems of PlaceBench, run placers on them, and check what others have found."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.bench.problems import BenchProblem

__all__ = ["app"]

app = typer.Typer(**settings(), name="bench", help="Compare placers on PlaceBench, a public set of placement problems.")

_EXAMPLES = """\b
Examples:
  placeit bench list --problems '*/gpus4/*'
  placeit bench run --placer heft --placer annealing --problems '*/soc/*'
  placeit bench run --placer dp --placer annealing --seconds 10 -o mine.json
  placeit bench check mine.json
  placeit bench run --problems layergraphs_gnmt_inference.json
"""

ProblemsOption = Annotated[
    str,
    typer.Option(
        "--problems",
        metavar="PATTERN|FILE",
        help="Problems by name, MODEL/CLUSTER/OBJECTIVE, where * stands for any text; or a JSON file of problems.",
    ),
]


def list_problems(*, problems: ProblemsOption = "*", terminal: Terminal) -> Output:  # noqa: ARG001
    """List problems, with the best value that is known and a lower bound.

    A value is seconds; the gap is the share by which the best known value is above the bound. The best value that is possible
    is between the two.
    """
    from placeit.bench.problems import VERSION
    from placeit.bench.submissions import Listed, listed

    given = _of_file(problems)
    found = (
        listed(problems) if given is None else [Listed(one.name, one.bound(), None, None, None, None) for one in given.values()]
    )

    def show(console: Console) -> None:
        rows = [
            (one.problem, text.seconds(one.best), text.seconds(one.bound), text.percent(one.gap), one.placer or "-")
            for one in found
        ]
        text.table(console, ("problem", "best known", "bound", "gap", "found by"), rows)

    return Output({"version": VERSION, "problems": [asdict(one) for one in found]}, show)


def run(
    *,
    placer: Annotated[
        list[str] | None,
        typer.Option("--placer", metavar="NAME", help="Placer, as for placeit optimize; repeatable.", show_default="annealing"),
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
    terminal: Terminal,
) -> Output:
    """Ask placers about problems, and value their answers.

    A value is seconds, by the rules of PlaceBench. The gap is the share by which the value is above the lower bound. Over best
    is its ratio to the best known value; a value below 1 is a new best. For the problems of a file, it is the ratio to the best
    value of this run.
    """
    from statistics import geometric_mean

    from placeit.bench import problems as bench
    from placeit.bench.submissions import best, better, run, write
    from placeit.simulator.scheduler import EXECUTED_RULES

    asked = placer or ["annealing"]
    given = _of_file(problems)
    check_outputs(output, inputs=named_files(asked))
    check_placers(asked)
    with terminal.progress() as progress:
        found = run(
            bench.names(problems) if given is None else list(given.values()), asked, seconds, seed=seed, progress=progress
        )
    known = best() if given is None else better({}, found)
    rules = EXECUTED_RULES if given is None else next(iter(given.values())).rules
    data = {
        "version": bench.VERSION,
        "seconds": seconds,
        "seed": seed,
        "solutions": [asdict(one) | {"best": None if given else known[one.problem].value} for one in found],
    }
    over = [_ratio(one.value, known[one.problem].value) for one in found]
    means = {name: geometric_mean(o for one, o in zip(found, over, strict=True) if one.placer == name) for name in asked}
    answer = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    answer += " of the best known values" if given is None else " of the best values of this run"

    def show(console: Console) -> None:
        rows = [
            (
                one.problem,
                one.placer,
                text.seconds(one.value),
                text.percent(one.gap),
                f"{ratio:.3f}",
                text.duration(one.seconds),
            )
            for one, ratio in zip(found, over, strict=True)
        ]
        text.table(console, ("problem", "placer", "value", "gap", "over best", "taken"), rows, left=2)
        console.print()
        text.paragraph(console, f"geometric mean: {answer}")

    files = [] if output is None else [OutputFile(output, "the submission", lambda: write(output, found, rules))]
    return Output(data, show, files=files, answer=answer)


def check(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Submission to check.", show_default=False)],
    problems: Annotated[
        Path | None, typer.Option("--problems", metavar="FILE", help="File of its problems, if they are not PlaceBench's.")
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


def _ratio(value: float, best: float) -> float:
    return 1.0 if value == best else value / best if best else math.inf


def _of_file(problems: str) -> Mapping[str, BenchProblem] | None:
    """Read the problems of a file; None if the text names no file but a pattern."""
    from placeit.bench.files import read_problems

    if not Path(problems).is_file() and not problems.endswith((".json", ".json.gz")):
        return None
    return read_problems(problems)


for _name, _function in (("list", list_problems), ("run", run), ("check", check)):
    app.command(_name, cls=Command, epilog=_EXAMPLES)(command(_function))
