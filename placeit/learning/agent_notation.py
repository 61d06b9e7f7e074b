"""Parse agents in the notation of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeit.core.errors import UsageError
from placeit.core.registry import parse_options
from placeit.learning.registry import agent_class, make_agent, option_types

if TYPE_CHECKING:
    from placeit.learning.agent import Agent

__all__ = ["parse_agent"]


def parse_agent(text: str, *, seed: int, devices: int | None = None) -> Agent:
    """Make an agent from ``name`` or ``name:option=value,option=value``, as on the command line.

    The agent is untrained, unless the option ``weights`` names a checkpoint. Then the agent has the weights and the options of
    the checkpoint.

    Args:
        text: the agent, with its options.
        seed: seed of the initial weights.
        devices: default of the option ``devices`` of agents that have one output per device; None for the agent's default.

    Raises:
        UsageError: the text has another form, there are options beside ``weights``, or :func:`make_agent` raises it.
        FileError: the checkpoint does not exist, or it holds another agent.
    """
    name, options = parse_options("agent", text, lambda name: option_types(agent_class(name)))
    if "weights" not in options:
        if devices is not None and "devices" in option_types(agent_class(name)):
            options.setdefault("devices", devices)
        return make_agent(name, seed=seed, **options)
    from placeit.learning.checkpoint import load_policy  # which needs torch

    weights = options.pop("weights")
    if options:
        raise UsageError(f"The policy in {weights} has its own options: leave out {', '.join(map(repr, options))}.")
    return load_policy(weights, agent_class(name))
