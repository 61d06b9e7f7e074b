"""Simulate placements event by event: devices, queues and links.

The rules, which executors follow too (``native/rules/machine.hpp``):

- A device runs one op at a time, to its end. Devices that conflict (``Problem.conflicts``) never run at the same time. An
  ordered pair of devices moves one tensor at a time (``channel``; DOPPLER, Algorithm 1) or any number (``contention-free``;
  GiPH, Appendix B.5).
- An op takes ``compute[v, d]``, plus ``cut[e, d]`` for every distinct tensor that it reads from another device, and for every
  distinct tensor that it sends to another device.
- A tensor takes ``latency + bytes / bandwidth`` to a device. It is sent there once, even if several ops read it there.
- Events are ordered by time, then by when they were scheduled. At the start, ops without in-edges are queued in op order; then
  each of their devices takes its next op. When an op finishes, its out-edges fire in edge order: a local consumer that lacks no
  other input is queued; the first edge of a tensor to another device requests the transfer. Then idle channels take their next
  transfers, in the order of these requests, and the device takes its next op. When a transfer finishes, the edges that it
  serves fire in edge order; then the channel takes its next transfer, and the destination its next op.
- The host's part of a request (``Problem.host``) is added to the makespan at the end. It delays no op or transfer.
- ``fifo``: the op or transfer that was queued first goes first. Among simultaneous events, an op that was queued before starts
  before the transfers that the end of another op requests.
- ``priority``: the queued op with the highest priority goes first (in a tie, the first in ``Problem.order``). A channel takes
  the transfer with the highest priority among the ops that it serves (in a tie, the first request).
- ``planned``: a device runs its ops in the order of priority, and waits if the next one is not ready. Channels use priorities.
- If devices conflict, the most urgent ready op (``fifo``: the one that became ready first) whose device can start now is
  started, until no op can start; this also happens when a request begins. So no device that could run a ready op is idle, and
  an op may wait for a wide device while less urgent ops run on parts of it. Under ``planned``, conflicting devices run their
  ops in one common order.
- Of several requests in flight, the one that began first has precedence on every device and channel, except under ``fifo``;
  under ``planned``, the earliest one whose next op is ready. A request arrives before all other events at the same time. It
  begins at once or, if the number in flight is limited, after all decisions that follow from the end of another request.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit import _core
from placeit.core.errors import PlacementError, ProblemError, UsageError
from placeit.core.problem import Problem
from placeit.core.units import about_bytes, milliseconds
from placeit.simulator.scheduler import EXECUTED_RULES, Rules, deadlock
from placeit.simulator.tables import as_batch, compiled

__all__ = ["Options", "Requests", "Schedule", "SimulatedCost", "Transfers", "schedule", "simulate"]


@dataclass(frozen=True, eq=False)
class Transfers:
    """Transfers of a schedule, by start time.

    Attributes:
        tensor: ``int32[N]``, as in ``Problem.edge_tensor``.
        src: ``int32[N]``, device.
        dst: ``int32[N]``, device.
        start: ``float64[N]``, seconds.
        finish: ``float64[N]``, seconds.
        request: ``int64[N]``, number of the request.
    """

    tensor: NDArray[np.int32]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    request: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.tensor)


@dataclass(frozen=True, eq=False)
class Requests:
    """Times of the requests of a schedule, in seconds.

    Attributes:
        arrived: ``float64[R]``.
        begun: ``float64[R]``, later than the arrival if too many requests were in flight.
        ended: ``float64[R]``.
        start: ``float64[R, V]``, start of every op.
        finish: ``float64[R, V]``, end of every op.
    """

    arrived: NDArray[np.float64]
    begun: NDArray[np.float64]
    ended: NDArray[np.float64]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]

    @property
    def latency(self) -> NDArray[np.float64]:
        """``float64[R]``, seconds from the arrival of each request to its end."""
        return self.ended - self.arrived


@dataclass(frozen=True, eq=False)
class Schedule:
    """The schedule of one placement: when each op and transfer starts and ends.

    Attributes:
        makespan: seconds until the last op of the last request has finished, plus the host's part (``Problem.host``).
        start: ``float64[V]``, seconds, in the first request.
        finish: ``float64[V]``, seconds, in the first request.
        device: ``int32[V]``, the placement.
        transfers: transfers between devices, by start time.
        busy: ``float64[D]``, seconds that each device computes.
        peak_memory: ``float64[D]``, bytes: weights of the ops placed there, and the most bytes of live tensors at any time. On
            its producer's device, a tensor is live from the start of its op until the last op that reads it there, and its
            last transfer, have finished. On another device, it is live from the start of the transfer until the last op that
            reads it there has finished.
        requests: when each request was in flight.
    """

    makespan: float
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    device: NDArray[np.int32]
    transfers: Transfers
    busy: NDArray[np.float64]
    peak_memory: NDArray[np.float64]
    requests: Requests

    def __repr__(self) -> str:
        return f"<Schedule: {len(self.device)} ops on {len(self.busy)} devices, {milliseconds(self.makespan)}>"

    @property
    def utilization(self) -> NDArray[np.float64]:
        """``float64[D]``, the share of the makespan that each device computes; zero if nothing takes time."""
        return self.busy / self.makespan if self.makespan > 0 else np.zeros_like(self.busy)


class Options(TypedDict, total=False):
    """Options of a simulation, as :class:`SimulatedCost` describes them."""

    rules: Rules
    priority: ArrayLike | None
    noise: float
    seed: int
    memory: bool
    requests: int
    arrivals: ArrayLike | None
    in_flight: int | None
    threads: int | None


class SimulatedCost:
    """A cost function that simulates placements: ``cost(placements: int32[B, V]) -> float64[B]``, makespans in seconds.

    An infeasible placement (an op where it cannot run, weights that exceed a device's memory) costs ``inf``. Thread-safe.

    Args:
        problem: the problem to simulate.
        rules: how links move tensors, and which ready op goes first.
        priority: ``float64[V]``, or ``float64[B, V]`` for batches of ``B``; the op of highest priority goes first. None for
            the b-level (the longest path to an exit, transfers under the placement included). Not for ``fifo``.
        noise: every duration is multiplied by a factor drawn uniformly from [1 - noise, 1 + noise] (GiPH, Appendix B.5).
        seed: seed of the noise. A placement's noise depends on the seed and on the placement's number in its batch only.
        memory: whether live tensors count: a placement costs ``inf`` if a device ever holds more than its memory.
        requests: number of requests, which all arrive at the start; the cost is then the end of the last one.
        arrivals: ``float[R]``, instead of ``requests``: arrival times in seconds, ascending
            (:func:`placeit.simulator.load.arrival_times`).
        in_flight: maximum number of requests in flight; others wait, in order. None for no limit.
        threads: number of threads for a batch; None for all cores that the process may use. It does not change results.

    Attributes:
        problem: the problem that is simulated.
        rules: the rules of the simulation.

    Raises:
        UsageError: an option is out of its range.
        ProblemError: the priority has the wrong shape, or is NaN.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        rules: Rules = EXECUTED_RULES,
        priority: ArrayLike | None = None,
        noise: float = 0.0,
        seed: int = 0,
        memory: bool = False,
        requests: int = 1,
        arrivals: ArrayLike | None = None,
        in_flight: int | None = None,
        threads: int | None = 1,
    ) -> None:
        rules.check_priority(priority)
        self._arrivals = _arrivals(requests, arrivals)
        if in_flight is not None and in_flight < 1:
            raise UsageError(f"'in_flight' is {in_flight}; it must be at least 1, or None for no limit.")
        if not 0 <= noise < 1:
            raise UsageError(f"'noise' is {noise}; it must be at least 0 and less than 1.")
        if threads is not None and threads < 1:
            raise UsageError(f"'threads' is {threads}; it must be at least 1, or None for all cores.")
        self.problem, self.rules = problem, rules
        memory_model = _core.Memory.limit if memory else _core.Memory.weights_only
        self._options = _core.Options(*rules.compiled, memory_model, float(noise))
        self._priority = _priority(priority, len(problem))
        self._seed = seed % 2**64
        self._slots = min(len(self._arrivals), in_flight or len(self._arrivals))
        self._threads = threads if threads is not None else _cores()
        self._compiled = compiled(problem)

    @property
    def model(self) -> _core.CostModel | None:
        """The cost function for compiled searches.

        None if the cost of a placement depends on its number in the batch (noise, or a priority per placement), or if there
        are several requests.
        """
        single = len(self._arrivals) == 1 and self._arrivals[0] == 0
        if not single or self._options.noise != 0 or len(self._priority) > 1:
            return None
        return _core.CostModel(self._compiled, self._priority.reshape(-1), self._options)

    def __call__(self, placements: ArrayLike) -> NDArray[np.float64]:
        """Return ``float64[B]`` makespans of ``int[B, V]`` placements; ``int[V]`` is a batch of one.

        Raises:
            PlacementError: wrong shape, or a device number that does not exist.
            ProblemError: a planned order that waits for itself; a priority for another number of placements.
        """
        array = as_batch(self.problem, placements)
        size = len(array)
        if len(self._priority) > 1 and len(self._priority) != size:
            raise ProblemError(f"'priority' has {len(self._priority)} rows for {size} placements.")
        out = np.empty(size)
        flights = (self._arrivals, self._slots, self._threads)
        _core.makespans(self._compiled, array, self._priority, self._options, self._seed, *flights, out)
        if self._options.queue is _core.Discipline.planned and np.isnan(out).any():
            raise deadlock()
        return out


def simulate(problem: Problem, placements: ArrayLike, **options: Unpack[Options]) -> NDArray[np.float64]:
    """Return the makespans of ``int[B, V]`` placements in seconds, ``float64[B]``; ``inf`` for infeasible ones.

    With several requests, the makespan is the time when the last one ends.

    See :class:`SimulatedCost` for the options and the exceptions, and this module for the rules.
    """
    return SimulatedCost(problem, **options)(placements)


def schedule(problem: Problem, placement: ArrayLike, **options: Unpack[Options]) -> Schedule:
    """Simulate one placement, ``int[V]``, and return its schedule.

    The options are documented at :class:`SimulatedCost`; the noise equals the noise of the first placement in a batch.

    Raises:
        PlacementError: the placement is infeasible: an op where it cannot run, or too little memory.
        UsageError: an option is out of its range.
        ProblemError: the priority is malformed, or a planned order waits for itself.
    """
    memory = options.pop("memory", False)
    cost = SimulatedCost(problem, **options)
    if len(cost._priority) > 1:
        raise ProblemError(f"'priority' has {len(cost._priority)} rows for one placement.")
    place = np.array(problem.check(placement))
    ops, out = len(problem), problem.successors.edge
    arrived = cost._arrivals
    times, log, peak = np.empty((2, len(arrived))), np.empty((len(arrived), 2, ops + len(out))), np.empty(problem.devices)
    makespan = _core.record_requests(
        cost._compiled,
        place,
        cost._priority.reshape(-1),
        cost._options,
        cost._seed,
        arrived,
        cost._slots,
        times,
        log.reshape(-1, ops + len(out)),
        peak,
    )
    if np.isnan(makespan):
        raise deadlock()
    if memory and (peak > problem.memory).any():
        d = int(np.argmax(peak > problem.memory))
        raise PlacementError(
            f"{problem.device_names[d]} has {about_bytes(problem.memory[d])} of memory; this placement keeps "
            f"{about_bytes(peak[d])} of weights and tensors there."
        )
    start, finish = log[:, 0], log[:, 1]
    request, moved = np.nonzero(~np.isnan(start[:, ops:]))
    order = np.argsort(start[request, ops + moved], kind="stable")
    request, moved = request[order], moved[order]
    edges = out[moved]
    src, dst = place[problem.edges[edges].T]
    busy = np.zeros(problem.devices)
    np.add.at(busy, place, (finish - start)[:, :ops].sum(axis=0))
    return Schedule(
        makespan=makespan,
        start=start[0, :ops].copy(),
        finish=finish[0, :ops].copy(),
        device=place,
        transfers=Transfers(
            problem.edge_tensor[edges], src, dst, start[request, ops + moved], finish[request, ops + moved], request
        ),
        busy=busy,
        peak_memory=peak,
        requests=Requests(
            arrived=arrived.copy(),
            begun=times[0],
            ended=times[1],
            start=start[:, :ops].copy(),
            finish=finish[:, :ops].copy(),
        ),
    )


def _arrivals(requests: int, arrivals: ArrayLike | None) -> NDArray[np.float64]:
    if arrivals is not None:
        times = np.array(arrivals, np.float64, order="C")
        if times.ndim != 1 or not len(times) or not np.isfinite(times).all() or times[0] < 0 or (np.diff(times) < 0).any():
            raise UsageError("'arrivals' must be seconds of one request or more, ascending, finite and not negative.")
        if requests not in (1, len(times)):
            raise UsageError(f"'arrivals' says when {len(times)} requests arrive: leave 'requests' out.")
        return times
    if requests < 1:
        raise UsageError(f"'requests' is {requests}; it must be at least 1.")
    return np.zeros(requests)


def _priority(priority: ArrayLike | None, ops: int) -> NDArray[np.float64]:
    """Return ``float64[N, V]``: a row per placement, one row for all placements, or no row for the default priority."""
    if priority is None:
        return np.empty((0, ops))
    array = np.array(priority, np.float64, order="C")
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.shape[1] != ops or len(array) == 0:
        raise ProblemError(f"'priority' has shape {np.shape(priority)}; expected ({ops},) or (B, {ops}).")
    if np.isnan(array).any():
        raise ProblemError("'priority' holds NaN: it must order all ops.")
    return array


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
