"""Total cost, the busy time of all devices and links."""

from __future__ import annotations

from dataclasses import dataclass

from placeit.core.problem import CostFunction, Problem
from placeit.simulator.cost_functions import TotalCost
from placeit.simulator.objectives.base import BusyTimes, Objective

__all__ = ["BusyTime"]


@dataclass(frozen=True)
class BusyTime(Objective):
    """Busy seconds of all devices and links, summed; see :class:`placeit.simulator.cost_functions.TotalCost`."""

    name = "total-cost"
    unit = "s"
    quantity = "busy time"
    better, worse, best = "better by total-cost", "worse", "the one of least busy time"
    note = "busy time of all devices and links, summed"

    def of_run(self, seconds: float, work: BusyTimes) -> float:
        """Return the busy seconds of all devices and links, summed."""
        busy, moving = work()
        return float(busy.sum()) + moving

    def cost(self, problem: Problem, makespan: CostFunction) -> CostFunction:
        """Return the cost function that sums busy seconds of placements."""
        return TotalCost(problem)
