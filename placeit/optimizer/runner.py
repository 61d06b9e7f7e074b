"""Run a candidate in a race, and value each run by the objective."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.devices.energy import EnergyMeters
from placeit.measuring.statistics import Measurement, summed_up
from placeit.optimizer.candidates import OtherDevices
from placeit.optimizer.deployed import Deployed
from placeit.simulator.objectives.base import Objective

__all__ = ["Runner"]


class Runner:
    """A callable that runs a candidate in a race and values each run by the objective.

    Args:
        deployed: the candidate's executors.
        objective: objective that runs are valued by.
        other_devices: the candidate's devices, if they are not devices of the cluster.
        meters: energy meters; requests run one after the other until these can be read. None for one request per run.

    Attributes:
        values: the objective of each run, by its times.
        joules: joules of each run, by the meters; None where a meter was given up.
        inner: seconds of each run from the start of its lanes to the end of its last segment; None with many requests in
            flight, and for a runtime that is called without lanes.
        took: seconds of the last run, with all its requests, by the wall clock.
    """

    def __init__(
        self,
        deployed: Deployed,
        objective: Objective,
        other_devices: OtherDevices | None = None,
        meters: EnergyMeters | None = None,
    ) -> None:
        self.deployed, self.objective, self.other_devices, self._meters = deployed, objective, other_devices, meters
        self.values: list[float] = []
        self.joules: list[float | None] = []
        self.inner: list[float | None] = []
        self.took = 0.0

    def __call__(self) -> float:
        """Run once and return the seconds of the run, or with many requests in flight the seconds per request.

        With meters, it is the median of all requests.
        """
        begin = clock.now()
        if self._meters is None or not self._meters.complete:
            seconds, joules = [self.deployed.time()], None
        else:
            seconds, joules = self.deployed.metered(self._meters)
        self.took = clock.now() - begin
        self.values.append(self.objective.of_run(seconds[-1], self.work))
        self.joules.append(joules)
        self.inner.append(self.deployed.inner)
        return float(np.median(seconds))

    def work(self) -> tuple[NDArray[np.float64], float]:
        """Return the seconds that each device of the cluster was busy in the last run, and the sum for all links."""
        executor = self.deployed.executors[0]
        busy = dict.fromkeys(executor.plan.problem.device_names, 0.0)
        moving = 0.0
        for span in executor.spans():
            if span.kind == "compute":
                busy[span.where[0]] += span.seconds
            else:
                moving += span.seconds
        seconds = np.array(list(busy.values()))
        return seconds if self.other_devices is None else seconds @ np.atleast_2d(self.other_devices.busy), moving

    def valued(self, measured: Measurement, counted: Sequence[range]) -> Measurement:
        """Return the objective of the measured runs, given the runs that each sample is of (:meth:`Race.counted`)."""
        return self._summed_up(self.values, measured, counted)

    def metered(self, measured: Measurement, counted: Sequence[range]) -> Measurement | None:
        """Return the joules of the measured runs; None if meters were not read in all of them."""
        joules = [one for one in self.joules if one is not None]
        return self._summed_up(joules, measured, counted) if len(joules) == len(self.joules) else None

    def within(self, counted: Sequence[range]) -> float | None:
        """Return the median seconds of lanes in the measured runs; None if they are unknown."""
        inner = [one for runs in counted for number in runs if (one := self.inner[number]) is not None]
        return float(np.median(inner)) if inner else None

    @staticmethod
    def _summed_up(values: Sequence[float], measured: Measurement, counted: Sequence[range]) -> Measurement:
        runs = [values[one.start : one.stop] for one in counted]
        medians = [float(np.median(block)) for block in runs]
        return summed_up(measured.name, medians, measured.rounds, [value for block in runs for value in block])
