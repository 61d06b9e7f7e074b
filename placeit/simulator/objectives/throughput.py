"""Throughput, as the seconds per request with many requests in flight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import CostFunction, Problem
from placeit.simulator.depth import at_depth
from placeit.simulator.objectives.base import BusyTimes, Objective, Planned, Planner
from placeit.simulator.throughput_bound import ThroughputCost

__all__ = ["Throughput"]


@dataclass(frozen=True)
class Throughput(Objective):
    """Seconds per request with many requests in flight.

    Plans are simulated with these requests (:mod:`placeit.simulator.depth`). Placers minimise the bound of
    :class:`placeit.simulator.throughput_bound.ThroughputCost`.

    Attributes:
        in_flight: number of requests in flight; None for the fewest that reach 95 % of a plan's throughput.
    """

    in_flight: int | None = None

    name = "throughput"
    unit = "s"
    quantity = "time per request"
    better, worse, best = "of higher throughput", "slower per request", "the one of highest throughput"
    note = "seconds per request, with as many requests in flight as keep the bottleneck busy"
    is_measured = steady = True

    @property
    def kept_as(self) -> str:
        """Its name and the number of requests in flight."""
        return self.name if self.in_flight is None else f"{self.name}, {self.in_flight} in flight"

    def at_depth(self, in_flight: int) -> Throughput:
        """Return the objective with a number of requests in flight."""
        return Throughput(in_flight)

    def of_run(self, seconds: float, work: BusyTimes) -> float:
        """Return the seconds per request."""
        return seconds

    def cost(self, problem: Problem, makespan: CostFunction) -> CostFunction:
        """Return a cost function: seconds that one request keeps the busiest device or link busy."""
        return ThroughputCost(problem)

    def of_plan(self, plan: Planned) -> float:
        """Return the simulated seconds per request of the plan."""
        return at_depth(plan.problem, plan.placement, self.in_flight).seconds

    def of_plans(self, planner: Planner, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return lower bounds of the seconds per request of the plans, in compiled code."""
        return planner.seconds(placements)
