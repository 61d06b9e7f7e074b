"""Load for a server: requests at given times (open loop), or each as soon as another one has ended (closed loop)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.backends.base import Arrays
from placeit.core.cluster import Cluster
from placeit.core.errors import ExecutionError, PlaceitError, QueueFullError
from placeit.core.interrupts import disarm_watchdog
from placeit.core.jsonable import jsonable_dict
from placeit.core.placement import Placement
from placeit.core.threads import CHECK_S
from placeit.core.units import percentage
from placeit.devices.meters import Series
from placeit.measuring.check import OutputDifference
from placeit.planning.segments import Plan
from placeit.runtime.spans import Done, Event, Span
from placeit.serving.latency import most_left
from placeit.serving.server import QUEUE, Answer, Server
from placeit.simulator.load import LoadReport

__all__ = ["RateReport", "Served", "keep_busy", "offer", "offer_all", "saturate"]

_BREATH_S = 1e-3


@dataclass(frozen=True, eq=False)
class Served:
    """Outcomes of requests.

    Attributes:
        load: times and queue lengths of the requests that succeeded; None if no request did.
        arrived: number of requests that arrived.
        dropped: number of requests that found the queue full.
        failed: number of requests that ended in an error.
        error: the first of these errors; None without any.
        waiting: number of requests that waited or were in flight when the last one had arrived.
        seconds: from the first arrival to the last end.
        busy: share of that time in which each device ran segments.
        latencies: ``float64[R]``, seconds from the arrival to the end of each request that succeeded.
        interrupted: whether Ctrl-C ended the arrivals early.
    """

    load: LoadReport | None
    arrived: int
    dropped: int
    failed: int
    error: PlaceitError | None
    waiting: int
    seconds: float
    busy: Mapping[str, float]
    latencies: NDArray[np.float64]
    interrupted: bool

    def keeps_up(self, room: float) -> bool:
        """Return whether no request was dropped, and no more than ``room`` were left when the last one had arrived."""
        return self.dropped == 0 and self.waiting <= room

    @property
    def busiest(self) -> str | None:
        """The device that was busy longest; None if nothing ran."""
        return max(self.busy, key=lambda name: self.busy[name], default=None)


@dataclass(frozen=True, eq=False)
class RateReport:
    """The result of running a placement under load.

    Attributes:
        model: path of the model.
        placement: the placement that served, with its replicas.
        rate: requests per second that were to arrive, on average; None if each came as soon as another one had ended.
        arrivals: how they arrived at a rate: ``constant`` or ``poisson``.
        seed: of random arrivals.
        in_flight: number of requests that could be in flight at once, on all replicas.
        queue: number of requests that could wait.
        served: outcomes of the requests.
        output_error: difference of the outputs from the outputs of the whole model on one device.
        failed: why the outputs are wrong, by the session's tolerance; None if they are right.
        cluster: the devices.
        trace: spans of the last thousand requests, and events of the server.
        plans: the plan of each replica.
        done: the last thousand requests.
        readings: readings of meters while requests arrived.
    """

    model: str
    placement: Placement
    rate: float | None
    arrivals: str
    seed: int
    in_flight: int
    queue: int
    served: Served
    output_error: OutputDifference
    failed: str | None
    cluster: Cluster
    trace: Sequence[Span | Event]
    plans: Sequence[Plan] = ()
    done: Sequence[Done] = ()
    readings: Sequence[Series] = ()

    def __repr__(self) -> str:
        load = f"{self.in_flight} in flight" if self.rate is None else f"{self.rate:g} requests/s"
        return f"<RateReport of {self.model}: {self.placement!r}, {load}, {self.served.arrived} arrived>"

    @property
    def sustained(self) -> bool | None:
        """True if no request was dropped, and few waited in the end; None if no rate was given."""
        served = self.served
        return None if self.rate is None else served.keeps_up(most_left(self.in_flight, served.arrived))

    @property
    def reason(self) -> str | None:
        """Why the rate cannot be sustained, in a sentence; None if it can."""
        served = self.served
        if self.sustained is not False or served.load is None or served.load.achieved is None or served.busiest is None:
            return None
        return (
            f"{self.rate:g} requests per second are more than this placement sustains: it served {served.load.achieved:.4g} "
            f"per second, and {served.busiest} was busy {percentage(served.busy[served.busiest])} of the time."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON, as ``placeit run --json`` prints it beside the names of files."""
        served = self.served
        load = served.load
        return jsonable_dict(
            {
                "model": self.model,
                "devices": self.placement.counts(),
                "replicas": len(self.placement.every),
                "rate": self.rate,
                "arrivals": None if self.rate is None else self.arrivals,
                "seed": self.seed,
                "in_flight": self.in_flight,
                "queue": self.queue,
                "arrived": served.arrived,
                "ended": 0 if load is None else load.requests,
                "dropped": served.dropped,
                "errors": served.failed,
                "seconds": served.seconds,
                "offered": None if load is None else load.offered,
                "achieved": None if load is None else load.achieved,
                "sustained": self.sustained,
                "reason": self.reason,
                "latency_s": None if load is None else {name: getattr(load, name) for name in ("p50", "p95", "p99", "worst")},
                "waiting": None if load is None else {"mean": load.mean_queue, "most": load.max_queued},
                "utilization": dict(served.busy),
                "busiest": served.busiest,
                "output_error": self.output_error.to_dict(),
                "failed": self.failed,
                "emulated": self.cluster.emulated_names,
                "interrupted": served.interrupted,
            }
        )


class _Tally:
    """Counts and times of a server's requests, taken from their futures; outputs are not kept."""

    def __init__(self, server: Server) -> None:
        self._history, self._submitted = server.history, 0
        self._refused, self._busy = self._history.outcomes["refused"], dict(server.busy)
        self._ended: list[tuple[float, float, float] | None] = []  # arrival, begin and end; None if it failed
        self._error: PlaceitError | None = None
        self.start = perf_counter()

    def expect(self, answer: Answer) -> None:
        """Count one more request, by its future."""
        answer.add_done_callback(self._note)
        self._submitted += 1

    def _note(self, answer: Future[Any]) -> None:
        assert isinstance(answer, Answer)  # noqa: S101 (as it was when the callback was added)
        error = answer.exception()
        if error is not None and self._error is None:
            self._error = error if isinstance(error, PlaceitError) else ExecutionError(str(error))
        self._ended.append((answer.arrived, answer.begun, answer.ended) if error is None else None)

    def sum_up(self, *, interrupted: bool, waiting: int | None = None) -> Served:
        """Wait for all requests, and return their outcomes; ``waiting`` are left when the last arrives, None for now."""
        waiting = self.left if waiting is None else waiting
        while self.left > 0:
            sleep(min(CHECK_S, max(1e-3, 1e-2 * (perf_counter() - self.start))))
        times = [one for one in self._ended if one is not None]
        seconds = max((ended for *_, ended in times), default=perf_counter()) - self.start
        dropped = self._history.outcomes["refused"] - self._refused
        return Served(
            load=LoadReport.of(*np.transpose(times)) if times else None,
            arrived=len(self._ended) + dropped,
            dropped=dropped,
            failed=len(self._ended) - len(times),
            error=self._error,
            waiting=waiting,
            seconds=seconds,
            busy={name: (total - self._busy.get(name, 0.0)) / seconds for name, total in self._history.busy.items()},
            latencies=np.array([ended - arrived for arrived, _, ended in times]),
            interrupted=interrupted,
        )

    @property
    def left(self) -> int:
        """Number of requests that have not ended."""
        return self._submitted - len(self._ended)


def offer(server: Server, inputs: Arrays, arrivals: ArrayLike) -> Served:
    """Submit requests at given times, and wait until all have ended.

    Requests that find the queue full are dropped. Latencies count from the time at which a request was due, even if this thread
    was late. Ctrl-C ends the arrivals; the outcomes until then are returned.

    Args:
        server: the server. No other thread may submit requests to it during the call.
        inputs: of each request, by name.
        arrivals: ``float64[R]``, seconds from the first on, ascending.

    Raises:
        ExecutionError: the server is closed, or nothing can run any more.
    """
    return offer_all([(server, inputs, arrivals)])[0]


def offer_all(offers: Sequence[tuple[Server, Arrays, ArrayLike]]) -> list[Served]:
    """Submit requests to several servers at given times of one clock, and return their outcomes: see :func:`offer`.

    Args:
        offers: servers, each with the inputs of its requests, and with their arrivals.

    Raises:
        ExecutionError: a server is closed, or nothing can run any more.
    """
    interrupted = False
    tallies = [_Tally(server) for server, _, _ in offers]
    full_until = [-math.inf] * len(offers)
    start = tallies[-1].start
    due = [(start + after, k) for k, (*_, times) in enumerate(offers) for after in np.asarray(times, np.float64).tolist()]
    try:
        for at, k in sorted(due):
            server, inputs, _ = offers[k]
            while (early := at - perf_counter()) > 0:
                sleep(early)
            if at < full_until[k]:
                server.turn_away()
                continue
            try:
                tallies[k].expect(server.submit(inputs, wait=False, arrived=at))
            except QueueFullError:
                full_until[k] = perf_counter()  # if this thread is late, requests due before now find the queue full, too
                sleep(_BREATH_S)  # the server's threads need the interpreter, too
    except KeyboardInterrupt:
        interrupted = True
        disarm_watchdog()  # requests in flight may take their time to end
    waiting = [tally.left for tally in tallies]
    return [tally.sum_up(interrupted=interrupted, waiting=left) for tally, left in zip(tallies, waiting, strict=True)]


def keep_busy(
    server: Server, inputs: Arrays, at_once: int, *, requests: int | None = None, seconds: float = math.inf
) -> Served:
    """Keep ``at_once`` requests under way, submitting one as soon as another has ended, and wait until all have ended.

    Ctrl-C ends the arrivals; the outcomes until then are returned.

    Args:
        server: the server. No other thread may submit requests to it during the call.
        inputs: of each request, by name.
        at_once: number of requests under way. If it is the number that can be in flight, no request waits for longer than it
            takes to begin.
        requests: number of requests in all; None for no limit.
        seconds: time in which requests are submitted; at least one request is.

    Raises:
        ExecutionError: the server is closed, or nothing can run any more.
    """
    submitted, interrupted = 0, False
    tally, room = _Tally(server), SimpleQueue[object]()
    for _ in range(at_once):
        room.put(None)
    try:
        while submitted == 0 or (submitted != requests and perf_counter() < tally.start + seconds):
            room.get()
            answer = server.submit(inputs)
            submitted += 1
            tally.expect(answer)
            answer.add_done_callback(room.put)
    except KeyboardInterrupt:
        interrupted = True
        disarm_watchdog()  # requests in flight may take their time to end
    return tally.sum_up(interrupted=interrupted)


def saturate(server: Server, inputs: Arrays, seconds: float) -> Served:
    """Keep twice as many requests under way as can be in flight, or as many as may wait; see :func:`keep_busy`."""
    at_once = 2 * sum(executor.in_flight for executor in server.executors) * max(1, *(one.most for one in server.batches))
    return keep_busy(server, inputs, min(at_once, QUEUE), seconds=seconds)
