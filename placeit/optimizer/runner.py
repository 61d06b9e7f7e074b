"""Runs a plan in a race, and values each run by the objective."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.optimizer.candidates import Alone
from placeit.optimizer.deployed import Deployed
from placeit.runtime.measure import Measurement, summed_up
from placeit.simulator.objectives import Objective

__all__ = ["Runner"]


class Runner:
    """Runs a plan, in a race, and values each run by the objective.

    Attributes:
        took: seconds of the last run, with all its requests, as a clock outside saw it.
    """

    def __init__(self, deployed: Deployed, objective: Objective, alone: Alone | None = None) -> None:
        self.deployed, self.objective, self.alone = deployed, objective, alone
        self.values: list[float] = []
        self.took = 0.0

    def __call__(self) -> float:
        """Run once and return the seconds it took, or if many requests are in flight the seconds per request."""
        begin = clock.now()
        seconds = self.deployed.time()
        self.took = clock.now() - begin
        self.values.append(self.objective.of_run(seconds, self.work))
        return seconds

    def work(self) -> tuple[NDArray[np.float64], float]:
        """Seconds that each device of the cluster was busy in the last run, and links in sum."""
        executor = self.deployed.executors[0]
        busy = dict.fromkeys(executor.plan.problem.device_names, 0.0)
        moving = 0.0
        for span in executor.spans():
            if span.kind == "compute":
                busy[span.where[0]] += span.seconds
            else:
                moving += span.seconds
        seconds = np.array(list(busy.values()))
        return seconds if self.alone is None else seconds.sum() * self.alone.busy, moving

    def valued(self, measured: Measurement) -> Measurement:
        """Return the objective of the runs that were measured; the runs before them, for warming up, are left out."""
        return summed_up(measured.name, self.values[-len(measured.samples) :], measured.rounds)
