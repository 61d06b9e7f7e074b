"""Random placements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import best, option
from placeit.placers.feasibility import random_placements

__all__ = ["RandomSearch"]


@dataclass(frozen=True)
class RandomSearch:
    """The best of several random feasible placements; with one sample, the random baseline of the papers."""

    samples: int = option(100, "placements to draw", least=1, most=10**5)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best of ``samples`` placements, or of fewer if fewer may be valued. Raises InfeasibleError."""
        count = self.samples if evaluations is None else min(self.samples, evaluations)
        return best(cost, random_placements(problem, max(1, count), np.random.default_rng(seed)), evaluations, deadline)
