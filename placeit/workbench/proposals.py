"""Find and compile plans that a server may try in place of its current one."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import ExecutionError
from placeit.measuring.incumbent import WORTH, is_worth_trying
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.calibration import calibrated
from placeit.runtime.plan_executor import PlanExecutor, to_serve
from placeit.runtime.runtime import SERVING_PRIORITY
from placeit.simulator.objectives.latency import Latency
from placeit.simulator.objectives.throughput import Throughput
from placeit.workbench.opened import Workbench

__all__ = ["Proposals"]

_WORTH = 0.98  # a plan is tried if its expected time is below this share of the incumbent's, as trials slow requests down
_STEPS = 50  # of a search
_SIMULATED = 8  # best plans by the bound of their throughput that are simulated with requests in flight


class Proposals:
    """Plans that a server may try in place of its current one, by the costs of a session, calibrated by its requests.

    Args:
        session: a profiled session.
        in_flight: maximum number of requests in flight; None for as many as a plan needs.
        priority: of their segments; 0 or less, added to the one of servers.

    Raises:
        UsageError: costs are not known.
    """

    def __init__(self, session: Workbench, in_flight: int | None, priority: int = 0) -> None:
        self._session, self.in_flight, self._costs = session, in_flight, session.costs
        self._priority = SERVING_PRIORITY + priority
        self._seed, self._plain_s = 0, 0.0
        self._placements: list[NDArray[np.int32]] = []

    def calibrate(self, runs: Sequence[tuple[Plan, NDArray[np.float64]]]) -> Costs:
        """Calibrate the costs by requests, and return them.

        Args:
            runs: plans, each with the seconds of its segments in requests, ``float64[S]``.
        """
        costs = self._session.costs
        segmenter = Segmenter(self._session.grouping, costs)
        self._costs = calibrated(costs, [(segmenter.priced(plan), seconds) for plan, seconds in runs if self._is_here(plan)])
        self._plain_s = max((float(seconds.sum()) for plan, seconds in runs if not self._is_here(plan)), default=0.0)
        return self._costs

    def search(self, plan: Plan, *, steady: bool) -> None:
        """Search for better plans, from the incumbent plan and from the best known placement.

        Args:
            plan: the incumbent.
            steady: whether to minimise the seconds per request in steady state, and not the makespan.
        """
        segmenter = self._segmenter(steady)
        problem = segmenter.problem()
        if not self._placements:
            self._placements = [np.full(len(problem), d, np.int32) for d in problem.single_devices]
        current = [plan.group_devices] if self._is_here(plan) else []
        starts = [*current, *self._placements]
        if not starts:
            return
        best = starts[int(np.argmin(segmenter.seconds(np.stack(starts))))]
        for start in (*current, best):
            self._placements.append(segmenter.search(start, problem, steps=_STEPS, seed=self._seed))
            self._seed += 1

    def best(self, plan: Plan, tried: Sequence[Plan], *, steady: bool) -> Plan | None:
        """Return the best plan that was found and not tried, by expected time; None if it is not worth a trial.

        Args:
            plan: the incumbent.
            tried: plans that were tried.
            steady: whether the expected time is the seconds per request with the requests in flight, and not the makespan. Of
                plans within 1 % of the least, the one with the fewest segments is then the best.
        """
        segmenter = self._segmenter(steady)
        found = {placement.tobytes(): placement for placement in self._placements}
        for one in (one for one in (plan, *tried) if self._is_here(one)):
            found.pop(one.group_devices.tobytes(), None)
        self._placements = list(found.values())
        if not found:
            return None
        by = Throughput(self.in_flight) if steady else Latency()
        current = by.of_plan(segmenter.plan(plan.group_devices)) if self._is_here(plan) else self._plain_s
        first = np.argsort(segmenter.seconds(np.stack(self._placements)))[:_SIMULATED]
        plans = [segmenter.plan(self._placements[number]) for number in first]
        values = [by.of_plan(one) for one in plans]
        if not is_worth_trying(least := min(values), current, _WORTH):
            return None
        close = [(value, one) for value, one in zip(values, plans, strict=True) if value <= least / WORTH]
        return min(close, key=lambda one: (len(one[1].segments) if steady else 0, one[0]))[1]

    def _segmenter(self, steady: bool) -> Segmenter:
        """Return a segmenter for the calibrated costs, and for throughput also for the number of requests in flight."""
        return Segmenter(self._session.grouping, self._costs, steady=steady, in_flight=self.in_flight)

    def _is_here(self, plan: Plan) -> bool:
        """Return whether a plan is for the session's devices, and not for a plain device, whose requests give its time."""
        return plan.problem.device_names == self._session.cluster.names

    def starts_threads(self, plan: Plan) -> bool:
        """Return whether compiling a plan may start threads, as for any device but a core set of one core."""
        devices = [self._session.cluster.devices[segment.device] for segment in plan.programs]
        return not all(device.core_set and len(device.cores) == 1 for device in devices)

    def open(self, plan: Plan) -> PlanExecutor:
        """Compile a plan, and return its executor."""
        return to_serve(functools.partial(self._session.executor, priority=self._priority), plan, self.in_flight)

    def check(self, executor: PlanExecutor) -> None:
        """Check the outputs of an executor, by two runs on the devices that serve. Raises ExecutionError if they are wrong."""
        wrong = self._session.reference.check(executor).wrong(self._session.tolerance)
        if wrong is not None:
            raise ExecutionError(wrong)
