"""Parse and check the values of options, and complete them for shells."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import typer

from placeit.core.errors import UsageError
from placeit.core.units import parse_duration
from placeit.simulator.objectives.registry import objective_names

__all__ = [
    "check_placers",
    "complete_agents",
    "complete_devices",
    "complete_objectives",
    "complete_placers",
    "duration",
    "minimised",
    "parse_pairs",
]


def minimised() -> str:
    """Return the help of an option that takes any objective."""
    names = _matching(objective_names, "")  # empty if two packages use one name; the command reports that
    return f"What to minimise: {', '.join(names[:-1])} or {names[-1]}" if names else "What to minimise"


def duration(text: str | float) -> float:
    """Parse the value of an option that is a duration, in seconds. Raises typer.BadParameter."""
    try:
        return parse_duration(str(text))
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error


def check_placers(placers: Sequence[str]) -> None:
    """Check that placers exist, with their packages. The module of a ``module:Class`` may be in the working directory."""
    from placeit.placers.registry import own_module, parse_placer

    for one in placers:
        if own_module(one) and str(Path.cwd()) not in sys.path:  # last: it hides no module of a package
            sys.path.append(str(Path.cwd()))
        parse_placer(one)


def parse_pairs(option: str, texts: Iterable[str], form: str) -> dict[str, str]:
    """Read ``NAME=VALUE`` for each text. Raises UsageError, with the right ``form``, also if a name occurs twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        if not (name and value):
            raise UsageError(f"Cannot read {option} '{text}'; write {form}.")
        if name in pairs:
            raise UsageError(f"{option} names '{name}' twice.")
        pairs[name] = value
    return pairs


def complete_devices(incomplete: str) -> list[str]:
    """Complete the last name of a list of devices, without asking runtimes for their devices, which would take a second."""
    from placeit.devices.host import allowed_cores

    before, comma, last = incomplete.rpartition(",")
    names = ["CPU", *(f"CPU@{core}" for core in allowed_cores()), *([] if comma else ["auto"])]
    return [f"{before}{comma}{name}" for name in names if name.startswith(last) and name not in before.split(",")]


def complete_placers(incomplete: str) -> list[str]:
    """Complete the name of a placer, without importing any."""
    from placeit.placers.registry import placer_names

    return _matching(placer_names, incomplete)


def complete_objectives(incomplete: str) -> list[str]:
    """Complete the name of an objective."""
    return _matching(objective_names, incomplete)


def complete_agents(incomplete: str) -> list[str]:
    """Complete the name of an agent."""
    from placeit.core.registry import entry_table

    return _matching(lambda: entry_table("agent", "placeit.agents", {}), incomplete)


def _matching(names: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except UsageError:  # two packages use one name; the command reports that
        return []
