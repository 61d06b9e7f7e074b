"""Find agents by name: the agents that placeit and plug-ins declare as ``placeit.agents`` entry points."""

from __future__ import annotations

import functools
import inspect
import typing
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, TypeVar

from placeit.core.registry import check_options, entry_table, load_entry

if TYPE_CHECKING:
    from placeit.learning.agent import Agent

    A = TypeVar("A", bound=Agent)

__all__ = ["GROUP", "agent_class", "agent_names", "fresh", "make_agent", "option_types"]

GROUP = "placeit.agents"
"""Entry-point group in which placeit and plug-ins declare agents."""


def agent_names() -> tuple[str, ...]:
    """Return the names of all agents, sorted, without importing them. Raises UsageError if two packages use one name."""
    return tuple(sorted(_table()))


def agent_class(name: str) -> type[Agent]:
    """Return the class of an agent.

    Raises:
        UsageError: the agent does not exist, or its package cannot be imported.
    """
    cls: type[Agent] = load_entry("agent", _table(), name)
    return cls


def make_agent(name: str, *, seed: int, **options: Any) -> Agent:
    """Make an untrained agent.

    Args:
        name: one of :func:`agent_names`.
        seed: seed of the initial weights.
        **options: arguments of the agent's class; the others keep their defaults.

    Raises:
        UsageError: the agent or an option does not exist, or a value is not valid.
    """
    cls = agent_class(name)
    check_options("agent", name, options, inspect.signature(cls).parameters)
    return fresh(cls, seed, **options)


def fresh(cls: type[A], seed: int, **options: Any) -> A:
    """Make an untrained agent of a class, whose initial weights depend on the seed alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        return cls(**options)


def option_types(cls: type[Agent]) -> dict[str, type]:
    """Return the declared types of the options of an agent's class."""
    hints = typing.get_type_hints(cls.__init__)
    return {key: hints[key] for key in inspect.signature(cls).parameters if isinstance(hints.get(key), type)}


@functools.cache
def _table() -> dict[str, EntryPoint]:
    return entry_table("agent", GROUP, {})
