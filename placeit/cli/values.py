"""Values of options: durations, and what a shell completes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import typer

from placeit.core.errors import UsageError
from placeit.core.units import parse_duration

__all__ = [
    "MINIMISED",
    "OBJECTIVES",
    "complete_agents",
    "complete_devices",
    "complete_objectives",
    "complete_placers",
    "duration",
]

OBJECTIVES = ("latency", "throughput", "total-cost", "energy")
"""Names of all objectives, which ``placeit.simulator.objectives`` would take NumPy to tell."""


MINIMISED = f"What to minimise: {', '.join(OBJECTIVES[:-1])} or {OBJECTIVES[-1]}"
"""Help of an option that takes all of them."""


def duration(text: str | float) -> float:
    """Read the value of an option that is a duration, in seconds. Raises typer.BadParameter."""
    try:
        return parse_duration(str(text))
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error


def complete_devices(incomplete: str) -> list[str]:
    """Complete the last name of a list of devices; no runtime is asked for its devices, which would take a second."""
    from placeit.devices.host import allowed_cores

    before, comma, last = incomplete.rpartition(",")
    known = ["CPU", *(f"CPU@{core}" for core in allowed_cores()), *([] if comma else ["auto"])]
    return [f"{before}{comma}{name}" for name in known if name.startswith(last) and name not in before.split(",")]


def complete_placers(incomplete: str) -> list[str]:
    """Complete the name of a placer; none is imported."""
    from placeit.placers.registry import placer_names

    return _starting(placer_names, incomplete)


def complete_objectives(incomplete: str) -> list[str]:
    """Complete the name of an objective."""
    return [name for name in OBJECTIVES if name.startswith(incomplete)]


def complete_agents(incomplete: str) -> list[str]:
    """Complete the name of an agent."""
    from placeit.core.registry import entry_table

    return _starting(lambda: entry_table("agent", "placeit.agents", {}), incomplete)


def _starting(names: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except UsageError:  # two packages use one name, which the command will say
        return []
