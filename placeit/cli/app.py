"""The application ``placeit``."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from placeit.cli.commands import Commands, settings
from placeit.cli.streams import drop_stdout, mend_streams, messages_only
from placeit.core.errors import FileError, PlaceitError
from placeit.core.interrupts import guarded
from placeit.core.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(name="placeit", cls=Commands, **settings() | {"add_completion": True})


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"placeit {__version__}")
        raise typer.Exit


@app.callback(
    epilog="""\b
Examples:
  placeit demo
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


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command ``placeit`` and exit.

    Args:
        argv: arguments; None for the arguments of the process.
    """
    mend_streams()
    guarded(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> None:
    try:
        try:
            app(argv)
        finally:
            sys.stdout.flush()  # otherwise the interpreter would report unwritten output when it ends
            atexit.register(messages_only)  # registered last, so it runs before the exit functions of libraries
    except PlaceitError as error:  # raised while a plug-in's command is loaded
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:  # raised while help or another text is printed outside a command
        drop_stdout()
        typer.echo(f"error: Cannot write to standard output: {error.strerror or error}.", err=True)
        sys.exit(FileError.exit_code)
