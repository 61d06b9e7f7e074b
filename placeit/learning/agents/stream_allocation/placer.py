"""The stream allocation as a placer."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import cast

import numpy as np
from numpy.typing import NDArray

from placeit.core.graph import unique_rows
from placeit.core.problem import CostFunction, Problem
from placeit.learning.agent import ProblemInstance
from placeit.learning.agents.stream_allocation.agent import StreamAllocationAgent
from placeit.learning.checkpoint import load_agent, load_policy
from placeit.placers.base import Incumbent, option

__all__ = ["StreamAllocation", "shipped"]


@functools.cache
def shipped() -> StreamAllocationAgent:
    """Return the policy that ships with placeit. Do not train it: it is shared."""
    with as_file(files("placeit.learning") / "weights" / "stream-allocation.safetensors") as path:
        return cast(StreamAllocationAgent, load_agent(path))


@dataclass(frozen=True)
class StreamAllocation:
    """The graph-aware encoder-decoder of Ni et al. (2020), for throughput: a learned policy writes placements; the best counts.

    The policy that ships with placeit was trained on generated stream graphs on five equal devices; docs/streams.md says how,
    and how good it is. It uses five devices at most. ``placeit train stream-allocation`` makes others.
    """

    weights: str = option("", "file of a trained policy; empty for the one that ships with placeit")
    samples: int = option(16, "placements drawn from the policy, beside the one that it likes best", least=0, most=10**5)

    def __post_init__(self) -> None:
        if self.weights:
            _ = self._policy  # a wrong file should not cost a profile first

    @functools.cached_property
    def _policy(self) -> StreamAllocationAgent:
        return load_policy(self.weights, StreamAllocationAgent) if self.weights else shipped()

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best placement by cost, among as many as may be evaluated; what the policy likes best comes first.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        found = Incumbent(cost, evaluations, deadline)
        found.offer(self._policy.greedy_placement(problem)[None])
        if self.samples and not found.over:
            instances = [ProblemInstance(problem, cost, 1.0)] * self.samples
            drawn = self._policy.rollout(instances, np.random.default_rng(seed)).visited
            found.offer(unique_rows(np.concatenate(drawn))[0])
        return found.placement
