"""Latency, the time until the last op has finished."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Cluster
from placeit.core.problem import CostFunction, Problem
from placeit.simulator.objectives.base import BusyTimes, Objective, Planner

__all__ = ["Latency"]


@dataclass(frozen=True)
class Latency(Objective):
    """Seconds until the last op has finished: the makespan.

    Attributes:
        rate: requests per second that arrive, one after the other, while runs are measured; None to measure them without
            pauses.
    """

    rate: float | None = None

    name = "latency"
    unit = "s"
    quantity = "time"
    better, worse, best = "faster", "slower", "the fastest"
    is_makespan = is_measured = paced = True

    @classmethod
    def of_cluster(cls, cluster: Cluster, rate: float | None = None) -> Self:
        """Return the objective for any devices."""
        return cls(rate)

    @property
    def kept_as(self) -> str:
        """Its name and the rate."""
        return self.name if self.rate is None else f"{self.name}, {self.rate:g} requests per second"

    def of_run(self, seconds: float, work: BusyTimes) -> float:
        """Return the makespan."""
        return seconds

    def cost(self, problem: Problem, makespan: CostFunction) -> CostFunction:
        """Return the makespans unchanged."""
        return makespan

    def of_plans(self, planner: Planner, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the makespans of the plans, in compiled code."""
        return planner.seconds(placements)
