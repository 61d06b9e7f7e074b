"""Critical path: the list scheduler that DOPPLER uses as a baseline and as a teacher."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.graph import unique_rows
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import best, is_over, option
from placeit.placers.feasibility import repair
from placeit.placers.list_scheduling import priority_order, upward_ranks
from placeit.simulator.tables import compiled

__all__ = ["CriticalPath"]


@dataclass(frozen=True)
class CriticalPath:
    """Place the ready op with the longest path to an exit first, where it starts earliest; best of several runs.

    This is the baseline of DOPPLER (sections 6, stage I, and 7), which runs it 50 times and keeps the best result. Runs differ
    in how ties between ops and between devices are broken. An op waits for all ops that were placed earlier on its device, or
    on a conflicting device. Path lengths use HEFT's mean costs.
    """

    runs: int = option(50, "randomised runs; the best result wins", least=1, most=10**5)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best of ``runs`` runs, or of as many as may be valued. Raises InfeasibleError."""
        count = max(1, self.runs if evaluations is None else min(self.runs, evaluations))
        rng = np.random.default_rng(seed)
        ranks = upward_ranks(problem)
        placements = [self._run(problem, ranks, rng)]
        while len(placements) < count and not is_over(deadline):
            placements.append(self._run(problem, ranks, rng))
        return best(cost, unique_rows(np.array(placements))[0], evaluations, deadline)

    def _run(self, problem: Problem, ranks: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int32]:
        order = priority_order(problem, ranks, rng.random(len(problem)))
        tie_breaks = rng.random((len(problem), problem.devices))
        placement = np.empty(len(problem), np.int32)
        _core.earliest_start_placement(compiled(problem), order, tie_breaks, placement)
        return repair(problem, placement)
