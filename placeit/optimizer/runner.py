"""Runs a plan in a race, and values each run by the objective."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.devices.energy import EnergyMeters
from placeit.optimizer.candidates import Alone
from placeit.optimizer.deployed import Deployed
from placeit.runtime.measure import Measurement, summed_up
from placeit.simulator.objectives import Objective

__all__ = ["Runner"]


class Runner:
    """Runs a plan, in a race, and values each run by the objective.

    Args:
        deployed: what runs.
        objective: what its runs are valued by.
        alone: if it is on none of the cluster's devices.
        meters: read while it runs, request after request for as long as that takes; None for one run at a time.

    Attributes:
        values: the objective of each run by its times.
        joules: those of each run by the meters; None where a meter was given up.
        took: seconds of the last run, with all its requests, as a clock outside saw it.
    """

    def __init__(
        self, deployed: Deployed, objective: Objective, alone: Alone | None = None, meters: EnergyMeters | None = None
    ) -> None:
        self.deployed, self.objective, self.alone, self._meters = deployed, objective, alone, meters
        self.values: list[float] = []
        self.joules: list[float | None] = []
        self.took = 0.0

    def __call__(self) -> float:
        """Run once and return the seconds it took, or if many requests are in flight the seconds per request.

        With meters, it is the median of all requests.
        """
        begin = clock.now()
        if self._meters is None or not self._meters.complete:
            taken, joules = [self.deployed.time()], None
        else:
            taken, joules = self.deployed.metered(self._meters)
        self.took = clock.now() - begin
        self.values.append(self.objective.of_run(taken[-1], self.work))
        self.joules.append(joules)
        return float(np.median(taken))

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

    def metered(self, measured: Measurement) -> Measurement | None:
        """Return the joules of the runs that were measured; None if meters were not read in all of them."""
        joules = [one for one in self.joules[-len(measured.samples) :] if one is not None]
        return summed_up(measured.name, joules, measured.rounds) if len(joules) == len(measured.samples) else None
