"""Where output goes: results to standard output, as text or as JSON; progress to standard error."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.profiler.costs import Progress

__all__ = ["Output", "Terminal", "jsonable", "printable"]

_WIDTH = 1000
"""Columns of text that goes to a file or a pipe: wide enough that no table is folded."""


@dataclass(frozen=True)
class Output:
    """What a command found.

    Attributes:
        data: the result for machines: what ``--json`` prints.
        show: prints the result for people.
        exit_code: 0 unless the command was cut short.
    """

    data: Mapping[str, Any]
    show: Callable[[Console], None]
    exit_code: int = 0


@dataclass(frozen=True)
class Terminal:
    """How a command talks to whoever started it."""

    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no warnings.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks, and what libraries warn about.")] = False

    def print(self, output: Output) -> None:
        """Print a result to standard output."""
        if self.json:
            typer.echo(json.dumps(jsonable(output.data), indent=2, allow_nan=False))
            return
        from rich.console import Console

        width = None if sys.stdout.isatty() else _WIDTH
        console = Console(width=width, markup=False, highlight=False, emoji=False, soft_wrap=True)
        with console.capture() as text:
            output.show(console)
        typer.echo(text.get(), nl=False)

    @contextlib.contextmanager
    def progress(self) -> Iterator[Progress | None]:
        """Show progress bars while the block runs; gives None if nobody watches.

        What is given is called with what is being done and the share of it that is done, in [0, 1].
        """
        if self.quiet or not sys.stderr.isatty():
            yield None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            tasks: dict[str, TaskID] = {}

            def report(what: str, share: float) -> None:
                if what not in tasks:
                    tasks[what] = bars.add_task(printable(what), total=1.0)
                bars.update(tasks[what], completed=share)

            yield report


def jsonable(value: Any) -> Any:
    """Turn arrays, mappings and numbers into what JSON can hold; what is not finite, and so was not measured, is null."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def printable(text: str) -> str:
    """Replace what could upset a terminal (control characters, names that are not Unicode) by question marks."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
