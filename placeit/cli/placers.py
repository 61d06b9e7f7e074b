"""List the installed placers, plug-ins included, with their options, for ``placeit optimize --help``."""

from __future__ import annotations

import textwrap
from typing import Any

from placeit.cli.command import Command
from placeit.core.errors import UsageError

__all__ = ["ListsPlacers"]


class ListsPlacers(Command):
    """A command whose help lists placers. Only this help imports them, since that takes some seconds."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of the command, and below them the placers."""
        super().format_options(ctx, formatter)
        with formatter.section("Placers and their options (* used without --placer)"):
            for line in _lines(formatter.width - formatter.current_indent):
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def _lines(width: int) -> list[str]:
    from placeit.optimizer.portfolio import DEFAULT_PLACERS
    from placeit.placers.registry import placer_names, placer_options, placer_summary

    lines: list[str] = []
    for name in placer_names():
        try:
            options, summary = placer_options(name), placer_summary(name)
        except UsageError as error:  # a broken plug-in
            options, summary = (), str(error)
        lines.append(f"{name} *" if name in DEFAULT_PLACERS else name)
        lines += textwrap.wrap(summary, width, initial_indent="    ", subsequent_indent="    ")
        for option in options:
            default = "TEXT" if option.default == "" else option.default
            lines += textwrap.wrap(
                f"{option.name}={default}  {option.help}", width, initial_indent="      ", subsequent_indent="        "
            )
    return lines
