"""The table of commands, built-in ones and plug-ins (entry points ``placeit.commands``), imported on first use."""

from __future__ import annotations

import functools
import sys
from importlib.metadata import EntryPoint
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from placeit.core.errors import UsageError
from placeit.core.interrupts import INTERRUPTED
from placeit.core.registry import entry_table, load_entry

__all__ = ["GROUP", "Command", "Commands", "settings"]

GROUP = "placeit.commands"
"""The entry-point group in which plug-ins register their commands."""


class Command(NamedTuple):
    """A command, as ``placeit --help`` lists it.

    Attributes:
        summary: description of the command in one line.
        target: ``module:function``, or ``module:app`` for a :class:`typer.Typer` of several commands. The function takes the
            parameters described at :func:`placeit.cli.command.command`. A text ``EXAMPLES`` in its module ends its help.
    """

    summary: str
    target: str


_BUILTIN = {
    "demo": Command("Find a placement of a small model on two boards, as a first try.", "placeit.cli.demo:demo"),
    "try": Command("Find out in a minute what placeit gains with a model.", "placeit.cli.try_model:try_model"),
    "devices": Command("List devices and the links between them.", "placeit.cli.devices:devices"),
    "inspect": Command("Show the contents of a model.", "placeit.cli.inspect:inspect"),
    "estimate": Command("Predict what a model takes, without running it.", "placeit.cli.estimate:estimate"),
    "profile": Command("Measure the costs of ops on each device.", "placeit.cli.profile:profile"),
    "optimize": Command("Find the fastest placement by measuring.", "placeit.cli.optimize:optimize"),
    "plan": Command("Assign the models of a fleet to its nodes.", "placeit.cli.plan:plan"),
    "placers": Command("List placers and their options.", "placeit.cli.placers:placers"),
    "run": Command("Run a placement, or a bundle, and measure it.", "placeit.cli.run:run"),
    "serve": Command("Serve models over HTTP and gRPC.", "placeit.cli.serve:serve"),
    "apply": Command("Change a running server to a placed workload.", "placeit.cli.apply:apply"),
    "generate-text": Command("Generate text with a decoder.", "placeit.cli.generate_text:generate_text"),
    "tune": Command("Find how to serve a model within a limit on latency.", "placeit.cli.tune:tune"),
    "compare": Command("Race placements against each single-device placement.", "placeit.cli.compare:compare"),
    "explain": Command("Show why ops are where a placement has them.", "placeit.cli.explain:explain"),
    "diff": Command("Show how two placements differ, and what each move changes.", "placeit.cli.diff:diff"),
    "report": Command("Show a recorded run as a page for a browser.", "placeit.cli.report:report"),
    "export": Command("Write a placement, or a model, for use without placeit.", "placeit.cli.export:export"),
    "build": Command("Write a placement as a bundle, to run it elsewhere.", "placeit.cli.build:build"),
    "schema": Command("Show the JSON Schema of what a command prints.", "placeit.cli.schema:schema"),
    "bench": Command("Compare placers on a public set of problems.", "placeit.cli.bench:app"),
    "cluster": Command("Start and end a local Ray cluster on this machine.", "placeit.cli.cluster:app"),
}


def settings() -> dict[str, Any]:
    """Return the settings of all typer applications; without rich, whose import takes most of the time of ``--help``."""
    return {
        "add_completion": False,
        "no_args_is_help": True,
        "pretty_exceptions_enable": False,
        "rich_markup_mode": None,
        "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 120},
    }


class Commands(TyperGroup):
    """A group of commands that imports each command on first use."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands. Raises UsageError if two packages use the same name."""
        return list(_table())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import a command; None if it does not exist. Raises UsageError if a plug-in's command cannot be imported."""
        try:
            command = _find(cmd_name)
            return None if command is None else _load(cmd_name, command.target)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of a command line. Raises an error that suggests similar names if it does not exist."""
        if _find(args[0]) is None:
            self.commands = dict.fromkeys(self.list_commands(ctx), self)  # the names to compare with
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        rows = []
        for name in self.list_commands(ctx):
            try:
                command = _find(name)
            except UsageError as error:  # a broken plug-in
                command = Command(str(error), "")
            rows.append((name, command.summary if command else ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _find(name: str) -> Command | None:
    """Return a command by name, or None; installed packages are searched only if it is not a built-in one."""
    if name in _BUILTIN:
        return _BUILTIN[name]
    if name not in _table():
        return None
    found = load_entry("command", _table(), name)
    if not isinstance(found, Command):
        raise UsageError(f"The command '{name}' ({_table()[name].value}) is not a placeit.cli.commands.Command.")
    return found


@functools.cache
def _table() -> dict[str, EntryPoint]:
    return entry_table("command", GROUP, {name: found.target for name, found in _BUILTIN.items()})


@functools.cache
def _load(name: str, target: str) -> Any:
    from placeit.cli import command

    entry = EntryPoint(name, target, GROUP)
    loaded = load_entry("command", {name: entry}, name)
    if isinstance(loaded, typer.Typer):
        return get_command(loaded)
    app, module = typer.Typer(**settings()), sys.modules[entry.module]
    app.command(name, cls=command.Command, epilog=getattr(module, "EXAMPLES", None))(command.command(loaded))
    return get_command(app)
