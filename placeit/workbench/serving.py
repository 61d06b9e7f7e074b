"""Requests as they come to a session: what :meth:`placeit.workbench.Workbench.serve` and ``run`` do."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays
from placeit.core.errors import ExecutionError, UsageError
from placeit.core.placement import Placement
from placeit.devices.meters import Sampler
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.calibration import calibrated
from placeit.runtime.adapting import Adapter
from placeit.runtime.check import OutputDifference
from placeit.runtime.load import RateReport, keep_busy, offer
from placeit.runtime.plan_executor import PlanExecutor, to_serve
from placeit.runtime.refining import Limits, Refiner
from placeit.runtime.serving import Server
from placeit.workbench.opened import OpenSession
from placeit.workbench.options import Traffic
from placeit.workbench.recovery import Recovery
from placeit.workbench.running import given_to

__all__ = ["Proposals", "Watch", "run_at", "serve"]

Watch: TypeAlias = Callable[[Server], contextlib.AbstractContextManager[object]]
"""Makes a context of a server, in which requests arrive there."""

_WORTH = 0.98  # of what the incumbent is expected to take, for a candidate to be tried
_STEPS = 50  # of a search


def serve(
    session: OpenSession, placement: Placement, *, in_flight: int | None, queue: int, refine: bool | Limits, on_loss: str
) -> Server:
    """Do what :meth:`placeit.workbench.Workbench.serve` says."""
    if not refine:
        recovery = Recovery(session.runtime, session.costs, in_flight) if on_loss == "replace" else None
        server = Server(_executors(session, placement, in_flight), queue=queue, replace=recovery)
        if recovery is not None:
            server.adapt(Adapter(server, recovery))
        return server
    if on_loss == "replace":
        raise UsageError("A server either refines its placement or places anew what was lost: leave out 'refine' or 'on_loss'.")
    if placement.replicas:
        raise UsageError("A placement with replicas is not refined: one replica would have to be compared with all of them.")
    limits = refine if isinstance(refine, Limits) else Limits()
    proposals = Proposals(session, in_flight)
    session.output_check()  # which runs the reference
    server = Server(_executors(session, placement, in_flight), queue=queue)
    server.refine(Refiner(server, proposals, limits))
    return server


def _executors(session: OpenSession, placement: Placement, in_flight: int | None = None) -> list[PlanExecutor]:
    """Compile what serves a placement and its replicas."""
    executors: list[PlanExecutor] = []
    with contextlib.ExitStack() as stack:
        for one in placement.every:
            home = session.home_of(one)
            plan = home.plan_of(one)
            best = home.best_in_flight(plan, 0) or None if in_flight is None else in_flight
            executors.append(to_serve(home.executor, plan, best))
            stack.callback(executors[-1].close)
        stack.pop_all()
    return executors


class Proposals:
    """Plans that a server may try in place of its own, by the costs of a session, calibrated by its requests.

    Args:
        session: profiled.
        in_flight: how many may be in flight at once; None for as many as a plan needs.

    Raises:
        UsageError: costs are not known.
    """

    def __init__(self, session: OpenSession, in_flight: int | None) -> None:
        self._session, self._in_flight, self._costs = session, in_flight, session.costs
        self._seed, self._plain_s = 0, 0.0
        self._placements: list[NDArray[np.int32]] = []

    def calibrate(self, runs: Sequence[tuple[Plan, NDArray[np.float64]]]) -> Costs:
        """Costs that say what requests took: plans, and seconds of each segment, ``float64[S]``."""
        costs = self._session.costs
        segmenter = Segmenter(self._session.grouping, costs)
        self._costs = calibrated(costs, [(segmenter.priced(plan), seconds) for plan, seconds in runs if self._is_here(plan)])
        self._plain_s = max((float(seconds.sum()) for plan, seconds in runs if not self._is_here(plan)), default=0.0)
        return self._costs

    def search(self, plan: Plan, *, steady: bool) -> None:
        """Search on for a while, from an incumbent plan and from the best known; for what ``steady`` says in Segmenter."""
        segmenter = Segmenter(self._session.grouping, self._costs, steady=steady)
        problem = segmenter.problem()
        if not self._placements:
            self._placements = [np.full(len(problem), d, np.int32) for d in problem.single_devices]
        here = [plan.placement[plan.segment_of]] if self._is_here(plan) else []
        starts = [*here, *self._placements]
        if not starts:
            return
        best = starts[int(np.argmin(segmenter.seconds(np.stack(starts))))]
        for start in (*here, best):
            self._placements.append(segmenter.search(start, problem, steps=_STEPS, seed=self._seed))
            self._seed += 1

    def best(self, plan: Plan, tried: Sequence[Plan], *, steady: bool) -> Plan | None:
        """The plan that is expected to be the best of those found but not tried; None if none is better than the incumbent."""
        segmenter = Segmenter(self._session.grouping, self._costs, steady=steady)
        found = {placement.tobytes(): placement for placement in self._placements}
        for one in (one for one in (plan, *tried) if self._is_here(one)):
            found.pop(one.placement[one.segment_of].astype(np.int32).tobytes(), None)
        self._placements = list(found.values())
        if not found:
            return None
        now = segmenter.seconds(plan.placement[plan.segment_of])[0] if self._is_here(plan) else self._plain_s
        seconds = segmenter.seconds(np.stack(self._placements))
        number = int(np.argmin(seconds))
        return segmenter.plan(self._placements[number]) if seconds[number] < _WORTH * now else None

    def _is_here(self, plan: Plan) -> bool:
        """Return whether a plan is on devices of the session, and not on a plain device, which is timed by its requests."""
        return plan.problem.device_names == self._session.cluster.names

    def starts_threads(self, plan: Plan) -> bool:
        """Return whether compiling a plan may start threads that run it; one core is run by the thread of its device."""
        devices = [self._session.cluster.devices[segment.device] for segment in plan.programs]
        return not all(device.core_set and len(device.cores) == 1 for device in devices)

    def open(self, plan: Plan) -> PlanExecutor:
        """Compile a plan."""
        return to_serve(self._session.executor, plan, self._in_flight)

    def check(self, executor: PlanExecutor) -> None:
        """Run it twice, on the devices that serve. Raises ExecutionError if its outputs are wrong."""
        wrong = self._session.check_outputs(executor).wrong(self._session.tolerance)
        if wrong is not None:
            raise ExecutionError(wrong)


def run_at(
    session: OpenSession,
    placement: Placement,
    traffic: Traffic,
    *,
    warmup: int,
    inputs: Arrays | None,
    watch: Watch | None = None,
) -> RateReport:
    """Do what :meth:`placeit.workbench.Workbench.run` says of traffic."""
    due, given = traffic.times(), given_to(session, inputs)
    check = session.output_check(None if inputs is None else given)
    with contextlib.ExitStack() as stack:
        executors = [stack.enter_context(executor) for executor in _executors(session, placement)]
        error = functools.reduce(OutputDifference.worse, [check(executor) for executor in executors])
        for executor in executors * warmup:
            executor.run(given)
        server = stack.enter_context(Server(executors, queue=traffic.queue))
        at_once = sum(executor.in_flight for executor in executors)
        with Sampler() as sampler, contextlib.nullcontext() if watch is None else watch(server):
            if due is not None:
                served = offer(server, given, due)
            else:
                served = keep_busy(server, given, at_once, requests=traffic.requests, seconds=traffic.until)
        trace, labels = server.history.trace(), [executor.labels for executor in executors]
        ended = [one for one in server.history.requests() if math.isfinite(one.ended)]
        done = [replace(one, replica=next(k for k, of in enumerate(labels) if of is one.labels)) for one in ended]
        if served.load is None and served.error is not None:
            raise served.error
        if not served.interrupted:
            error = error.worse(OutputDifference.between(server.submit(given).result(), check.expected))
    return RateReport(
        model=str(session.model.path),
        placement=placement,
        rate=traffic.rate,
        arrivals=traffic.arrivals,
        seed=traffic.seed,
        in_flight=at_once,
        queue=traffic.queue,
        served=served,
        output_error=error,
        failed=error.wrong(session.tolerance),
        cluster=session.cluster,
        trace=trace,
        plans=[executor.plan for executor in executors],
        done=done,
        readings=sampler.readings,
    )
