"""GiPH as a placer."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, Measured, option
from placeit.placers.feasibility import random_placements

if TYPE_CHECKING:
    from placeit.learning.agents.giph.shipped import Policy

__all__ = ["Giph"]

_CHUNK = 64  # placements that are valued at once


@dataclass(frozen=True)
class Giph:
    """GiPH (Hu et al. 2023): from a random placement, a learned policy moves one op at a time; the best placement wins.

    The policy that ships with placeit was trained on random graphs and networks of all kinds, and is not trained further here.
    docs/giph.md describes its training problems and its results. ``placeit train giph`` makes other policies.
    """

    weights: str = option("", "file of a trained policy; empty for the one that ships with placeit; or untrained, or uniform")
    episodes: int = option(1, "searches from a random placement", least=1, most=10**6)
    steps_per_op: float = option(2.0, "steps of an episode, per op", least=0, most=1000)

    def __post_init__(self) -> None:
        if self.weights:
            _ = self._policy  # a wrong file should not cost a profile first

    @functools.cached_property
    def _policy(self) -> Policy:
        from placeit.learning.agents.giph.shipped import policy

        return policy(self.weights)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the visited placement with the lowest cost.

        Raises:
            InfeasibleError: no feasible placement is found.
            FileError: the file of the policy is missing or damaged, of another version, or holds another kind of policy.
        """
        return self._play(None, problem, cost, seed, evaluations, deadline)

    def refine(
        self, problem: Problem, cost: CostFunction, measured: Measured, *, seed: int, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Search from the best measured placement; later episodes start from random placements, as in :meth:`place`."""
        return self._play(measured.placements[0], problem, cost, seed, None, deadline)

    def _play(
        self,
        first: NDArray[np.int32] | None,
        problem: Problem,
        cost: CostFunction,
        seed: int,
        evaluations: int | None,
        deadline: float | None,
    ) -> NDArray[np.int32]:
        """Play the episodes; the first one starts from ``first`` unless that is None."""
        agent = self._policy
        found = Incumbent(cost, evaluations, deadline)
        rng = np.random.default_rng(seed)
        steps = round(self.steps_per_op * len(problem))
        for episode in range(max(1, self.episodes)):
            if episode and found.over:
                break
            start = random_placements(problem, 1, rng)[0] if episode or first is None else first
            search, path = agent.answering(problem, start), [start]
            for _ in range(steps):
                scores = search.scores()
                if found.over or search.step(0, scores, rng) is None:
                    break
                path.append(search.nets.placements[0].copy())
                if len(path) >= min(_CHUNK, found.left):
                    found.offer(np.stack(path))
                    path = []
            if path:
                found.offer(np.stack(path))
        return found.placement
