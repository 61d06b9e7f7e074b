"""An objective: how long the busiest device works for a request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import CostFunction, Problem
from placeit.simulator.objectives.base import BusyTimes, Objective


@dataclass(frozen=True)
class Busiest(Objective):
    """Busy seconds of the device that works longest."""

    name = "busiest"
    unit = "s"
    quantity = "busiest device's time"
    better, worse, best = "kinder to the busiest device", "harder on the busiest device", "the one of least work for a device"
    note = "busy time of the device that works longest"

    def of_run(self, seconds: float, work: BusyTimes) -> float:
        return float(work()[0].max())

    def cost(self, problem: Problem, makespan: CostFunction) -> CostFunction:
        def busiest(placements: NDArray[np.int32]) -> NDArray[np.float64]:
            on = placements[:, :, None] == np.arange(problem.devices)
            busy = np.where(on, problem.compute[None], 0.0).sum(axis=1)
            return np.where(np.isfinite(makespan(placements)), busy.max(axis=1), np.inf)

        return busiest
