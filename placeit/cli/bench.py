"""``placeit bench``: list the problems of PlaceBench, run placers on them, and check what others have found."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli.command import FAILED, Command, command
from placeit.cli.commands import settings
from placeit.cli.options import SeedOption
from placeit.cli.paths import OutputFile, check_outputs, named_files
from placeit.cli.terminal import Output, Terminal
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["app"]

app = typer.Typer(**settings(), name="bench", help="Compare placers on PlaceBench, a public set of placement problems.")

_EXAMPLES = """\b
Examples:
  placeit bench list --problems '*/gpus4/*'
  placeit bench run --placer heft --placer annealing --problems '*/soc/*'
  placeit bench run --placer dp --placer annealing --seconds 10 -o mine.json
  placeit bench check mine.json
"""

ProblemsOption = Annotated[
    str, typer.Option("--problems", metavar="PATTERN", help="Problems by name, MODEL/CLUSTER/OBJECTIVE; * stands for any text.")
]


def list_problems(*, problems: ProblemsOption = "*", terminal: Terminal) -> Output:  # noqa: ARG001
    """List problems, with the best value that is known and a lower bound.

    A value is seconds; the gap is the share by which the best known value is above the bound. The best value that is possible
    is between the two.
    """
    from placeit.bench.problems import VERSION
    from placeit.bench.submissions import listed

    found = listed(problems)

    def show(console: Console) -> None:
        rows = [
            (one.problem, text.seconds(one.best), text.seconds(one.bound), text.percent(one.gap), one.placer) for one in found
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
    is its ratio to the best known value; a value below 1 is a new best.
    """
    from statistics import geometric_mean

    from placeit.bench import problems as bench
    from placeit.bench.submissions import best, run, write

    asked = placer or ["annealing"]
    check_outputs(output, inputs=named_files(asked))
    names = bench.names(problems)
    with terminal.progress() as progress:
        found = run(names, asked, seconds, seed=seed, progress=progress)
    data = {
        "version": bench.VERSION,
        "seconds": seconds,
        "seed": seed,
        "solutions": [asdict(one) | {"gap": one.gap, "best": best()[one.problem].value} for one in found],
    }
    means = {
        name: geometric_mean(one.value / best()[one.problem].value for one in found if one.placer == name) for name in asked
    }
    answer = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items()) + " of the best known values"

    def show(console: Console) -> None:
        rows = [
            (
                one.problem,
                one.placer,
                text.seconds(one.value),
                text.percent(one.gap),
                f"{one.value / best()[one.problem].value:.3f}",
                text.duration(one.seconds),
            )
            for one in found
        ]
        text.table(console, ("problem", "placer", "value", "gap", "over best", "taken"), rows, left=2)
        console.print()
        text.paragraph(console, f"geometric mean: {answer}")

    files = [] if output is None else [OutputFile(output, "the submission", lambda: write(output, found))]
    return Output(data, show, files=files, answer=answer)


def check(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Submission to check.", show_default=False)],
    terminal: Terminal,  # noqa: ARG001
) -> Output:
    """Check a submission by two independent implementations of the rules.

    Each placement has to name devices that exist, keep to their memory, and have the value that the submission states. The exit
    code is 1 if one does not.
    """
    from placeit.bench.problems import VERSION
    from placeit.bench.submissions import check

    found = check(file)
    wrong = {one.problem: one.fault for one in found if one.fault is not None}
    new = [one for one in found if one.fault is None and one.value is not None and one.best and one.value < one.best]
    answer = f"{len(found) - len(wrong)} of {len(found)} placements are correct, {len(new)} better than the best known"

    def show(console: Console) -> None:
        text.paragraph(console, answer)
        text.show_failures(console, wrong, title="wrong")
        if new:
            console.print()
            rows = [(one.problem, text.seconds(one.value), text.seconds(one.best), one.placer) for one in new]
            text.table(console, ("better", "value", "best known", "found by"), rows)

    data = {"version": VERSION, "placements": [asdict(one) for one in found]}
    return Output(data, show, FAILED if wrong else 0, answer=answer)


for _name, _function in (("list", list_problems), ("run", run), ("check", check)):
    app.command(_name, cls=Command, epilog=_EXAMPLES)(command(_function))
