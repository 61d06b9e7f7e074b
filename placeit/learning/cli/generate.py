"""``placeit generate``: write placement problems to files, to try placers on."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli.options import SeedOption
from placeit.cli.terminal import Output, Terminal
from placeit.cli.values import parse_pairs
from placeit.core.errors import UsageError
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["EXAMPLES", "generate"]

EXAMPLES = """\b
Examples:
  placeit generate random --count 100 --output problems
  placeit generate single --count 10 --seed 1 --graph tasks=20,40 --network devices=8 -o problems
  placeit generate sensor-fusion --split test --count 50 -o problems
"""


class Part(StrEnum):
    """Parts of a dataset."""

    TRAIN = "train"
    TEST = "test"


def generate(
    *,
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="One of the above, any (of all of them), or a plug-in's.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="New folder to write to.", show_default=False),
    ],
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="Number of problems.")] = 10,
    seed: SeedOption = 0,
    split: Annotated[Part | None, typer.Option("--split", help="Training or test problems.", show_default="train")] = None,
    graph: Annotated[
        list[str] | None,
        typer.Option("--graph", metavar="NAME=VALUES", help="Values of a task graph parameter, as in tasks=20,40; repeatable."),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option("--network", metavar="NAME=VALUES", help="Values of a network parameter, as in devices=8; repeatable."),
    ] = None,
    max_tasks: Annotated[
        int | None,
        typer.Option("--max-tasks", metavar="N", min=3, help="Maximum number of tasks in a graph.", show_default="100"),
    ] = None,
    terminal: Terminal,  # noqa: ARG001
) -> Output:
    """Generate placement problems of task graphs on device networks.

    random: a new graph and network for each problem. single: graphs on one network. multi: pairs of 120 graphs and 10
    networks. churn: one graph on a network that loses devices and gets slower ones. recurrent: unrolled recurrent cells.
    sensor-fusion: vehicles at intersections. streams: stream graphs on five equal devices. The folder receives a file for each
    problem, and index.json with the parameters of each. The same seed gives the same problems.
    """
    from placeit.learning.workloads.datasets import MAX_TASKS
    from placeit.learning.workloads.export import INDEX, export_cases
    from placeit.learning.workloads.registry import find_dataset

    dataset = find_dataset(kind)
    if not dataset.parts and split is not None:
        raise UsageError(f"Problems of kind '{kind}' have no --split; take another --seed to test than to train.")
    part = (split or Part.TRAIN).value if dataset.parts else None
    chosen: dict[str, Any] = {}
    if dataset.graphs is not None and dataset.networks is not None:
        graphs, networks = _choices("--graph", graph), _choices("--network", network)
        chosen = {"graphs": {**dataset.graphs, **graphs}, "networks": {**dataset.networks, **networks}}
        chosen["max_tasks"] = MAX_TASKS if max_tasks is None else max_tasks
    elif graph or network or max_tasks is not None:
        raise UsageError(f"Problems of kind '{kind}' take no --graph, --network and --max-tasks; their parameters are fixed.")
    cases = dataset.cases(part, seed, **chosen)
    facts: dict[str, Any] = {"kind": kind, "split": part, "seed": seed}
    ranges: dict[str, tuple[int, int]] = {}

    def record_sizes(problem: dict[str, Any]) -> None:
        for key in ("ops", "edges", "devices"):
            least, most = ranges.get(key, (problem[key], problem[key]))
            ranges[key] = min(least, problem[key]), max(most, problem[key])

    export_cases(cases, output, kind, facts, count=count, callback=record_sizes)
    data = {**facts, "output": str(output), "index": str(output / INDEX), "problems": count}
    data.update({key: {"least": least, "most": most} for key, (least, most) in ranges.items()})

    def show(console: Console) -> None:
        shown = {key: f"{least}" if least == most else f"{least} .. {most}" for key, (least, most) in ranges.items()}
        text.facts(console, {"written": f"{count} problems and {INDEX} to {output}", **shown})

    return Output(data, show, answer=str(output))


def _choices(option: str, texts: Sequence[str] | None) -> dict[str, tuple[float, ...]]:
    """Parse texts of the form ``NAME=1,2.5``. Raises UsageError."""
    form, choices = "NAME=VALUES, such as hardware_types=2,5", dict[str, tuple[float, ...]]()
    for name, values in parse_pairs(option, texts or (), form).items():
        try:
            choices[name] = tuple(map(_number, values.split(",")))
        except ValueError:
            raise UsageError(f"Cannot read {option} '{name}={values}'; write {form}.") from None
    return choices


def _number(value: str) -> float:
    try:
        return int(value)
    except ValueError:
        return float(value)
