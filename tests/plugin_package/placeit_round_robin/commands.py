"""A command: ``placeit deal``."""

from __future__ import annotations

from typing import Annotated

import typer

from placeit.cli.commands import Command
from placeit.cli.terminal import Output, Terminal

DEAL = Command("Say which device each op is dealt to.", f"{__name__}:deal")
EXAMPLES = """\b
Examples:
  placeit deal 5 --devices 2
"""


def deal(
    ops: Annotated[int, typer.Argument(metavar="OPS", help="How many.")],
    *,
    devices: Annotated[int, typer.Option("--devices", min=1, help="How many.")] = 2,
    terminal: Terminal,
) -> Output:
    """Say which device each op is dealt to."""
    dealt = [op % devices for op in range(ops)]
    return Output({"dealt": dealt}, lambda console: console.print(*dealt))
