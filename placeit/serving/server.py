"""The server: a bounded queue of requests before one or several executors, and a future for each request."""

from __future__ import annotations

import functools
import math
import os
from collections import abc
from dataclasses import replace as changed
from time import perf_counter
from types import TracebackType
from typing import Literal, Self

from placeit.backends.base import Arrays
from placeit.core.errors import ExecutionError, UsageError
from placeit.core.threads import CHECK_S, run_in_thread
from placeit.core.views import Closable, Watched
from placeit.runtime.calls import check_process
from placeit.runtime.device_stats import DeviceStats
from placeit.runtime.plan_executor import PlanExecutor
from placeit.serving.answers import Answer, Outputs, Pending, fail, too_late
from placeit.serving.attendant import Attendant
from placeit.serving.batching import Batches, Joining
from placeit.serving.queueing import NewRequest
from placeit.serving.refinement import Refinement
from placeit.serving.replacing import Replacing
from placeit.serving.replica import Replace, Replacement
from placeit.serving.sequence import Sequence
from placeit.serving.stats import ServerStats
from placeit.serving.stepping import Stepping, Steps

__all__ = ["QUEUE", "Answer", "Outputs", "Replace", "Replacement", "Server"]

QUEUE = 64  # requests that may wait, by default
_TIMEOUT_S = 10.0  # seconds that requests in flight may take to end when a server is closed and does not drain


class Server(Replacing, Watched):
    """Runs requests as they arrive. Use it as a context manager, or call :meth:`close`.

    Requests wait in one bounded queue. The executor with the fewest requests in flight takes the next one; among equals, the
    first in ``executors``. If a request fails, only its future fails: the requests in flight beside it begin again. A request
    depends on its inputs alone, so a second run costs time and changes nothing else.

    If inputs and outputs have a few megabytes at most, and all executors have lanes, requests need no Python between submission
    and end (:class:`placeit._core.RequestQueue`): the thread that waits for a future resolves it. A thread of each executor
    begins and ends all other requests, and all requests of sequences.

    An executor is lost when its session is closed, a thread of a device has died or a device of another node is lost. Other
    executors take over its requests, and so does the executor that ``replace`` makes. If no executor is left, and ``replace``
    makes none, every future fails with the reason.

    Args:
        executors: of the same model, for this server alone; closed with it.
        queue: most waiting requests, without the requests in flight.
        replace: makes a replacement for a lost executor; None for no replacement.
        state_memory: bytes that the states of all sequences may take; None for half of the memory that is free now. On a
            device they never take more than nine tenths of its memory for anything but weights.
        joining: rules for batches of waiting requests, or why there can be none; None to run each request alone.
        steps: rules for joined steps of waiting sequences; None to run each step alone.

    Attributes:
        busy: seconds that segments ran, by device name.
        replacements: replacements of lost executors, or by better ones, in order.
        repeated: number of requests that ended twice, which is an error of the server; a future keeps its first outcome.
        sequences: the open sequences.
        after_sequences: called when the last open sequence is closed, with ``drain``; None for no call.
    """

    def __init__(
        self,
        executors: abc.Sequence[PlanExecutor],
        *,
        queue: int = QUEUE,
        replace: Replace | None = None,
        state_memory: float | None = None,
        joining: Joining | str | None = None,
        steps: Steps | None = None,
    ) -> None:
        if not executors:
            raise UsageError("A server needs an executor at least.")
        if state_memory is not None and not state_memory > 0:
            raise UsageError(f"'state_memory' must be a positive number of bytes; got {state_memory}.")
        if queue < 1:
            raise UsageError(f"A server lets at least one request wait; got {queue}.")
        self._watchers: list[Closable] = []
        super().__init__(executors, queue, replace, state_memory, joining, steps)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.waiting} waiting"
        return f"<Server of {len(self._replicas)} replicas: {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close(drain=kind is None)

    def submit(
        self,
        inputs: Arrays,
        *,
        start_within_s: float | None = None,
        wait: bool = True,
        timeout: float | None = None,
        arrived: float | None = None,
        on: Literal["host", "device"] = "host",
        priority: int = 0,
    ) -> Answer:
        """Submit a run of the model, from its initial state.

        The future can be cancelled while the request waits. Its callbacks run on a thread of the server, which serves nothing
        else until they return.

        Args:
            inputs: by name: arrays of NumPy, or of any library with DLPack or CUDA's array interface, on the host or on a GPU
                (:meth:`placeit.runtime.plan_executor.PlanExecutor.run`). Arrays are read when the request begins, not now:
                leave them as they are until it has ended.
            start_within_s: seconds in which it has to begin; if it has not by then, its future fails.
            wait: whether to wait for room in the queue.
            timeout: seconds to wait at most; None for no limit.
            arrived: when it was due, in seconds of ``time.perf_counter``; its latency counts from then. None for now.
            on: where outputs are returned: NumPy arrays on the ``host``, or, for outputs that a GPU computes and if streams
                drive all devices, arrays on the ``device``.
            priority: requests with a lower number start before others that wait.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or type than the model wants; a time is not positive.
            QueueFullError: the queue is full until the time-out; or it is full now, and ``wait`` is False or the caller is a
                callback of one of the server's futures.
            DeadlineError: the queue is full until the deadline of the request.
            ExecutionError: the server is closed, or nothing can run any more.
        """
        return self.enqueue(NewRequest(inputs, start_within_s, wait, timeout, arrived, on=on, priority=priority))

    def sequence(self, *, recompute: bool = False) -> Sequence:
        """Open a sequence of requests, each of which continues from the model's state that the previous request left.

        Until it is closed, it keeps its state and separate buffers on the devices of one replica, the one with the fewest
        sequences. Its requests in flight do not count towards ``in_flight``.

        Args:
            recompute: whether to keep copies of the inputs since the last reset, and to run them again if the state is lost,
                with a device or by a request that failed.

        Raises:
            UsageError: devices of the placement do not keep state from one request to the next.
            StateMemoryError: there is no room for another state.
            DeviceError: there is no room for buffers.
            ExecutionError: the server is closed, or nothing can run any more.
        """
        check_process(self._process)
        return Sequence(self, self.sequences.open(recompute=recompute))

    def stats(self) -> ServerStats:
        """Return the numbers of requests and devices so far. A request counts before its future shows its outcome."""
        history = self.history
        with self._lock:
            now = perf_counter()
            self._expire(now)
            outcomes, latency_s, busy = history.outcomes.copy(), history.latency_s, history.busy.copy()
            waiting, replicas = self.waiting, self._replicas
            sequences, state_bytes, batches = len(self.sequences), self.sequences.bytes, history.batches.copy()
            runs, steps = history.runs, history.steps.copy()
            in_flight = 0 if self._over else len(self._flying())
        devices = {device.name: device for replica in replicas for device in replica.executor.devices()}
        for name in busy:
            devices.setdefault(name, DeviceStats(name))
        return ServerStats(
            at=now,
            outcomes=outcomes,
            waiting=waiting,
            queue=self.queue,
            in_flight=in_flight,
            latency_s=latency_s,
            latencies=history.latencies(),
            replacements=len(self.replacements),
            sequences=sequences,
            state_bytes=state_bytes,
            batches=batches,
            steps=steps,
            runs=runs,
            devices=tuple(changed(device, busy_s=busy.get(name, 0.0)) for name, device in devices.items()),
            events=history.events(),
        )

    def watch(self, watcher: Closable) -> None:
        """Close a view of the server's numbers when the server is closed. Raises ExecutionError if it is closed already."""
        with self._lock:
            if self._closed:
                raise self._why()
            self._watchers.append(watcher)

    @property
    def batches(self) -> list[Batches]:
        """The batches of each executor that serves now: most rows, measured times, or why there are none."""
        return [replica.batches for replica in self._replicas if replica.able]

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the threads that begin and end requests, without the threads of devices."""
        return sum(replica.cpu_seconds for replica in self._replicas)

    @property
    def stepping(self) -> list[Stepping]:
        """Joining of steps on each executor that serves now: most steps, or why none; empty without a decoder."""
        return [replica.stepping for replica in self._replicas if replica.able and replica.stepping is not None]

    @property
    def refinement(self) -> Refinement | None:
        """Results of refining so far; None if the server does not refine."""
        return next((one.report for one in self._attendants if one.report is not None), None)

    def attend(self, attendant: Attendant) -> None:
        """Start an attendant, report ended requests to it, and close it with the server."""
        self._attendants.append(attendant)
        attendant.start()

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Finish every future, and stop. A second call has no effect.

        A separate thread closes the server. It goes on to the end even if the calling thread, which waits, is interrupted.

        Args:
            drain: whether to run the requests that wait; otherwise their futures fail at once. Requests in flight end in any
                case.
            timeout: seconds to wait at most, after which every future that is left fails; None for no limit if it drains, and
                ten seconds otherwise.

        Raises:
            ExecutionError: the caller is a callback of one of the server's futures.
        """
        if os.getpid() != self._process:
            return
        if self.is_here:
            raise ExecutionError("A callback of a server's future cannot close the server: it would wait for itself.")
        run_in_thread(functools.partial(self._close, drain, timeout))

    def _flying(self) -> list[Pending]:
        """Return the requests in flight that are not counted yet; with the lock."""
        found = [request for replica in self._replicas for request in replica.flying]
        queued = [self._submitted.get(submission) for submission in self.queued.flying()]
        return found + [request for request in queued if request is not None and not request.over]

    def _close(self, drain: bool, timeout: float | None) -> None:
        """Close the server, on a thread where no signal handler raises; several threads may do so at once."""
        with self._lock:
            self._closed = True
            self.queued.tell_all()
            dropped = [] if drain else self._drop()
            self.queued.make_room()
        fail(dropped, self._why())
        self._ring()
        limit = (math.inf if drain else _TIMEOUT_S) if timeout is None else timeout
        until = perf_counter() + limit
        for attendant in self._attendants:
            attendant.close(limit)
        for replica in self._replicas:
            while not replica.gone.wait(max(0.0, min(CHECK_S, until - perf_counter()))) and perf_counter() < until:
                pass
        with self._lock:
            left = self._drop()
            if not self._over:
                flying = self._flying()
                self._history.outcomes["failed"] += len(flying)
                left += flying
            self._over = True
        for replica in self._replicas:
            if not replica.gone.is_open:
                replica.executor.give_up("The server was closed, and this had not ended in time.")
        self._end_late()
        fail(left, too_late())
        for request in left:
            self.drop(request)
        self._resolve_all(callbacks=True)
        for replica in self._replicas:
            replica.close()
        for watcher in self._watchers:
            watcher.close()
