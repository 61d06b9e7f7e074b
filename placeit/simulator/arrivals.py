"""Simulate requests that arrive over time: at one plan, at replicas with one queue, or at models that share devices."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.simulator.load import LoadReport
from placeit.simulator.scheduler import Instruction, RequestDone, Scheduler, Start, Transfer
from placeit.simulator.simulate import schedule
from placeit.simulator.throughput_bound import ThroughputCost

__all__ = ["RequestTimes", "SimulatedReplica", "Slowdown", "Stream", "serve", "serve_streams"]

Slowdown: TypeAlias = Callable[[tuple[str, str], Collection[tuple[str, str]]], float]
"""Factor by which a segment is slower while others run, given its (stream, device) and the (stream, device) of each of them."""


@dataclass(frozen=True, eq=False)
class SimulatedReplica:
    """A plan that serves whole requests, alone or beside other replicas.

    Attributes:
        problem: problem over its ops or segments.
        placement: ``int32[V]``, the device of each of them.
        in_flight: largest number of requests in flight on it.
        scale: factor on all its times.
        shared: whether its segments wait for segments of other streams on the same devices; if not, they run beside these.
    """

    problem: Problem
    placement: NDArray[np.int32]
    in_flight: int
    scale: float = 1.0
    shared: bool = True

    @classmethod
    def whole(cls, seconds: float, device: str, in_flight: int) -> Self:
        """Return a replica whose requests each occupy one device for some seconds."""
        problem = Problem.from_arrays([[seconds]], np.empty((0, 2), int), [], [[1.0]], [[0.0]], device_names=[device])
        return cls(problem, np.zeros(1, np.int32), in_flight)


@dataclass(frozen=True, eq=False)
class Stream:
    """Requests of a model, and the replicas that serve them.

    Attributes:
        replicas: at least one. Two streams share the devices that have equal names.
        arrivals: ``float64[R]``, seconds, ascending (:mod:`placeit.simulator.load`); or, for a closed loop, the number of
            requests in the system, each submitted as soon as another one has ended.
        priority: of several streams whose work waits for a device, the one with the lowest number goes first.
        name: name of the stream, for slowdowns.
    """

    replicas: Sequence[SimulatedReplica]
    arrivals: NDArray[np.float64] | int
    priority: int = 0
    name: str = ""


class RequestTimes(NamedTuple):
    """Times of a stream's requests, ``float64[R]`` seconds each, in the order of their arrival."""

    arrived: NDArray[np.float64]
    begun: NDArray[np.float64]
    ended: NDArray[np.float64]


def serve(replicas: Sequence[SimulatedReplica], arrivals: NDArray[np.float64]) -> LoadReport:
    """Simulate requests that arrive over time, by the rules of executors (``channel`` links, ``priority`` queues).

    Requests begin in the order of their arrival, as soon as a replica has fewer than ``in_flight`` of them in flight. Of
    several such replicas, a request goes to the one where it would end first if each served its requests one after the other,
    at its seconds per request.

    Args:
        replicas: at least one.
        arrivals: ``float64[R]``, seconds, ascending (:mod:`placeit.simulator.load`).
    """
    if len(replicas) == 1 and replicas[0].scale == 1.0:
        one = replicas[0]
        flights = schedule(one.problem, one.placement, arrivals=arrivals, in_flight=one.in_flight).requests
        return LoadReport.of(arrivals, flights.begun, flights.ended)
    return LoadReport.of(*serve_streams([Stream(replicas, arrivals)])[0])


def serve_streams(
    streams: Sequence[Stream],
    *,
    until: float = math.inf,
    slowdown: Slowdown | None = None,
) -> list[RequestTimes]:
    """Simulate the requests of several models that share devices; each model alone is served as :func:`serve` does.

    Each replica starts its segments and transfers by the rules of executors. A device or a link runs one of them at a time, by
    priority, and then in the order in which they were started, as lanes do. A replica has at most one there, so replicas take
    turns. Devices that conflict take turns within a replica only: an executor knows nothing of others.

    Args:
        streams: one for each model.
        until: seconds after which closed loops submit no more requests.
        slowdown: the factor by which the segments that run on other devices slow a segment, for as long as they run. None if
            devices do not slow each other.

    Returns:
        The requests of each stream. All requests end.
    """
    return _Mix(streams, until, slowdown).run()


@dataclass(eq=False)
class _Lane:
    """A device or a link, with a queue of instructions.

    Attributes:
        waiting: heap of queued work: priority, number in the order of queueing, replica and instruction.
        busy: whether an instruction runs on it.
        left: seconds of this instruction that were left at ``since``, if nothing slowed it.
        since: time of the last change of ``factor``.
        factor: factor by which other segments slow it from then on.
        event: number of the event that ends the instruction; events with other numbers are void.
    """

    waiting: list[tuple[int, int, _Replica, Start | Transfer]] = field(default_factory=list)
    busy: bool = False
    left: float = 0.0
    since: float = 0.0
    factor: float = 1.0
    event: int = -1


class _Replica:
    """A replica while it is simulated."""

    def __init__(self, of: SimulatedReplica, source: _Source, lanes: dict[tuple[str, ...], _Lane]) -> None:
        self.source, self.in_flight, self.active = source, of.in_flight, 0
        lanes = lanes if of.shared else {}
        self.scheduler = Scheduler(of.problem, of.placement, in_flight=of.in_flight)
        self.request_s = of.scale * float(ThroughputCost(of.problem)(of.placement)[0])
        alone, names = schedule(of.problem, of.placement), of.problem.device_names
        self.op_s = (of.scale * (alone.finish - alone.start)).tolist()
        moves = alone.transfers
        self.move_s = dict(
            zip(
                zip(moves.tensor.tolist(), moves.dst.tolist(), strict=True),
                (of.scale * (moves.finish - moves.start)).tolist(),
                strict=True,
            )
        )
        self._names, self._lanes = names, lanes

    def lane(self, work: Start | Transfer) -> _Lane:
        """Return the device or the link of an instruction."""
        names = self._names
        key = (names[work.device],) if isinstance(work, Start) else (names[work.src], names[work.dst])
        return self._lanes.setdefault(key, _Lane())

    def place(self, work: Start) -> tuple[str, str]:
        """Return the name of the stream, and the device of a segment."""
        return self.source.name, self._names[work.device]

    def seconds(self, work: Start | Transfer) -> float:
        """Return how long an instruction takes."""
        return float(self.op_s[work.op] if isinstance(work, Start) else self.move_s[work.tensor, work.dst])


class _Source:
    """A stream while it is simulated."""

    def __init__(self, stream: Stream, lanes: dict[tuple[str, ...], _Lane]) -> None:
        self.name = stream.name
        self.replicas = [_Replica(one, self, lanes) for one in stream.replicas]
        self.closed, self.priority = isinstance(stream.arrivals, int), stream.priority
        self.waiting = deque[int]()
        self.arrived: list[float] = []
        self.begun: list[float] = []
        self.ended: list[float] = []

    def next(self) -> _Replica | None:
        """Return the replica that takes the next request; None if no request waits, or all replicas are full."""
        free = [one for one in self.replicas if one.active < one.in_flight] if self.waiting else []
        return min(free, key=lambda one: (one.active + 1) * one.request_s, default=None)


class _Mix:
    """Streams on shared lanes, in virtual time."""

    def __init__(self, streams: Sequence[Stream], until: float, slowdown: Slowdown | None) -> None:
        self._now, self._until, self._count, self._slowdown = 0.0, until, count(), slowdown
        self._segments: dict[_Lane, tuple[_Replica, Start]] = {}  # running segments, if segments slow each other
        lanes: dict[tuple[str, ...], _Lane] = {}
        self._sources = [_Source(stream, lanes) for stream in streams]
        # time; 0 for arrivals, which precede other events, else 1; number; the source or the work that ends
        self._events: list[tuple[float, int, int, _Source | tuple[_Lane, _Replica, Start | Transfer]]] = []
        for source, stream in zip(self._sources, streams, strict=True):
            times = [0.0] * stream.arrivals if isinstance(stream.arrivals, int) else stream.arrivals.tolist()
            self._events += [(time, 0, next(self._count), source) for time in times]
        heapq.heapify(self._events)

    def run(self) -> list[RequestTimes]:
        """Simulate until all requests have ended."""
        while self._events:
            now, _, number, what = heapq.heappop(self._events)
            if isinstance(what, _Source):
                self._now = now
                self._arrive(what)
                continue
            lane, replica, work = what
            if lane.event != number:
                continue
            self._now, lane.busy = now, False
            if self._segments.pop(lane, None) is not None:
                self._reschedule()
            if isinstance(work, Start):
                instructions = replica.scheduler.op_finished(work.request, work.op)
            else:
                instructions = replica.scheduler.transfer_finished(work.request, work.tensor, work.dst)
            self._apply(replica, instructions)
            self._start_next(lane)
        return [RequestTimes(*map(np.array, (one.arrived, one.begun, one.ended))) for one in self._sources]

    def _arrive(self, source: _Source) -> None:
        source.waiting.append(len(source.arrived))
        source.arrived.append(self._now)
        source.begun.append(math.nan)
        source.ended.append(math.nan)
        self._begin(source)

    def _begin(self, source: _Source) -> None:
        while (replica := source.next()) is not None:
            request = source.waiting.popleft()
            source.begun[request] = self._now
            replica.active += 1
            self._apply(replica, replica.scheduler.begin(request))

    def _apply(self, replica: _Replica, instructions: Sequence[Instruction]) -> None:
        """Queue the work that a replica starts, and begin further requests if some have ended."""
        source, ended = replica.source, False
        for one in instructions:
            if isinstance(one, RequestDone):
                source.ended[one.request] = self._now
                replica.active -= 1
                ended = True
                if source.closed and self._now < self._until:
                    heapq.heappush(self._events, (self._now, 0, next(self._count), source))
            else:
                lane = replica.lane(one)
                heapq.heappush(lane.waiting, (source.priority, next(self._count), replica, one))
                self._start_next(lane)
        if ended:
            self._begin(source)

    def _start_next(self, lane: _Lane) -> None:
        """Start work that waits for a device or a link: by priority, then in order."""
        if lane.waiting and not lane.busy:
            *_, replica, work = heapq.heappop(lane.waiting)
            lane.busy = True
            lane.left, lane.since, lane.factor = replica.seconds(work), self._now, 1.0
            self._end(lane, replica, work)
            if self._slowdown is not None and isinstance(work, Start):
                self._segments[lane] = replica, work
                self._reschedule()

    def _end(self, lane: _Lane, replica: _Replica, work: Start | Transfer) -> None:
        """Schedule the end of the work that runs on a lane, in place of an earlier event."""
        lane.event = next(self._count)
        heapq.heappush(self._events, (self._now + lane.left * lane.factor, 1, lane.event, (lane, replica, work)))

    def _reschedule(self) -> None:
        """Schedule the ends of running segments anew where the factor by which others slow them has changed."""
        assert self._slowdown is not None  # noqa: S101 (there are no segments without it)
        places = {lane: replica.place(work) for lane, (replica, work) in self._segments.items()}
        for lane, (replica, work) in self._segments.items():
            factor = self._slowdown(places[lane], [place for other, place in places.items() if other is not lane])
            if factor != lane.factor:
                lane.left -= (self._now - lane.since) / lane.factor
                lane.since, lane.factor = self._now, factor
                self._end(lane, replica, work)
