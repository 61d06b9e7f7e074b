"""A placer that trains a policy on one model during the search for its placement."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeit.core.extras import need
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import option
from placeit.placers.registry import parse_placer

if TYPE_CHECKING:
    from placeit.optimizer.search import Search

__all__ = ["Policy"]


@dataclass(frozen=True)
class Policy:
    """Trains a policy on the model, in simulation first and then by measured runs, before the decision.

    Measuring takes place in ``optimize`` only; elsewhere this is the placer with the agent's name.
    """

    agent: str = option("doppler", "agent that learns, with its options: doppler, hsdag, or doppler:weights=FILE")
    state: str = option("", "file that keeps the policy; if it exists, the policy goes on learning from runs")

    def __post_init__(self) -> None:
        need("The placer 'policy'", "learn", "torch")
        from placeit.learning.policy_search import open_agent

        open_agent(self.agent, self._state, seed=0, devices=1)  # a wrong file should not cost a profile first

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the placement of the placer with the agent's name. Raises UsageError if it does not exist."""
        return parse_placer(self.agent).place(problem, cost, seed=seed, evaluations=evaluations, deadline=deadline)

    def explore(self, search: Search) -> None:
        """Train during a search, and measure placements; see :func:`placeit.learning.policy_search.learn`."""
        from placeit.learning.policy_search import learn

        learn(search, self.agent, self._state)

    @property
    def _state(self) -> Path | None:
        return Path(self.state) if self.state else None
