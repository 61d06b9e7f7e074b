"""``placeit placers``: list the installed placers, plug-ins included, with their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli.terminal import Output, Terminal
from placeit.cli.values import complete_placers
from placeit.core.errors import UsageError
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["EXAMPLES", "placers"]

EXAMPLES = """\b
Examples:
  placeit placers
  placeit placers annealing heft
  placeit placers --json | jq '.placers[].name'
"""


def placers(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Placers to show; default: all.", autocompletion=complete_placers),
    ] = None,
    *,
    terminal: Terminal,  # noqa: ARG001 (every command takes one)
) -> Output:
    """List placers, with what they do and their options.

    'placeit optimize' asks those marked * for placements, and others with --placer, as in --placer dp:orders=80. Placers of
    plug-ins are in the list; a class of your own needs no plug-in: --placer module:Class.
    """
    from placeit.placers.registry import placer_names

    found = [_described(name) for name in names] if names else [_listed(name) for name in placer_names()]

    def show(console: Console) -> None:
        for one in found:
            console.print(f"{one['name']} *" if one["default"] else one["name"])
            text.paragraph(console, one["failed"] or one["summary"], label="    ")
            for option in one["options"]:
                value = "TEXT" if option["default"] == "" else option["default"]
                text.paragraph(console, f"{option['name']}={value}  {option['help']}", label="      ")

    return Output({"placers": found}, show, answer=", ".join(one["name"] for one in found))


def _listed(name: str) -> dict[str, Any]:
    """Describe a placer, even one of a plug-in that cannot be imported."""
    try:
        return _described(name)
    except UsageError as error:
        return {"name": name, "default": False, "summary": None, "options": [], "failed": str(error)}


def _described(name: str) -> dict[str, Any]:
    from placeit.optimizer.portfolio import DEFAULT_PLACERS
    from placeit.placers.registry import placer_options, placer_summary

    options = [{"name": option.name, "default": option.default, "help": option.help} for option in placer_options(name)]
    default = name in DEFAULT_PLACERS
    return {"name": name, "default": default, "summary": placer_summary(name), "options": options, "failed": None}
