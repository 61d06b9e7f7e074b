"""Print results to standard output, as text or as JSON, and progress to standard error."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from placeit.core.jsonable import jsonable
from placeit.core.units import percentage
from placeit.report.text import LOST, printable

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.cli.paths import OutputFile
    from placeit.profiler.costs import Progress

__all__ = ["Lines", "Output", "Terminal"]

_COLUMNS, _WIDE = 80, 1000
"""Columns of text in a file or a pipe, and with ``--wide``."""

_VIEWS = 4  # views of a search per second


@dataclass(frozen=True)
class Output:
    """The result of a command.

    Attributes:
        data: the result for machines, which ``--json`` prints.
        show: prints the result for people.
        exit_code: 0 unless the command was interrupted, or a part of its work failed.
        files: files to write before the result is printed.
        answer: the result in one line, which ``--quiet`` prints; empty if one line is too short for it.
    """

    data: Mapping[str, Any]
    show: Callable[[Console], None]
    exit_code: int = 0
    files: Sequence[OutputFile] = ()
    answer: str = ""


@dataclass(frozen=True)
class Terminal:
    """Output, progress and questions of a command."""

    HEADING: ClassVar = "Output"

    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False
    wide: Annotated[bool, typer.Option("--wide", help="Tables with all columns, whatever the terminal's width.")] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="The answer in one line, if there is one; no progress, no warnings.")
    ] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks, and what libraries warn about.")] = False

    def print(self, output: Output, *, err: bool = False) -> None:
        """Print a result to standard output, or to standard error if one of its files is standard output."""
        if self.json:
            typer.echo(json.dumps(jsonable(output.data), indent=2, allow_nan=False), err=err)
            return
        if self.quiet and output.answer:
            answer = output.answer
            for path in LOST.get():
                answer = "" if answer == path else answer.replace(f", {path}", "").replace(f" {path}", "")
            if answer:
                typer.echo(printable(answer), err=err)
            return
        from rich.console import Console

        width = _WIDE if self.wide else shutil.get_terminal_size((_COLUMNS, 25)).columns  # the variable COLUMNS has priority
        console = Console(width=width, markup=False, highlight=False, emoji=False, soft_wrap=True)
        with console.capture() as text:
            output.show(console)
        typer.echo(text.get(), nl=False, err=err)

    @contextlib.contextmanager
    def progress(self) -> Iterator[Progress | None]:
        """Show progress while the block runs: a bar on a terminal, lines elsewhere.

        Yields a function to call with the current step and the share of all work that is done, in [0, 1]. Yields None, and
        shows nothing, with ``--quiet``, and with ``--json`` if standard error is not a terminal.
        """
        if self.quiet or (self.json and not sys.stderr.isatty()):
            yield None
            return
        if not sys.stderr.isatty():
            yield Lines(lambda line: typer.echo(line, err=True))
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        what_column = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        columns = (what_column, BarColumn(20), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task("starting", total=1 + 1e-9)  # a step that reaches 1 does not stop the clock of the bar
            yield lambda what, share: bars.update(task, completed=share, description=printable(what))

    @contextlib.contextmanager
    def search(self, budget: float, unit: str) -> Iterator[Progress | None]:
        """Show a search while the block runs: a view on a terminal, else what :meth:`progress` shows.

        Args:
            budget: seconds of the search.
            unit: unit of its objective.
        """
        if self.quiet or not sys.stderr.isatty():
            with self.progress() as progress:
                yield progress
            return
        from rich.console import Console
        from rich.live import Live

        from placeit.report.searching import SearchView

        view = SearchView(budget, unit)
        with Live(get_renderable=view.render, console=Console(stderr=True), transient=True, refresh_per_second=_VIEWS):
            yield view


class Lines:
    """Progress for logs: writes a line every few seconds, and none for a short command.

    Args:
        write: writes a line.
        clock: returns seconds.
    """

    EVERY = 5.0
    """Minimum seconds between two lines."""

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._begin = self._last = clock()

    def __call__(self, what: str, share: float) -> None:
        """Report the current step and the share of all work that is done."""
        now = self._clock()
        if now - self._last >= self.EVERY:
            self._last = now
            self._write(printable(f"{now - self._begin:.0f} s: {what}, {percentage(share)}"))
