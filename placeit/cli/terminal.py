"""Send results to standard output, as text or as JSON, and progress to standard error."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.core.jsonable import jsonable
from placeit.report.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.cli.paths import OutputFile
    from placeit.profiler.costs import Progress

__all__ = ["Lines", "Output", "Terminal"]

_WIDTH = 1000
"""Columns of text that goes to a file or a pipe: wide enough that no table is folded."""


@dataclass(frozen=True)
class Output:
    """The result of a command.

    Attributes:
        data: the result for machines: what ``--json`` prints.
        show: prints the result for people.
        exit_code: 0 unless the command was cut short, or something that it was asked about failed.
        files: what is written before the result is printed.
    """

    data: Mapping[str, Any]
    show: Callable[[Console], None]
    exit_code: int = 0
    files: Sequence[OutputFile] = ()


@dataclass(frozen=True)
class Terminal:
    """Output, progress and questions of a command."""

    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False
    wide: Annotated[bool, typer.Option("--wide", help="Tables with all columns, whatever the terminal's width.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no warnings.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks, and what libraries warn about.")] = False

    def print(self, output: Output, *, err: bool = False) -> None:
        """Print a result to standard output, or to standard error if that is taken by one of its files."""
        if self.json:
            typer.echo(json.dumps(jsonable(output.data), indent=2, allow_nan=False), err=err)
            return
        from rich.console import Console

        columns = shutil.get_terminal_size((80 if sys.stdout.isatty() else _WIDTH, 25)).columns  # $COLUMNS counts first
        width = _WIDTH if self.wide else columns
        console = Console(width=width, markup=False, highlight=False, emoji=False, soft_wrap=True)
        with console.capture() as text:
            output.show(console)
        typer.echo(text.get(), nl=False, err=err)

    @contextlib.contextmanager
    def progress(self) -> Iterator[Progress | None]:
        """Show progress while the block runs: bars on a terminal, lines now and then elsewhere; gives None if nobody wants any.

        What is given is called with what is being done and the share of it that is done, in [0, 1].
        """
        if self.quiet or (self.json and not sys.stderr.isatty()):
            yield None
            return
        if not sys.stderr.isatty():
            yield Lines(lambda line: typer.echo(line, err=True))
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            tasks: dict[str, tuple[TaskID, float]] = {}

            def report(what: str, share: float) -> None:
                task, before = tasks.get(_step(what), (None, 0.0))
                if task is None:
                    task = bars.add_task(printable(what), total=1.0)
                elif share < before:  # once more
                    bars.reset(task)
                tasks[_step(what)] = task, share
                bars.update(task, completed=share, description=printable(what))

            yield report


def _step(what: str) -> str:
    """Return the key of a step: its words without the numbers in them."""
    return re.sub(r"\d+", "", what)


class Lines:
    """Progress as lines, for logs: one for a step that is new and one now and then, and none for a command that is short.

    Args:
        write: writes a line.
        clock: gives seconds.
    """

    SOONEST, OFTEN = 3.0, 10.0
    """Least seconds between two lines: where a new step begins, and within one."""

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._begin = self._last = clock()
        self._step: str | None = None

    def __call__(self, what: str, share: float) -> None:
        """Tell what is being done, and which share of it is done."""
        now, step = self._clock(), _step(what)
        if now - self._last >= (self.OFTEN if step == self._step else self.SOONEST):
            self._last, self._step = now, step
            self._write(printable(f"{now - self._begin:.0f} s: {what}, {share:.0%}".replace("%", " %")))
