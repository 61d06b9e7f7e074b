"""Agents by name: the ones that ship with placeit and the ones that plug-ins declare as ``placeit.agents`` entry points."""

from __future__ import annotations

import functools
import inspect
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from placeit.errors import UsageError

if TYPE_CHECKING:
    from placeit.placers.learned.agent import Agent

__all__ = ["GROUP", "agent_class", "agent_names", "make_agent"]

GROUP = "placeit.agents"
"""The entry-point group in which a plug-in names its agents."""

_BUILTIN = {
    "giph": "placeit.placers.learned.giph:GiphAgent",
    "hdp": "placeit.placers.learned.hdp:HdpAgent",
    "placeto": "placeit.placers.learned.placeto:PlacetoAgent",
}


def agent_names() -> tuple[str, ...]:
    """Names of all agents, sorted; nothing is imported. Raises UsageError if two packages use the same name."""
    return tuple(sorted(_table()))


def agent_class(name: str) -> type[Agent]:
    """Return the class of an agent.

    Raises:
        UsageError: there is no such agent, or its package cannot be imported.
    """
    table = _table()
    if name not in table:
        raise UsageError(f"There is no agent '{name}'; the agents are {', '.join(sorted(table))}.")
    try:
        cls: type[Agent] = table[name].load()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"The agent '{name}' ({table[name].value}) cannot be loaded: {error}. Install or repair its package."
        ) from error
    return cls


def make_agent(name: str, *, seed: int, **options: Any) -> Agent:
    """Make an untrained agent.

    Args:
        name: one of :func:`agent_names`.
        seed: of its initial weights.
        **options: arguments of its class; what is left out keeps its default.

    Raises:
        UsageError: there is no such agent, or it has no such option.
    """
    import torch

    cls = agent_class(name)
    known = inspect.signature(cls).parameters
    for key in options:
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise UsageError(f"The agent '{name}' has no option '{key}'; {has}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return cls(**options)


@functools.cache
def _table() -> dict[str, EntryPoint]:
    table = {name: EntryPoint(name, target, GROUP) for name, target in _BUILTIN.items()}
    for entry in entry_points(group=GROUP):
        if entry.name in table:
            raise UsageError(
                f"Two agents are named '{entry.name}': {table[entry.name].value} and {entry.value}. Uninstall the package of "
                "one of them, or rename its entry point."
            )
        table[entry.name] = entry
    return table
