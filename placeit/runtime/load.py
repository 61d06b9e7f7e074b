"""Requests that arrive at a server at given times, whatever becomes of those before them (an open loop)."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from placeit.backends.base import Arrays
from placeit.core.cluster import Cluster
from placeit.core.errors import ExecutionError, PlaceitError, QueueFullError
from placeit.core.placement import Placement
from placeit.runtime.check import OutputError
from placeit.runtime.serving import Answer, Server
from placeit.simulator.load import LoadReport

__all__ = ["RateReport", "Served", "offer"]

_KEEPS_UP = 0.05  # share of the requests, beyond those in flight, that may wait when the last one has arrived
_BREATH_S, _LOOK_S = 1e-3, 0.5


@dataclass(frozen=True, eq=False)
class Served:
    """What became of requests that arrived at given times.

    Attributes:
        load: times and queue lengths of those that ended; None if none did.
        arrived: how many arrived.
        dropped: how many found the queue full.
        failed: how many ended in an error.
        error: the first one.
        waiting: how many waited or were in flight when the last one had arrived.
        seconds: from the first arrival to the last end.
        busy: share of that time in which each device ran segments.
        interrupted: whether Ctrl-C kept the rest from arriving.
    """

    load: LoadReport | None
    arrived: int
    dropped: int
    failed: int
    error: PlaceitError | None
    waiting: int
    seconds: float
    busy: Mapping[str, float]
    interrupted: bool

    @property
    def busiest(self) -> str | None:
        """The device that was busy longest; None if nothing ran."""
        return max(self.busy, key=lambda name: self.busy[name], default=None)


@dataclass(frozen=True, eq=False)
class RateReport:
    """The result of running a placement under load.

    Attributes:
        model: path of the model.
        placement: what served, with its replicas.
        rate: requests per second that were to arrive, on average.
        arrivals: how they arrived: ``constant`` or ``poisson``.
        seed: of random arrivals.
        in_flight: how many requests could be in flight at once, on all replicas.
        queue: how many could wait.
        served: what became of them.
        output_error: against the whole model on one device.
        failed: why the outputs are wrong, by the session's tolerance; None if they are right.
        cluster: the devices.
    """

    model: str
    placement: Placement
    rate: float
    arrivals: str
    seed: int
    in_flight: int
    queue: int
    served: Served
    output_error: OutputError
    failed: str | None
    cluster: Cluster

    @property
    def sustained(self) -> bool:
        """Whether requests were served as fast as they came: none was dropped, and no more waited in the end than by chance."""
        served = self.served
        return served.dropped == 0 and served.waiting <= self.in_flight + _KEEPS_UP * served.arrived

    @property
    def reason(self) -> str | None:
        """Why the rate cannot be sustained, in a sentence; None if it can."""
        served = self.served
        if self.sustained or served.load is None or served.load.achieved is None or served.busiest is None:
            return None
        return (
            f"{self.rate:g} requests per second are more than this placement sustains: it served {served.load.achieved:.4g} "
            f"per second, and {served.busiest} was busy {served.busy[served.busiest]:.0%} of the time."
        )


class _Times:
    """When requests began and ended, as their futures say; no outputs are kept."""

    def __init__(self, count: int) -> None:
        self.begun, self.ended = np.full(count, math.nan), np.full(count, math.nan)
        self.failed = 0
        self.error: PlaceitError | None = None
        self._lock = threading.Lock()
        self.left = 0

    def expect(self, number: int, answer: Answer) -> None:
        with self._lock:
            self.left += 1
        answer.add_done_callback(lambda future: self._note(number, future))

    def _note(self, number: int, answer: Future[Any]) -> None:
        assert isinstance(answer, Answer)  # noqa: S101 (it was one)
        error = answer.exception()
        with self._lock:
            self.left -= 1
            if error is None:
                self.begun[number], self.ended[number] = answer.begun, answer.ended
            else:
                self.failed += 1
                if self.error is None:
                    self.error = error if isinstance(error, PlaceitError) else ExecutionError(str(error))


def offer(server: Server, inputs: Arrays, arrivals: ArrayLike, *, timeout: float | None = None) -> Served:
    """Submit requests when they arrive, and wait until all have ended.

    Those that find the queue full are dropped. Times count from when a request was to arrive, also if this thread was late.
    Ctrl-C ends the arrivals, and what was measured is kept.

    Args:
        server: nobody else submits anything meanwhile.
        inputs: of each request, by name.
        arrivals: ``float64[R]``, seconds from the first on, ascending.
        timeout: seconds that those which are left may take after the last arrival; None for as long as it takes.

    Raises:
        ExecutionError: the server is closed, nothing can run any more, or requests have not ended in time.
    """
    due = np.asarray(arrivals, np.float64)
    times, dropped, arrived, interrupted = _Times(len(due)), 0, 0, False
    before, start = dict(server.busy), perf_counter()
    try:
        full_until = -math.inf
        for number, after in enumerate(due.tolist()):
            while (early := start + after - perf_counter()) > 0:
                sleep(early)
            arrived += 1
            if start + after < full_until:
                dropped += 1
                continue
            try:
                times.expect(number, server.submit(inputs, wait=False))
            except QueueFullError:
                dropped += 1
                full_until = perf_counter()  # for those that were due meanwhile, if this thread is late
                sleep(_BREATH_S)  # the server's threads need the interpreter, too
    except KeyboardInterrupt:
        interrupted = True
    waiting = times.left
    until = perf_counter() + (math.inf if timeout is None else timeout)
    while times.left:
        if perf_counter() > until:
            raise ExecutionError(f"{times.left} requests have not ended {timeout:g} s after the last one arrived.")
        sleep(min(_LOOK_S, max(1e-3, 1e-2 * (perf_counter() - start))))
    ended = np.isfinite(times.ended)
    load = LoadReport.of(start + due[ended], times.begun[ended], times.ended[ended]) if ended.any() else None
    seconds = float(times.ended[ended].max() - start) if ended.any() else perf_counter() - start
    busy = {name: (total - before.get(name, 0.0)) / seconds for name, total in server.busy.items()} if seconds > 0 else {}
    return Served(load, arrived, dropped, times.failed, times.error, waiting, seconds, busy, interrupted)
