"""The application: which sub-commands there are."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from placeit.cli import cluster, compare, devices, export, generate, inspect, optimize, profile, run
from placeit.cli.command import command
from placeit.cli.placers import ListsPlacers
from placeit.cli.streams import drop_stdout, mend_streams, messages_only
from placeit.core.errors import FileError
from placeit.core.interrupts import guarded
from placeit.core.version import __version__
from placeit.learning.cli import train

__all__ = ["app", "main"]

app = typer.Typer(
    name="placeit",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich takes longer than everything else that --help needs
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"placeit {__version__}")
        raise typer.Exit


@app.callback(
    epilog="""\b
Examples:
  placeit devices
  placeit optimize model.onnx --devices CPU@0,CPU@1 --output placement.json
  placeit run model.onnx --placement placement.json --trace trace.json
"""
)
def placeit(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Find, by measuring, which part of a neural network should run on which device, and run it that way."""


_HELPS = {"optimize": ListsPlacers}
for _function, _examples in (
    (devices.devices, devices.EXAMPLES),
    (inspect.inspect, inspect.EXAMPLES),
    (profile.profile, profile.EXAMPLES),
    (optimize.optimize, optimize.EXAMPLES),
    (run.run, run.EXAMPLES),
    (compare.compare, compare.EXAMPLES),
    (export.export, export.EXAMPLES),
    (generate.generate, generate.EXAMPLES),
    (train.train, train.EXAMPLES),
):
    app.command(_function.__name__, cls=_HELPS.get(_function.__name__), epilog=_examples)(command(_function))
app.add_typer(cluster.app)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command ``placeit`` and exit.

    Args:
        argv: arguments; the process's own if None.
    """
    mend_streams()
    guarded(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> None:
    try:
        try:
            app(argv)
        finally:
            sys.stdout.flush()  # or the interpreter would complain, when it ends, of what is not taken
            atexit.register(messages_only)  # before what libraries do at the end
    except OSError as error:  # of help, or of what else is printed outside a command
        drop_stdout()
        typer.echo(f"error: Cannot write to standard output: {error.strerror or error}.", err=True)
        sys.exit(FileError.exit_code)
