"""Turn functions into commands: define options, run the function, print its result, and map errors to exit codes."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import dataclasses
import inspect
import logging
import os
import re
import shlex
import sys
import traceback
import typing
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from placeit.cli.streams import drop_stdout
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import FileError, PlaceitError
from placeit.core.files import own_descriptor
from placeit.core.interrupts import INTERRUPTED, disarm_watchdog, was_interrupted
from placeit.core.nearest import nearest
from placeit.report.schemas import identity
from placeit.report.text import LOST, printable

__all__ = ["Command", "command", "command_line", "exit_code", "was_given", "write_result"]

_GIVEN: ContextVar[frozenset[str]] = ContextVar("options that were given", default=frozenset())
_WORDS: ContextVar[tuple[str, ...]] = ContextVar("words of the command line", default=())
_RESULT: ContextVar[Callable[[str], object] | None] = ContextVar("writes to standard output", default=None)

BUG = 70
"""Exit code of an unexpected error (``EX_SOFTWARE`` of sysexits.h)."""
FAILED = PlaceitError.exit_code
"""Exit code of a command whose result says that a part of its work failed."""
BROKEN_PIPE = 141
"""Exit code if the reader of standard output goes away: 128 + SIGPIPE."""

_LIMIT = 1500
"""Maximum number of characters of an error message, not counting commands to copy."""


class Command(TyperCommand):
    """A command that lists its options in groups, and suggests the nearest of an option's values."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the command's own options, and the options of each group (``rich_help_panel``)."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):  # the option --help is the last one
            if parameter.param_type_name == "argument":
                group = "Arguments"
            else:
                group = getattr(parameter, "rich_help_panel", None) or ("Options" if len(groups) == 2 else list(groups)[-1])
            if (record := parameter.get_help_record(ctx)) is not None:
                groups.setdefault(group, []).append(record)
        for group, records in groups.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line. Raises typer.BadParameter."""
        _WORDS.set((*ctx.command_path.split(), *args))
        try:
            rest = super().parse_args(ctx, args)
            params: list[Any] = self.params if "" in _WORDS.get() else []
            for param in params:
                if ctx.params.get(param.name or "") == Path():
                    raise typer.BadParameter("The path is empty; the folder that you are in is '.'.", ctx, param)
            return rest
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # some versions of typer add this prefix of pydantic
            if " is not one of " in error.message:
                value, *choices = re.findall(r"'([^']*)'", error.message)
                error.message = f"{error.message.rstrip('.')}{nearest(value, choices)}."
            raise


def command(function: Callable[..., Output]) -> Callable[..., None]:
    """Turn a function into a command for typer.

    Each field of a parameter whose type is a dataclass becomes a separate option, which ``--help`` lists in the group that the
    dataclass names as its ``HEADING``. The function returns its result and prints nothing. What libraries write to standard
    output while it runs goes to standard error.
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
                annotation = _with_heading(fields[field.name], _heading(kind, field.name))
                parameters.append(_parameter(field.name, default, annotation))
        else:
            parameters.append(_parameter(parameter.name, parameter.default, kind))

    def run(typer_context: typer.Context, **values: Any) -> None:
        _GIVEN.set(
            frozenset(
                name for name in values if str(getattr(typer_context.get_parameter_source(name), "name", "")) != "DEFAULT"
            )
        )
        arguments = {
            name: kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in bundles.items()
        }
        terminal = next(value for value in arguments.values() if isinstance(value, Terminal))
        with _Reporting(terminal.debug):
            with _stdout_for_the_result(), _library_messages(terminal):
                output = function(**arguments, **values)
            disarm_watchdog()
            _deliver(terminal, _with_schema(typer_context, output) if terminal.json else output)
        raise typer.Exit(output.exit_code)

    parameters.append(_parameter("typer_context", inspect.Parameter.empty, typer.Context))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = function.__doc__
    return run


def write_result(text: str) -> None:
    """Write a part of the result of the running command to standard output, before the command has ended."""
    write = _RESULT.get()
    try:
        if write is not None:
            write("\t".join(map(printable, text.split("\t"))))
    except BrokenPipeError:
        raise _ReaderGoneError from None


def exit_code(*, interrupted: bool = False, failed: bool = False) -> int:
    """Return the exit code of a command with a result, whose work was interrupted, or failed in part."""
    return INTERRUPTED if interrupted else FAILED if failed else 0


def command_line() -> str:
    """Return the command line of the running command, quoted for a shell; empty if no command runs."""
    return shlex.join(_WORDS.get())


def was_given(option: str) -> bool:
    """Return whether an option of the running command, named by its parameter, is on the command line."""
    return option in _GIVEN.get()


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _heading(kind: Any, field: str) -> str | None:
    """Return the heading of the dataclass that first declares a field."""
    owner = next(one for one in reversed(kind.__mro__) if field in inspect.get_annotations(one))
    return getattr(owner, "HEADING", None)


def _with_heading(annotation: Any, heading: str | None) -> Any:
    """Return the annotation of an option under a heading of the help."""
    value_type, info = typing.get_args(annotation)[:2]
    info = copy.copy(info)
    info.rich_help_panel = heading
    return Annotated[value_type, info]


def _with_schema(context: typer.Context, output: Output) -> Output:
    """Add the name of the schema to the ``--json`` output, if the command has a schema."""
    names: list[str] = []
    current: Any = context
    while current.parent is not None:
        names.insert(0, str(current.info_name))
        current = current.parent
    schema = identity(".".join(names))
    return output if schema is None else dataclasses.replace(output, data={"schema": schema, **output.data})


class _ReaderGoneError(Exception):
    """The reader of standard output has gone away."""


class _Reporting:
    """Context that turns an exception of a command into one paragraph on standard error and an exit code."""

    def __init__(self, debug: bool) -> None:
        self._debug = debug

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if error is None:
            return
        if self._debug and not isinstance(error, _ReaderGoneError):
            typer.echo("".join(traceback.format_exception(error)), err=True)
        disarm_watchdog()
        message, code = _explain(error)
        if message:
            typer.echo(_shortened(printable(" ".join(message.split()))), err=True)
        raise typer.Exit(code) from None


def _shortened(message: str) -> str:
    """Leave out the middle of a long message, except in commands between backticks, which users copy."""
    parts = re.split("(`[^`]+`)", message)
    return "".join(
        part if part.startswith("`") or len(part) <= _LIMIT else f"{part[: _LIMIT // 2]} ... {part[-_LIMIT // 3 :]}"
        for part in parts
    )


def _explain(error: BaseException) -> tuple[str, int]:
    """Return the message for an error, and the exit code."""
    if was_interrupted() and not isinstance(error, FileError | _ReaderGoneError):
        return "interrupted", INTERRUPTED  # even if a library has turned it into another error
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
            return f"error: {what}. Run the command again with --debug to see where it happened.", PlaceitError.exit_code
        case _:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return f"error: This is a bug in placeit ({what}). Please report it, with what --debug shows.", BUG


@contextlib.contextmanager
def _stdout_for_the_result() -> Iterator[None]:
    """Redirect standard output, of Python and of native libraries, to standard error during the block.

    :func:`write_result` still writes to standard output.
    """
    stdout = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        try:
            saved = os.dup(1)
        except OSError:  # closed by the program that this process is a part of
            yield
            return
        is_process_stdout = stdout is sys.__stdout__
        write = partial(os.write, saved)
        _RESULT.set((lambda text: write(text.encode("utf-8", "replace"))) if is_process_stdout else stdout.write)
        with contextlib.suppress(AttributeError, OSError):
            sys.__stdout__.flush()  # type: ignore[union-attr]
        os.dup2(2, 1)
        try:
            yield
        finally:
            _RESULT.set(None)
            sys.stdout.flush()
            ctypes.CDLL(None).fflush(None)  # write what native libraries still buffer
            os.dup2(saved, 1)
            os.close(saved)


@contextlib.contextmanager
def _library_messages(terminal: Terminal) -> Iterator[None]:
    """Show warnings of placeit; show warnings of libraries only with ``--debug``."""
    root, placeit_logger = logging.getLogger(), logging.getLogger("placeit")
    handler = _Handler(logging.ERROR if terminal.quiet else logging.WARNING)
    target = root if terminal.debug else placeit_logger
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
        # not typer.echo: rich keeps what passes sys.stderr above its live display
        sys.stderr.write(printable(f"{record.levelname.lower()}: {record.getMessage()}\n"))


def _deliver(terminal: Terminal, output: Output) -> None:
    """Write the files of a result, then print it. Raises FileError at the end, naming everything that could not be written."""
    lost, unwritten, reader_gone = list[str](), set[str](), False
    for file in output.files:
        try:
            file.write()
        except FileError as error:
            if isinstance(error.__cause__, BrokenPipeError) and own_descriptor(file.path) == 1:
                reader_gone = True
            else:
                lost.append(f"{error} Lost: {file.what}.")
                unwritten.add(str(file.path))
    token = LOST.set(frozenset(unwritten))
    try:
        terminal.print(output, err=any(own_descriptor(file.path) == 1 for file in output.files))
        sys.stdout.flush()
    except BrokenPipeError:
        reader_gone = True
    except OSError as error:
        drop_stdout()
        lost.append(f"Cannot write the result to standard output: {error.strerror or error}.")
    finally:
        LOST.reset(token)
    if reader_gone:
        drop_stdout()
    if lost:
        raise FileError(" ".join(lost))
    if reader_gone:
        raise _ReaderGoneError
