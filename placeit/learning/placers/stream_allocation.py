"""The stream allocation as a placer."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeit.core.extras import need
from placeit.core.graph import unique_rows
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, option

if TYPE_CHECKING:
    from placeit.learning.agents.stream_allocation.agent import StreamAllocationAgent

__all__ = ["StreamAllocation"]


@dataclass(frozen=True)
class StreamAllocation:
    """The graph-aware encoder-decoder of Ni et al. (2020), for throughput: a learned policy writes placements; the best wins.

    The policy that ships with placeit was trained on generated stream graphs on five equal devices, and uses at most five
    devices. docs/streams.md describes its training and its results. ``placeit train stream-allocation`` makes other policies.
    """

    weights: str = option("", "file of a trained policy; empty for the one that ships with placeit")
    samples: int = option(16, "placements to draw, in addition to the most likely one", least=0, most=10**5)

    def __post_init__(self) -> None:
        need("The placer 'stream-allocation'", "learn", "torch")
        if self.weights:
            _ = self._policy  # a wrong file should not cost a profile first

    @functools.cached_property
    def _policy(self) -> StreamAllocationAgent:
        from placeit.learning.agents.stream_allocation.agent import StreamAllocationAgent
        from placeit.learning.checkpoint import load_policy

        return load_policy(self.weights, StreamAllocationAgent)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best placement by cost; the likeliest placement is valued first, then samples.

        Raises:
            FileError: the checkpoint does not exist, or it holds another policy.
            InfeasibleError: no feasible placement is found.
        """
        from placeit.learning.agent import ProblemInstance

        found = Incumbent(cost, evaluations, deadline)
        found.offer(self._policy.greedy_placement(problem)[None])
        if self.samples and not found.over:
            instances = [ProblemInstance(problem, cost, 1.0)] * self.samples
            drawn = self._policy.rollout(instances, np.random.default_rng(seed)).visited
            found.offer(unique_rows(np.concatenate(drawn))[0])
        return found.placement
