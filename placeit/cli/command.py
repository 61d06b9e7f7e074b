"""Turn functions into commands: options from dataclasses, output to the right stream, errors to exit codes."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import inspect
import logging
import os
import re
import sys
import traceback
import typing
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import typer
from typer.core import TyperCommand

from placeit.cli.streams import drop_stdout
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import FileError, PlaceitError
from placeit.core.files import own_descriptor
from placeit.core.interrupts import INTERRUPTED, come_through, happened
from placeit.core.nearest import nearest
from placeit.report.schemas import identity
from placeit.report.text import printable

__all__ = ["Command", "command", "was_given"]

_GIVEN: ContextVar[frozenset[str]] = ContextVar("options that were given", default=frozenset())

BUG = 70
"""Exit code of an error that placeit does not expect (``EX_SOFTWARE`` of sysexits.h)."""
FAILED = PlaceitError.exit_code
"""Exit code where there is a result, and part of it is that something failed."""
BROKEN_PIPE = 141
"""Exit code if the reader of standard output goes away: 128 + SIGPIPE."""

_LONGEST = 1500
"""Characters of an error."""


class Command(TyperCommand):
    """A command that suggests the value that was meant, where an option takes one of several."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line. Raises typer.BadParameter."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # pydantic's, of some versions of typer
            if " is not one of " in error.message:
                given, *known = re.findall(r"'([^']*)'", error.message)
                error.message = f"{error.message.rstrip('.')}{nearest(given, known)}."
            raise


def command(function: Callable[..., Output]) -> Callable[..., None]:
    """Make a function a command for typer.

    Each field of a parameter whose type is a dataclass becomes a parameter of its own. The function returns what it found;
    it prints nothing itself, and whatever libraries write to standard output while it runs goes to standard error.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    bundles: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if dataclasses.is_dataclass(kind):
            bundles[parameter.name] = kind
            fields = typing.get_type_hints(kind, include_extras=True)
            for field in dataclasses.fields(kind):
                default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
                parameters.append(_parameter(field.name, default, fields[field.name]))
        else:
            parameters.append(_parameter(parameter.name, parameter.default, kind))

    def run(context: typer.Context, **values: Any) -> None:
        _GIVEN.set(
            frozenset(name for name in values if str(getattr(context.get_parameter_source(name), "name", "")) != "DEFAULT")
        )
        arguments = {
            name: kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in bundles.items()
        }
        terminal = next(value for value in arguments.values() if isinstance(value, Terminal))
        with _Reporting(terminal.debug):
            with _stdout_for_the_result(), _library_messages(terminal):
                output = function(**arguments, **values)
            come_through()
            _deliver(terminal, _identified(context, output) if terminal.json else output)
        raise typer.Exit(output.exit_code)

    parameters.append(_parameter("context", inspect.Parameter.empty, typer.Context))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = function.__doc__
    return run


def was_given(option: str) -> bool:
    """Return whether the value of an option, by its parameter's name, is not the default of the command that runs."""
    return option in _GIVEN.get()


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _identified(context: typer.Context, output: Output) -> Output:
    """Name the schema of what ``--json`` prints, if the command has one."""
    names: list[str] = []
    at: Any = context
    while at.parent is not None:
        names.insert(0, str(at.info_name))
        at = at.parent
    schema = identity(".".join(names))
    return output if schema is None else dataclasses.replace(output, data={"schema": schema, **output.data})


class _ReaderGoneError(Exception):
    """The reader of standard output has gone away."""


class _Reporting:
    """Turns whatever a command raises into one paragraph on standard error and an exit code."""

    def __init__(self, debug: bool) -> None:
        self._debug = debug

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if error is None:
            return
        if self._debug and not isinstance(error, _ReaderGoneError):
            typer.echo("".join(traceback.format_exception(error)), err=True)
        come_through()
        message, code = _explain(error)
        if message:
            typer.echo(_shortened(printable(" ".join(message.split()))), err=True)
        raise typer.Exit(code) from None


def _shortened(message: str) -> str:
    """Leave out the middle of a message that is too long to be read, such as one with a name of thousands of characters."""
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 3 :]}"


def _explain(error: BaseException) -> tuple[str, int]:
    """Return what to say about an error, and the exit code."""
    if happened() and not isinstance(error, FileError | _ReaderGoneError):
        return "interrupted", INTERRUPTED  # whatever a library has made of it
    match error:
        case PlaceitError():
            return f"error: {error}", error.exit_code
        case KeyboardInterrupt():
            return "interrupted", INTERRUPTED
        case _ReaderGoneError():
            return "", BROKEN_PIPE
        case MemoryError():
            return "error: There is not enough memory for this model here: try a smaller --batch.", PlaceitError.exit_code
        case OSError():
            what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
            return f"error: {what}. See where it happened with --debug.", PlaceitError.exit_code
        case _:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return f"error: This is a bug in placeit ({what}). Please report it, with what --debug shows.", BUG


@contextlib.contextmanager
def _stdout_for_the_result() -> Iterator[None]:
    """Send what is written to standard output to standard error instead, by Python and by native libraries."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            kept = os.dup(1)
        except OSError:  # closed by the program that this is a part of
            yield
            return
        with contextlib.suppress(AttributeError, OSError):
            sys.__stdout__.flush()  # type: ignore[union-attr]
        os.dup2(2, 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            ctypes.CDLL(None).fflush(None)  # what native libraries have printed and still hold
            os.dup2(kept, 1)
            os.close(kept)


@contextlib.contextmanager
def _library_messages(terminal: Terminal) -> Iterator[None]:
    """Show what placeit warns about; what libraries warn about only with ``--debug``."""
    root, own = logging.getLogger(), logging.getLogger("placeit")
    handler = _Handler(logging.ERROR if terminal.quiet else logging.WARNING)
    target = root if terminal.debug else own
    silence = logging.NullHandler()  # without any handler, logging prints warnings by itself
    root.addHandler(silence)
    target.addHandler(handler)
    try:
        with warnings.catch_warnings():
            if not terminal.debug:
                warnings.simplefilter("ignore")
            yield
    finally:
        target.removeHandler(handler)
        root.removeHandler(silence)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # not by typer.echo, which writes around what rich has put there to keep messages above what it shows live
        sys.stderr.write(printable(f"{record.levelname.lower()}: {record.getMessage()}\n"))


def _deliver(terminal: Terminal, output: Output) -> None:
    """Write the files of a result, then print it: all that can be. Raises FileError that says what is lost."""
    lost, gone = [], False
    for file in output.files:
        try:
            file.write()
        except FileError as error:
            if isinstance(error.__cause__, BrokenPipeError) and own_descriptor(file.path) == 1:
                gone = True
            else:
                lost.append(f"{error} Lost: {file.what}.")
    try:
        terminal.print(output, err=any(own_descriptor(file.path) == 1 for file in output.files))
        sys.stdout.flush()
    except BrokenPipeError:
        gone = True
    except OSError as error:
        drop_stdout()
        lost.append(f"Cannot write the result to standard output: {error.strerror or error}.")
    if gone:
        drop_stdout()
    if lost:
        raise FileError(" ".join(lost))
    if gone:
        raise _ReaderGoneError
