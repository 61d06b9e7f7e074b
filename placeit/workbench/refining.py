"""Refine the placement of a server: try another plan with a small share of its requests, and keep it if it is faster.

Unlike :mod:`placeit.optimizer`, this measures only requests of users, and runs no others.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeit.measuring.check import RUNS
from placeit.measuring.incumbent import Duel
from placeit.measuring.measure import FAILURES, WARMUP
from placeit.measuring.statistics import Ratio
from placeit.planning.segments import Plan
from placeit.runtime.background import Background
from placeit.serving.attendant import Attendant, Request
from placeit.serving.refinement import Limits, Refinement
from placeit.serving.server import Server
from placeit.simulator.depth import at_depth
from placeit.workbench.proposals import Proposals

__all__ = ["Refiner", "Trial"]

T = TypeVar("T")

_WINDOW, _FEWEST = 200, 40  # maximum and minimum number of requests for percentiles
_FEWEST_OTHERS = 100  # minimum number of other requests in a trial, so that requests that wait for its check are at most 5 %
_PAIRS = 25  # pairs that decide
_DEVIATIONS = 1.0  # standard deviations by which each of two percentiles is moved in the candidate's favour
_TRIALS = 3  # trials of a candidate that failed or slowed other requests down, which may have another cause
_AGAIN = 1000  # requests after which to search again if nothing was found
_SEARCHES = 4  # searches before each candidate
_POLL_S = 0.05  # seconds between two checks for requests that have ended


class Trial:
    """Compares a candidate with the incumbent, by pairs of requests: one that tried the candidate, and the next that did not.

    The times that are compared are free of queueing. For a request that was alone, it is the time from begin to end. For any
    other request, it is the simulated seconds per request, with the server's requests in flight, of a plan whose segments take
    as long as they took in this request (as in :meth:`placeit.workbench.proposals.Proposals.best`). Both requests of a pair are
    of the same kind. The first kind with enough pairs decides, once.

    Args:
        before: seconds of requests before the trial, at least :data:`_FEWEST`.
        tail: largest factor by which the 95th percentile may grow, apart from chance.
        in_flight: maximum number of requests in flight; None for as many as a plan needs.
    """

    def __init__(self, before: Sequence[float], *, tail: float, in_flight: int | None = None) -> None:
        self._in_flight = in_flight
        self.before = _tails(before)
        self._max_p95 = tail * _p95_within(before, _DEVIATIONS)
        self._others: deque[float] = deque(maxlen=_WINDOW)
        self._explored: Request | None = None  # the request on the candidate that has no partner yet
        self._warmup = WARMUP
        self._duels = {True: Duel(_PAIRS), False: Duel(_PAIRS)}
        self.ratio: Ratio | None = None
        self.too_slow = False  # whether the other requests have become too slow during the trial

    @property
    def others(self) -> tuple[float, float] | None:
        """The 95th and 99th percentile of the other requests' seconds; None if they are too few."""
        return _tails(self._others) if len(self._others) >= _FEWEST_OTHERS else None

    @property
    def over(self) -> bool:
        """True if the trial is decided, or has to end."""
        return self.too_slow or self.ratio is not None

    @property
    def adopt(self) -> bool:
        """True if the candidate is faster beyond the interval, which holds for any opening of both."""
        return not self.too_slow and self.ratio is not None and self.ratio.faster

    def add(self, request: Request) -> None:
        """Add the next request that has ended."""
        if self.over:
            return
        if request.explored:
            self._warmup -= 1
            self._explored = request if self._warmup < 0 else None
            return
        self._others.append(request.seconds)
        if len(self._others) >= _FEWEST_OTHERS and _p95_within(self._others, -_DEVIATIONS) > self._max_p95:
            self.too_slow = True
            return
        tried = self._explored
        if tried is not None and tried.alone == request.alone and request.begun >= tried.ended:
            self._explored = None
            duel = self._duels[request.alone]
            duel.add(self._service(tried), self._service(request))
            self.ratio = duel.ratio

    def _service(self, request: Request) -> float:
        if request.alone:
            return request.seconds
        plan = request.plan
        compute = plan.problem.compute.copy()
        for s, start, finish in request.ran:
            compute[s, plan.segments[s].device] = finish - start
        return at_depth(replace(plan.problem, compute=compute), plan.placement, self._in_flight).seconds


def _p95_within(seconds: Sequence[float] | deque[float], deviations: float) -> float:
    """Return the 95th percentile, moved by standard deviations of the number of values that are below it."""
    number = len(seconds)
    below = 0.95 * number + deviations * math.sqrt(0.95 * 0.05 * number)
    return float(np.sort(np.array(seconds))[min(number, math.ceil(below)) - 1])


def _tails(seconds: Sequence[float] | deque[float]) -> tuple[float, float]:
    p95, p99 = np.quantile(np.array(seconds), (0.95, 0.99)).tolist()
    return p95, p99


class _SegmentTimes:
    """Seconds of each segment in the last requests on a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.segments: list[deque[float]] = [deque(maxlen=_WINDOW) for _ in plan.segments]

    def seconds(self) -> NDArray[np.float64]:
        return np.array([np.median(times) if times else 0.0 for times in self.segments])


class Refiner(Attendant):
    """Refines a server on two threads: one that decides, and one in the background that searches and compiles.

    Args:
        server: the server to refine.
        proposals: finds and compiles candidates.
        limits: limits of what refining may cost.
    """

    report: Refinement

    def __init__(self, server: Server, proposals: Proposals, limits: Limits) -> None:
        super().__init__("placeit refinement")
        self._server, self._proposals, self._limits = server, proposals, limits
        self.report = Refinement()
        self._others: deque[float] = deque(maxlen=_WINDOW)
        self._alone: deque[bool] = deque(maxlen=_WINDOW)
        self._known = [_SegmentTimes(server.plan)]  # of the plan that serves, then of the candidate or the previous plan
        self._tried: list[Plan] = []
        self._dropped: list[Plan] = []  # plans that failed or slowed other requests down, once for each time
        self._trial: Trial | None = None
        self._background = Background(limits.core)

    def _report(self, **facts: object) -> None:
        self.report = replace(self.report, **facts)  # type: ignore[arg-type]

    def attend(self) -> None:
        """Search, compile and try candidates, until the refiner is closed."""
        with contextlib.closing(self._background), contextlib.suppress(_Closing):
            while self._wait_until(lambda: len(self._others) >= _FEWEST):
                plan = self._find_candidate()
                if plan is not None:
                    self._try(plan)
                else:
                    self._report(doing="waiting: no other placement is expected to be faster")
                    enough = self.report.requests + _AGAIN
                    self._wait_until(lambda enough=enough: self.report.requests >= enough)  # type: ignore[misc]

    def failed(self, error: BaseException) -> None:
        """Report that refining has ended, and why."""
        self._report(reason=f"refining has ended: {error}")

    def _find_candidate(self) -> Plan | None:
        """Search for a candidate, and return its plan; None if no plan is worth a trial."""
        self._report(doing="searching")
        serving, steady = self._known[0].plan, sum(self._alone) * 2 < len(self._alone)
        runs = [(known.plan, known.seconds()) for known in self._known]
        self._in_background(lambda: self._proposals.calibrate(runs))
        often = Counter(plan.group_devices.tobytes() for plan in self._dropped)
        tried = [*self._tried, *(plan for plan in self._dropped if often[plan.group_devices.tobytes()] >= _TRIALS)]
        for _ in range(_SEARCHES):
            self._in_background(lambda: self._proposals.search(serving, steady=steady))
        return self._in_background(lambda: self._proposals.best(serving, tried, steady=steady))

    def _try(self, plan: Plan) -> None:
        """Try a candidate with some requests, and make the server change to it if it is faster."""
        self._report(doing="compiling a candidate")
        with contextlib.ExitStack() as stack:
            try:
                executor = self._in_background(
                    lambda: self._proposals.open(plan), starts_threads=self._proposals.starts_threads(plan)
                )
                stack.callback(executor.close)
                trial = self._begin(plan)
                self._in_background(lambda: self._proposals.check(executor))
            except FAILURES as error:
                self._known, self._trial = self._known[:1], None
                self._tried.append(plan)
                self._report(reason=f"a candidate was left out: {error}")
                return
            self._count_requests()
            if self._closing.is_open:
                raise _Closing
            stack.pop_all()
        self._server.explore(executor, math.ceil(1 / self._limits.share - 1e-9))
        self._report(tried=self.report.tried + 1, doing="requests try a candidate")
        try:
            self._wait_until(lambda: trial.over or not self._server.exploring)
        finally:
            self._trial = None
            self._report(others=trial.others, ratio=trial.ratio)
            adopted = self._server.settle(adopt=trial.adopt)
        self._others.clear()
        if adopted:
            self._tried.append(self._known[0].plan)
            self._known = [self._known[-1], self._known[0]]
            self._report(switches=self.report.switches + 1, reason="a candidate was faster")
        elif trial.too_slow:
            self._dropped.append(plan)
            self._report(reason="the other requests took longer while a candidate was tried")
        elif trial.over and not trial.adopt:
            self._tried.append(plan)
            self._report(reason="a candidate was not faster")
        else:
            self._dropped.append(plan)
            self._report(reason="a candidate failed")

    def _begin(self, plan: Plan) -> Trial:
        """Begin a trial once the limits allow a check of the candidate: requests that wait for the check count in the trial."""

        def may() -> bool:
            now = self.report
            return self._background.rested and now.explored + now.checks + RUNS <= self._limits.share * now.requests

        self._wait_until(may)
        trial = Trial(self._others, tail=self._limits.tail, in_flight=self._proposals.in_flight)
        self._known, self._trial = [self._known[0], _SegmentTimes(plan)], trial
        checks = self.report.checks + RUNS
        self._report(checks=checks, doing="checking a candidate", before=trial.before, others=None, ratio=None)
        return trial

    def _wait_until(self, true: Callable[[], bool]) -> bool:
        """Wait until a condition is true, counting requests as they end; return True. Raises _Closing if the refiner closes."""
        while not true():
            if self._closing.wait(_POLL_S):
                raise _Closing
            self._count_requests()
        return True

    def _count_requests(self) -> None:
        count = explored = 0
        for request in self.heard():
            count += 1
            explored += request.explored
            for known in self._known:
                if known.plan is request.plan:
                    for s, start, finish in request.ran:
                        known.segments[s].append(finish - start)
            if self._trial is not None:
                self._trial.add(request)
            elif request.plan is self._known[0].plan:
                self._others.append(request.seconds)
                self._alone.append(request.alone)
        if count:
            self._report(requests=self.report.requests + count, explored=self.report.explored + explored)
            if self._trial is not None:
                self._report(others=self._trial.others)

    def _in_background(self, what: Callable[[], T], *, starts_threads: bool = False) -> T:
        """Run a function in the background, after the idle time that is due, and return its result."""
        self._wait_until(lambda: self._background.rested)
        job = self._background.begin(what, starts_threads=starts_threads)
        while not job.ended.wait(_POLL_S):  # to its end, even if the refiner closes: the result has to be closed
            self._background.check()
            self._count_requests()
        self._report(seconds=self._background.seconds)
        return job.result()


class _Closing(Exception):  # noqa: N818
    """The refiner is being closed."""
