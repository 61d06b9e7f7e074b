"""Throughput, as the seconds per request with many requests in flight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import CostFunction, Problem
from placeit.simulator.objectives.base import BusyTimes, Objective, Planned, Planner
from placeit.simulator.throughput_bound import ThroughputCost

__all__ = ["Throughput"]


@dataclass(frozen=True)
class Throughput(Objective):
    """Seconds per request with many requests in flight; see :class:`placeit.simulator.throughput_bound.ThroughputCost`."""

    name = "throughput"
    unit = "s"
    quantity = "time per request"
    better, worse, best = "of higher throughput", "slower per request", "the one of highest throughput"
    note = "seconds per request, with as many requests in flight as keep the bottleneck busy"
    is_measured = steady = True

    def of_run(self, seconds: float, work: BusyTimes) -> float:  # noqa: ARG002
        """Return the seconds per request."""
        return seconds

    def cost(self, problem: Problem, makespan: CostFunction) -> CostFunction:  # noqa: ARG002
        """Return a cost function: seconds that one request keeps the busiest device or link busy."""
        return ThroughputCost(problem)

    def of_plan(self, plan: Planned) -> float:
        """Return the seconds that one request keeps the busiest device or link of the plan busy."""
        return float(ThroughputCost(plan.problem)(plan.placement)[0])

    def of_plans(self, planner: Planner, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the seconds per request of the plans, in compiled code."""
        return planner.seconds(placements)
