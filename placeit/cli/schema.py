"""``placeit schema``: show JSON Schemas of ``--json`` output and of recordings."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import UsageError
from placeit.core.nearest import nearest
from placeit.report.schemas import identity, schemas

__all__ = ["EXAMPLES", "schema"]

EXAMPLES = """\b
Examples:
  placeit schema
  placeit schema optimize > optimize.schema.json
  placeit schema cluster.up
  placeit schema recording
"""


def schema(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Command, or 'recording'; default: a list.")] = None,
    *,
    terminal: Terminal,  # noqa: ARG001 (every command takes one)
) -> Output:
    """Show the JSON Schema of what a command prints.

    The object that --json prints names its schema and the version of that, as in placeit.optimize/1. The schema (draft
    2020-12) has every field, with its type and meaning, and allows no others. The version changes if a field goes or
    means something else; fields may be added, so ask the placeit that printed an object for its schema.
    """
    by_identity, wanted = schemas(), name and identity(name)
    if name is not None and wanted is None:
        names = [one[8:].split("/")[0] for one in by_identity]
        raise UsageError(f"There is no schema of '{name}'; there are {', '.join(names)}{nearest(name, names)}.")
    shown = {one: found for one, found in by_identity.items() if wanted in (None, one)}
    text = "\n".join(by_identity) if wanted is None else json.dumps(by_identity[wanted], indent=2)
    return Output({"schemas": shown}, lambda console: console.print(text))
