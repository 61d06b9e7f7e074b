"""The queue of a server: requests wait there until they begin, are cancelled or miss their deadline."""

from __future__ import annotations

import functools
import math
import os
from collections import abc
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

import numpy as np

from placeit import _core
from placeit.backends.base import Arrays
from placeit.backends.checking import checked_inputs
from placeit.core.errors import DeadlineError, ExecutionError, QueueFullError, SequenceError, UsageError
from placeit.core.threads import CHECK_S
from placeit.runtime.calls import check_memory, check_process
from placeit.runtime.plan_executor import PlanExecutor
from placeit.serving.answering import Answering
from placeit.serving.answers import Answer, Pending, fail, late
from placeit.serving.batching import rows_of
from placeit.serving.line import Line
from placeit.serving.padding import Padding

__all__ = ["NewRequest", "Queueing"]


@dataclass(frozen=True)
class NewRequest:
    """A request to queue.

    Attributes:
        inputs: by name.
        start_within_s: seconds in which it has to begin; None for no limit.
        wait: whether to wait for room in the queue.
        timeout: seconds to wait for room at most; None for no limit.
        arrived: when it was due, in seconds of ``time.perf_counter``; None for now.
        line: its sequence; None without a sequence.
        behind: whether to wait for earlier requests of its sequence.
        on: where to return its outputs.
        priority: requests of a lower number begin first.
    """

    inputs: Arrays
    start_within_s: float | None = None
    wait: bool = True
    timeout: float | None = None
    arrived: float | None = None
    line: Line | None = None
    behind: bool = True
    on: Literal["host", "device"] = "host"
    priority: int = 0


class Queueing(Answering):
    """The part of a server that queues requests.

    Args:
        executor: any of the server's executors.
        queue: most waiting requests, without the requests in flight.
        state_memory: bytes that the states of all sequences may take; None for half of the memory that is free now.
    """

    def __init__(self, executor: PlanExecutor, queue: int, state_memory: float | None) -> None:
        super().__init__(state_memory)
        self.queue = queue
        self._checked, self._inputs, self._outputs = executor.checked, executor.inputs, executor.output_specs
        self._process = os.getpid()
        self.after_sequences: abc.Callable[..., object] | None = None

    def enqueue(self, new: NewRequest) -> Answer:
        """Queue a request, and return its future; see :meth:`placeit.serving.server.Server.submit` for the errors."""
        check_process(self._process)
        check_memory(new.on)
        for name, seconds in (("start_within_s", new.start_within_s), ("timeout", new.timeout)):
            if seconds is not None and not seconds > 0:
                raise UsageError(f"'{name}' must be a positive number of seconds; got {seconds}.")
        now = perf_counter()
        deadline = math.inf if new.start_within_s is None else now + new.start_within_s
        checked = self._checked(new.inputs) if new.line is None else checked_inputs(new.inputs, self._inputs)
        request = Pending(checked, deadline, new.priority, on=new.on)
        if new.arrived is not None:
            if not new.arrived <= now:
                raise UsageError(f"'arrived' must be at most the current time, {now}; got {new.arrived}.")
            request.future.arrived = new.arrived
        request.line = new.line
        if any(replica.batches.most for replica in self._replicas) and new.line is None and new.on == "host":
            request.rows, request.like = rows_of(checked, self.padding)
        until = deadline if new.timeout is None else min(deadline, now + new.timeout)
        if not new.wait or self.is_here:
            until = -math.inf
        while (room := self._put(request, until, behind=new.behind)) is not None:
            self.queued.wait_for_room(room, min(until, perf_counter() + CHECK_S))
        return request.future

    def _put(self, request: Pending, until: float, *, behind: bool) -> int | None:
        """Queue a request. If the queue is full, return its counter of room to wait on, or raise after ``until``."""
        outcomes, room = self._history.outcomes, self.queued.room
        with self._lock:
            if self._closed or self._reason is not None:
                outcomes["refused"] += 1
                raise self._why()
            now = perf_counter()
            self._expire(now)
            line = request.line
            if line is not None:
                outcomes["refused"] += 1
                line.check_open()
                if not behind and (line.flying or self._waiting.first(line) is not None):
                    raise SequenceError(
                        f"A request of sequence {line.number} has not ended, and this one may not wait for it: wait for the "
                        "future of that one, or let requests of a sequence queue."
                    )
                outcomes["refused"] -= 1
            if self.waiting >= self.queue:
                if now < until:
                    return room
                if until == request.deadline:
                    outcomes["expired"] += 1
                    raise DeadlineError("The deadline of this request passed while the queue was full.")
                outcomes["refused"] += 1
                raise QueueFullError(
                    f"{self.queue} requests wait already: requests arrive faster than they are served, or none is "
                    "served now. Submit fewer, wait longer, or make the queue larger."
                )
            if line is None and self._waiting.first() is None and self._is_compiled:
                self._submit(request)
                return None
            try:
                if line is not None:
                    line.submitted += 1
                    request.position, request.resets = line.submitted, line.resets
                self._waiting.add(request)
                if request.deadline == self._waiting.soonest < math.inf:
                    self._ring()  # the thread of any replica may be the one that looks at deadlines
                self._wake_replicas()
            except BaseException:
                self._waiting.remove(request)
                raise
        return None

    @property
    def padding(self) -> Padding | None:
        """How requests of different lengths are joined, if all replicas join them."""
        found = {replica.batches.padding for replica in self._replicas if replica.able}
        return found.pop() if len(found) == 1 else None

    def _submit(self, request: Pending) -> None:
        """Put a request into the compiled queue; with the lock."""
        given = checked_inputs(request.inputs, self._inputs)
        inputs = [np.ascontiguousarray(given[name]) for name in self._inputs]
        request.inputs = dict(zip(self._inputs, inputs, strict=True))
        request.outputs = {name: np.empty(spec.shape, spec.dtype) for name, spec in self._outputs.items()}
        submission = _core.Submission(inputs, [*request.outputs.values()], request.deadline, request.priority)
        request.submission = submission
        request.future.attach(self.queued, submission, functools.partial(self._wait_for, request))
        self._submitted[submission] = request
        if self.queued.put(submission):  # the thread of any replica may be the one that looks at deadlines
            self._ring()

    @property
    def _is_compiled(self) -> bool:
        """True if requests of no sequence need no Python; with the lock."""
        able = [replica.slots is not None for replica in self._replicas if replica.able]
        return bool(able) and all(able)

    def _withdraw(self) -> list[Pending]:
        """Take all waiting requests out of the compiled queue, and return them; with the lock."""
        found = [self._submitted[submission] for submission in self.queued.withdraw()]
        for request in found:
            self.drop(request)
        return found

    def _sort(self) -> None:
        """Move the waiting requests of the compiled queue to the threads of replicas, if some need Python; with the lock."""
        if self.queued.waiting and any(replica.able for replica in self._replicas) and not self._is_compiled:
            for request in self._withdraw():
                self._waiting.add(request)

    def _expire(self, now: float) -> None:
        """Remove requests that were cancelled, or whose deadline is over; with the lock."""
        self._waiting.expire(now)
        if self._waiting.over:  # threads of the server end their futures, as no signal handler raises there
            self._ring()

    def _end_late(self) -> None:
        """End the futures of requests that left the queue without beginning; without the lock."""
        while self._waiting.over:
            with self._lock:
                request = next(iter(self._waiting.over), None)
            if request is not None:
                fail([request], late() if request.failure is None else request.failure)
                self._waiting.over.pop(request, None)

    def _drop(self) -> list[Pending]:
        """Take out all waiting requests, count them as failed, and return them; with the lock."""
        dropped = self._waiting.clear() + self._withdraw()
        self._history.outcomes["failed"] += len(dropped)
        return dropped

    def turn_away(self) -> None:
        """Count a request as refused that was not submitted because the queue was full."""
        with self._lock:
            self._history.outcomes["refused"] += 1

    def end(self, line: Line, *, drain: bool) -> None:
        """Close a sequence; see :meth:`placeit.serving.sequence.Sequence.close`."""
        with self._lock:
            dropped = self.sequences.end(line, drain=drain)
            self._history.outcomes["failed"] += len(dropped)
            self.queued.make_room()
            last = not any(self.sequences.open_lines)
        fail(dropped, SequenceError(f"Sequence {line.number} was closed before this request had begun."))
        if last and self.after_sequences is not None:
            self.after_sequences(drain=drain)

    def check_thread(self) -> None:
        """Raise ExecutionError in a callback of a future of the server, which cannot wait for requests."""
        if self.is_here:
            raise ExecutionError("A callback of a server's future cannot wait for its requests: submit them instead.")
