"""The server: a bounded queue of requests before one or several executors, and a future for each request."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections import abc
from concurrent.futures import InvalidStateError
from dataclasses import replace as changed
from time import perf_counter
from types import TracebackType
from typing import Self

import numpy as np

from placeit import _core
from placeit.backends.base import Arrays, checked_inputs
from placeit.core.errors import DeadlineError, ExecutionError, PlaceitError, QueueFullError, SequenceError, UsageError
from placeit.core.threads import CHECK_S, apart
from placeit.core.views import Closable, Watched
from placeit.planning.segments import Plan
from placeit.runtime.device_stats import DeviceStats
from placeit.runtime.plan_executor import PlanExecutor, check_process, failure_of
from placeit.runtime.spans import Done, Moved, Ran
from placeit.serving.answers import Answer, Outputs, Pending, Queued, fail, late
from placeit.serving.attendant import Attendant, Request
from placeit.serving.history import History
from placeit.serving.line import Line
from placeit.serving.refining import Refinement
from placeit.serving.replica import Replace, Replacement, Replica
from placeit.serving.sequences import Sequence, Sequences
from placeit.serving.stats import ServerStats
from placeit.serving.waiting import Waiting

__all__ = ["QUEUE", "Answer", "Outputs", "Replace", "Replacement", "Server"]

QUEUE = 64  # requests that may wait, by default
PATIENCE_S = 10.0  # seconds that requests in flight may take to end when a server is closed and does not drain


class Server(Watched):
    """Runs requests as they arrive. Use it as a context manager, or call :meth:`close`.

    Requests wait in one bounded queue. The executor with the fewest requests in flight takes the next one; among equals, the
    first in ``executors``. If a request fails, only its future fails: the requests in flight beside it begin again. A request
    depends on its inputs alone, so a second run costs time and changes nothing else.

    Where inputs and outputs are a few megabytes at most, and all executors have lanes, requests need no Python from their
    submission to their end (:class:`placeit._core.RequestQueue`): the thread that waits for a future resolves it. All other
    requests, and all requests of sequences, are begun and ended by a thread of each executor.

    An executor is lost when its session is closed, a thread of a device has died or a device of another node is lost. Other
    executors take over its requests, and so does the executor that ``replace`` makes. If no executor is left, and ``replace``
    makes none, every future fails with the reason.

    Args:
        executors: of the same model, for this server alone; closed with it.
        queue: number of requests that may wait, besides the requests in flight.
        replace: makes an executor in place of a lost one; None to go on without one.
        state_memory: bytes that the states of all sequences may take; None for half of the memory that is free now. On a
            device they may never take more than nine tenths of what it may hold besides weights.

    Attributes:
        busy: seconds that segments ran, by device name.
        replacements: of executors that were lost, or left for better ones, in order.
        vacant: number of lost executors that no other one has replaced.
        repeated: how often a request ended that had ended before; a future keeps its first outcome. More than 0 is an error of
            the server.
        sequences: the open sequences.
        ends_with_sequences: whether it is closed with the last of its sequences.
    """

    def __init__(
        self,
        executors: abc.Sequence[PlanExecutor],
        *,
        queue: int = QUEUE,
        replace: Replace | None = None,
        state_memory: float | None = None,
    ) -> None:
        if not executors:
            raise UsageError("A server needs an executor at least.")
        if state_memory is not None and not state_memory > 0:
            raise UsageError(f"'state_memory' must be a positive number of bytes; got {state_memory}.")
        if queue < 1:
            raise UsageError(f"A server lets at least one request wait; got {queue}.")
        self.queue = queue
        self.replacements: list[Replacement] = []
        self._history = History()
        self.happened = self._history.happened
        self.busy = self._history.busy
        self._replace, self._replacing = replace, 0
        self.vacant = self.repeated = 0
        self._inputs, self._outputs = executors[0].inputs, executors[0].outputs_wanted
        self._process = os.getpid()
        self._lock = threading.Lock()
        self.queued = _core.RequestQueue()
        self._submitted: dict[_core.Submission, Pending] = {}  # requests of the compiled queue, until they are resolved
        self._waiting = Waiting(self.queued.make_room)
        self._closed = self._over = False
        self._reason: PlaceitError | None = None  # why nothing can run any more; None while requests can run
        self.ends_with_sequences = False
        self.sequences = Sequences(self._lock, self._waiting, self._for_sequences, self._wake_replicas, state_memory)
        self._attendants: list[Attendant] = []
        self._watchers: list[Closable] = []
        self._every, self._since = 1, 0  # a candidate takes one request in _every; _since have begun after its last
        self._replicas: list[Replica] = []
        self._numbered: dict[int, Replica] = {}  # by number in the compiled queue
        for executor in executors:
            self._add(Replica(self, executor))
        for replica in self._replicas:
            replica.start()

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
        sequence: Sequence | None = None,
        behind: bool = True,
    ) -> Answer:
        """Submit a run of the model, from its initial state unless it belongs to a sequence.

        The future can be cancelled while the request waits. Its callbacks run on a thread of the server, which serves nothing
        else until they return.

        Args:
            inputs: by name. Arrays are read when the request begins, not now: leave them as they are until it has ended.
            start_within_s: seconds in which it has to begin; if it has not by then, its future fails.
            wait: whether to wait for room in the queue.
            timeout: seconds to wait at most; None for as long as it takes.
            arrived: when it was due, in seconds of ``time.perf_counter``; its latency counts from then. None for now.
            sequence: the sequence of this server that it belongs to.
            behind: whether it may wait for earlier requests of its sequence.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or type than the model wants; a time is not positive.
            QueueFullError: the queue is full until the time-out; or it is full now, and ``wait`` is False or the caller is a
                callback of one of the server's futures.
            DeadlineError: the queue is full until the deadline of the request.
            SequenceError: its sequence is closed; or it may not wait for earlier requests, and one has not ended.
            ExecutionError: the server is closed, or nothing can run any more.
        """
        check_process(self._process)
        for name, seconds in (("start_within_s", start_within_s), ("timeout", timeout)):
            if seconds is not None and not seconds > 0:
                raise UsageError(f"'{name}' must be a positive number of seconds; got {seconds}.")
        now = perf_counter()
        request = Pending(
            checked_inputs(inputs, self._inputs), now + start_within_s if start_within_s is not None else math.inf
        )
        if arrived is not None:
            if not arrived <= now:
                raise UsageError(f"A request has arrived before it is submitted; got {arrived}, and it is {now} now.")
            request.future.arrived = arrived
        request.line = None if sequence is None else sequence.line
        until = min(request.deadline, now + timeout) if timeout is not None else request.deadline
        if not wait or any(replica.is_here() for replica in self._replicas):
            until = -math.inf
        while (room := self._put(request, until, behind=behind)) is not None:
            self.queued.wait_for_room(room, min(until, perf_counter() + CHECK_S))
        return request.future

    def _put(self, request: Pending, until: float, *, behind: bool) -> int | None:
        """Queue a request. If there is no room, return the queue's counter of room to wait on, or raise after ``until``."""
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
                if line not in self.sequences:
                    raise UsageError(f"Sequence {line.number} is one of another server: make one of this server.")
                if not behind and (line.flying or self._waiting.first(line) is not None):
                    raise SequenceError(
                        f"A request of sequence {line.number} has not ended, and this one was not to wait for it: wait for the "
                        "future of that one, or let requests of a sequence queue."
                    )
                outcomes["refused"] -= 1
            if self.waiting >= self.queue:
                if now < until:
                    return room
                if until == request.deadline:
                    outcomes["expired"] += 1
                    raise DeadlineError("The deadline of this request was over before there was room for it in the queue.")
                outcomes["refused"] += 1
                raise QueueFullError(
                    f"{self.queue} requests wait already: requests come faster than they are served, or no executor takes them "
                    "at present. Submit fewer, wait longer, or make the queue larger."
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

    def _add(self, replica: Replica) -> None:
        """Add a replica, which the caller starts."""
        if replica.number is not None:
            self._numbered[replica.number] = replica
        self._replicas = [*self._replicas, replica]

    # -- requests that need no Python ------------------------------------------------------------------------------------------

    @property
    def _is_compiled(self) -> bool:
        """True if requests of no sequence need no Python; with the lock."""
        able = [replica.number is not None for replica in self._replicas if replica.able]
        return bool(able) and all(able)

    def _submit(self, request: Pending) -> None:
        """Put a request into the compiled queue; with the lock."""
        inputs = [np.ascontiguousarray(request.inputs[name]) for name in self._inputs]
        request.inputs = dict(zip(self._inputs, inputs, strict=True))
        request.outputs = {name: np.empty(spec.shape, spec.dtype) for name, spec in self._outputs.items()}
        submission = _core.Submission(inputs, [*request.outputs.values()], request.deadline)
        request.submission = submission
        request.future.attach(Queued(self.queued, submission), functools.partial(self._wait_for, request))
        self._submitted[submission] = request
        if self.queued.put(submission):  # the thread of any replica may be the one that looks at deadlines
            self._ring()

    def _wait_for(self, request: Pending, until: float) -> None:
        """Wait for a request of the compiled queue until a time of ``perf_counter``, and resolve it if it is over."""
        submission = request.submission
        if submission is not None and self.queued.wait(submission, until):
            self.resolve(request)

    def resolve(self, request: Pending) -> None:
        """Count a request of the compiled queue that is over, and resolve its future. Any thread may do so, more than once.

        A signal handler may interrupt this anywhere: then the thread of a replica does it again.
        """
        submission, future = request.submission, request.future
        outcome: abc.Callable[[Answer], object]
        if submission is None or submission.acknowledged:
            return
        future.detach()
        if submission.state == _core.State.ended:
            replica = self._numbered[submission.replica]
            future.begun, future.ended = submission.begun, submission.ended
            if not request.over:
                request.number, request.alone = submission.number, submission.alone
                request.explored = replica.exploring
                ran, moved = replica.executor.told(submission.slot, submission.ran())
                self._count(request, replica, ran, moved, submission.ended)
                replica.answered(submission.ended)
                self.tell(request, ran, replica)
            outcome = functools.partial(Answer.set_result, result=request.outputs)
        else:
            outcome = Answer.cancel
            late_ = submission.state == _core.State.expired
            with self._lock:
                self._history.outcomes["expired" if late_ else "cancelled"] += not request.over
                request.over = True
            if late_:
                outcome = functools.partial(Answer.set_exception, exception=late())
        try:
            if not future.done():
                outcome(future)
        except InvalidStateError:  # the caller has set the future just now
            pass
        except BaseException as error:
            if not any(one.is_here() for one in self._replicas):
                raise
            future.end_after(error)
        future.begin()  # notifies threads that wait for several futures, if this one was cancelled
        self._submitted.pop(submission, None)
        self.queued.acknowledge(submission)

    def _resolve_all(self, *, due: bool = False, callbacks: bool = False) -> None:
        """Resolve the requests that are over.

        Args:
            due: whether to resolve only the requests that no other thread resolves.
            callbacks: whether to resolve also futures with callbacks, which are called on this thread.
        """
        for submission in self.queued.over(due):
            request = self._submitted.get(submission)
            if request is not None and (callbacks or not request.future.has_callbacks):
                self.resolve(request)

    def queued_at(self, replica: int, slot: int) -> Pending | None:
        """Return the request of the compiled queue that is in a slot of a replica; None if the slot has no such request."""
        submission = self.queued.in_slot(replica, slot)
        return None if submission is None else self._submitted.get(submission)

    def drop(self, request: Pending) -> None:
        """Take a request out of the compiled queue. A second call has no effect."""
        submission = request.submission
        if submission is None:
            return
        request.future.detach()
        if submission.state == _core.State.flying:
            self.queued.drop(submission.replica, submission.slot)
        self._submitted.pop(submission, None)
        self.queued.acknowledge(submission)
        request.submission = None

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

    # --------------------------------------------------------------------------------------------------------------------------

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

    def check_thread(self) -> None:
        """Raise ExecutionError if this is a callback of one of the server's futures, which cannot wait for requests."""
        if any(replica.is_here() for replica in self._replicas):
            raise ExecutionError("A callback of one of a server's futures cannot wait for its requests: submit them instead.")

    def end(self, line: Line, *, drain: bool) -> None:
        """Close a sequence; see :meth:`placeit.serving.sequences.Sequence.close`."""
        with self._lock:
            dropped = self.sequences.end(line, drain=drain)
            self._history.outcomes["failed"] += len(dropped)
            self.queued.make_room()
            last = self.ends_with_sequences and not any(self.sequences.open_lines)
        fail(dropped, SequenceError(f"Sequence {line.number} was closed before this request had begun."))
        if last:
            self.close(drain=drain)

    def _for_sequences(self) -> list[Replica]:
        """Return the replicas that may have sequences; with the lock. Raise if no request can run any more."""
        if self._closed or self._reason is not None:
            raise self._why()
        return [replica for replica in self._replicas if replica.able and not replica.exploring]

    def turn_away(self) -> None:
        """Count a request as refused that was not submitted because the queue was full when it was due."""
        with self._lock:
            self._history.outcomes["refused"] += 1

    def _expire(self, now: float) -> None:
        """Remove requests that were cancelled, or whose deadline is over; with the lock."""
        self._waiting.expire(now)
        if self._waiting.over:  # threads of the server end their futures, as no signal handler raises there
            self._ring()

    def _ring(self) -> None:
        for replica in self._replicas:
            replica.bell.ring()

    @property
    def able(self) -> bool:
        """True if the server takes requests and has devices that run them."""
        return not self._closed and any(replica.able for replica in self._replicas)

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting) + self.queued.waiting

    @property
    def history(self) -> History:
        """The last requests and events, for a trace. :meth:`stats` has the totals."""
        self._resolve_all()
        return self._history

    def stats(self) -> ServerStats:
        """Return the numbers of requests and devices so far. A request counts before its future shows its outcome."""
        history = self.history
        with self._lock:
            now = perf_counter()
            self._expire(now)
            outcomes, latency_s, busy = history.outcomes.copy(), history.latency_s, history.busy.copy()
            outcomes["expired"] += self._waiting.expired
            outcomes["cancelled"] += self._waiting.cancelled
            waiting, replicas = self.waiting, self._replicas
            sequences, state_bytes = len(self.sequences), self.sequences.bytes
            flying = len(self.queued.flying()) + sum(len(replica.flying) for replica in replicas)
            in_flight = 0 if self._over else flying
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
    def refinement(self) -> Refinement | None:
        """Results of refining so far; None if the server does not refine."""
        return next((one.report for one in self._attendants if one.report is not None), None)

    def attend(self, attendant: Attendant) -> None:
        """Start an attendant, tell it of requests that end, and close it with the server."""
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
        if any(replica.is_here() for replica in self._replicas):
            raise ExecutionError("A callback of one of its futures cannot close a server, which waits for that to end.")
        apart(functools.partial(self._close, drain, timeout))

    def _close(self, drain: bool, timeout: float | None) -> None:
        """Close the server, on a thread where no signal handler raises; several threads may do so at once."""
        with self._lock:
            self._closed = True
            self.queued.tell_all()
            dropped = [] if drain else self._drop()
            self.queued.make_room()
        fail(dropped, self._why())
        self._ring()
        limit = (math.inf if drain else PATIENCE_S) if timeout is None else timeout
        until = perf_counter() + limit
        for attendant in self._attendants:
            attendant.close(limit)
        for replica in self._replicas:
            while not replica.gone.wait(max(0.0, min(CHECK_S, until - perf_counter()))) and perf_counter() < until:
                pass
        with self._lock:
            left = self._drop()
            if not self._over:
                flying = [request for replica in self._replicas for request in replica.flying]
                flying += [self._submitted[submission] for submission in self.queued.flying()]
                self._history.outcomes["failed"] += len(flying)
                left += flying
            self._over = True
        for replica in self._replicas:
            if not replica.gone.is_open:
                replica.executor.give_up("The server was closed, and this had not ended in time.")
        self._end_late()
        fail(left, _too_late())
        for request in left:
            self.drop(request)
        self._resolve_all(callbacks=True)
        for replica in self._replicas:
            replica.close()
        for watcher in self._watchers:
            watcher.close()

    def _drop(self) -> list[Pending]:
        """Take out all waiting requests, count them as failed, and return them; with the lock."""
        dropped = self._waiting.clear() + self._withdraw()
        self._history.outcomes["failed"] += len(dropped)
        return dropped

    def _why(self) -> PlaceitError:
        reason = self._reason
        if reason is None:
            return ExecutionError("This server is closed: make a new one.")
        return failure_of("Nothing can run on this server any more", reason)

    # -- for replicas ------------------------------------------------------------------------------------------------------

    def _wake_replicas(self) -> None:
        """Wake the replicas whose turn it is to take a waiting request, if they have room; with the lock."""
        following = None if self._waiting.first() is None else self._next()
        for replica in self._replicas if self._waiting else ():
            if replica is following or self.sequences.next(replica) is not None:
                replica.bell.ring()

    def _next(self) -> Replica | None:
        """Return the replica that takes the next request of no sequence; None if no replica has room. With the lock."""
        able = [replica for replica in self._replicas if replica.room]
        if any(replica.able and not replica.exploring for replica in self._replicas):
            for replica in able:
                if replica.exploring and not replica.load and self._since >= self._every - 1:
                    return replica
            able = [replica for replica in able if not replica.exploring]
        return min(able, key=lambda replica: replica.load, default=None)

    def _is_turn_of(self, replica: Replica) -> bool:
        """Return whether a replica that asks may have the next request of no sequence; with the lock."""
        following = self._next()
        if following is replica:
            return True
        if not replica.able or replica.exploring or (following is not None and following.exploring):
            return False
        return following is None or following.load >= replica.load

    def take(self, replica: Replica, *, room: bool) -> Pending | None:
        """Return the next request for a replica; None if no request waits, or another replica has to take it.

        Args:
            replica: the replica that asks.
            room: whether it may be a request of no sequence.
        """
        while (request := self._take(replica, room=room)) is not None:
            try:
                if request.line is not None:
                    self.sequences.make_ready(request.line, request, replica)
            except SequenceError as error:
                replica.failed(request, error, begun=False)
            except Exception as error:  # noqa: BLE001 (it concerns this sequence alone, unless the executor is lost)
                replica.executor.check()
                replica.failed(request, failure_of("This request cannot begin", error), begun=False)
            else:
                request.started = True
                return request
        return None

    def _take(self, replica: Replica, *, room: bool) -> Pending | None:
        taken = None
        with self._lock:
            self._waiting.expire(perf_counter())
            while taken is None:
                request = self.sequences.next(replica)
                if request is None and room and self._is_turn_of(replica):
                    request = self._waiting.first()
                if request is None:
                    break
                try:
                    self._waiting.remove(request)
                    if request.future.begin():
                        self._hand_over(request, replica)
                        taken = request
                except BaseException:
                    if not request.replay:
                        self._waiting.add_first(request)
                    raise
            self.queued.make_room()
            self._wake_replicas()
        self._end_late()
        return taken

    def _hand_over(self, request: Pending, replica: Replica) -> None:
        """Record that a replica runs a request; with the lock."""
        request.alone = not any(other.load for other in self._replicas)
        request.number = self.queued.enter()
        request.explored = replica.exploring
        replica.flying.append(request)
        if request.line is not None:
            request.line.flying, request.settled = True, False
        self._since = 0 if replica.exploring else self._since + 1

    def patience(self) -> float:
        """End requests that were cancelled or are past their deadline, and return the seconds until the next call is due.

        These are half a second at most, so that the caller regularly checks whether its executor is lost.
        """
        with self._lock:
            now = perf_counter()
            self._waiting.expire(now)
            self.sequences.tidy()
            if self._waiting.over:
                self.queued.make_room()
            soonest = min(self._waiting.soonest, self.queued.expire())
        self._end_late()
        self._resolve_all(due=True, callbacks=True)
        return max(0.0, min(CHECK_S, soonest - now))

    def _end_late(self) -> None:
        """End the futures of requests that have left the queue without having begun; without the lock."""
        while self._waiting.over:
            with self._lock:
                request = next(iter(self._waiting.over), None)
            if request is not None:
                fail([request], late() if request.failure is None else request.failure)
                self._waiting.over.pop(request, None)

    def release(
        self,
        replica: Replica,
        request: Pending,
        ran: abc.Sequence[Ran] = (),
        moved: abc.Sequence[Moved] = (),
        ended: float = math.nan,
        failure: PlaceitError | None = None,
    ) -> bool:
        """Record that a request of a replica is no longer in flight.

        Args:
            replica: the replica that ran it.
            request: the request.
            ran: its segments, if it has ended well.
            moved: its transfers, if it has ended well.
            ended: when it ended well; NaN if it did not.
            failure: the error of a request that had begun, after which the state of its sequence is not known.

        Returns:
            False if it had ended before.
        """
        if request.line is not None and math.isfinite(ended):
            self.sequences.measure(request.line)
        with self._lock:
            if request.over:
                self.repeated += 1
                return False
            if request in replica.flying:
                replica.flying.remove(request)
                self.queued.exit()
            request.alone &= self.queued.begun == request.number
            if request.line is not None:
                self.sequences.released(request.line, request, failure, well=math.isfinite(ended))
                self._wake_replicas()
            self.sequences.tidy()
            if self._closed and not self._waiting:
                self._ring()
            self._record(request, replica, ran, moved, ended)
        return True

    def _count(
        self, request: Pending, replica: Replica, ran: abc.Sequence[Ran], moved: abc.Sequence[Moved], ended: float
    ) -> None:
        """Count a request of the compiled queue that has ended well, once."""
        with self._lock:
            if not request.over:
                self._record(request, replica, ran, moved, ended)

    def _record(
        self, request: Pending, replica: Replica, ran: abc.Sequence[Ran], moved: abc.Sequence[Moved], ended: float
    ) -> None:
        """Record a request that is over; with the lock."""
        request.over = True
        if self._over or request.replay:  # a request that ends after the server has closed was counted as failed
            return
        future, of = request.future, 0 if request.line is None else request.line.number
        times = future.arrived, future.begun, ended
        self._history.ended(Done(request.number, replica.executor.labels, *times, ran, moved, sequence=of))

    def without(self, replica: Replica) -> bool:
        """Give no more requests to a replica, if other replicas can run them; return whether they can."""
        with self._lock:
            others = any(other.able for other in self._replicas if other is not replica)
            replica.lost |= others
        return others

    def tell(self, request: Pending, ran: abc.Sequence[Ran], replica: Replica) -> None:
        """Tell the attendants of a request that has ended well."""
        future = request.future
        for attendant in self._attendants:
            attendant.ended(Request(replica.executor.plan, future.begun, future.ended, ran, request.alone, request.explored))

    def again(self, replica: Replica, why: PlaceitError | None = None) -> None:
        """Put the requests that a replica has taken, and that have not ended, back at the front of the queue.

        Requests of sequences that had begun fail, unless the state can be recomputed, as they cannot run twice on one state.

        Args:
            replica: the replica that had them.
            why: the error by which the replica was lost; None if it goes on.
        """
        if replica.number is not None:
            self.queued.again(replica.number)
        with self._lock:
            left = [request for request in replica.flying if not request.future.done()]
            for request in replica.flying:
                if request.line is not None and not request.settled:
                    request.failure = self.sequences.interrupted(request.line, request, why)
            broken = [request for request in left if request.failure is not None and not (self._over or request.replay)]
            again = [request for request in left if request.failure is None and not (self._over or request.replay)]
            try:
                for request in reversed(again):
                    self._waiting.add_first(request)
                for request in broken:
                    self._waiting.over[request] = None
                given_up, failed = 0 if self._over else len(replica.flying) - len(left), len(broken)
                for _ in replica.flying:
                    self.queued.exit()
                replica.flying.clear()
                self._history.outcomes["cancelled"] += given_up
                self._history.outcomes["failed"] += failed
            except BaseException:
                for request in again:
                    self._waiting.remove(request)
                raise
            self._wake_replicas()
        if self._over:
            fail(left, _too_late())
        self._end_late()

    def lose(self, replica: Replica, error: PlaceitError) -> None:
        """Replace a replica that cannot run requests any more, or fail the waiting requests if no replica is left."""
        noticed, happened = perf_counter(), self.happened
        happened("lost", str(error), until=noticed)
        self.again(replica, error)
        with self._lock:
            replica.lost = True
            self.sequences.lose(replica, error)
            self._replacing += 1
            left = [other.executor for other in self._replicas if other.able and not other.exploring]
            self._wake_replicas()
        made = None
        try:
            if self._replace is not None and not (self._over or replica.exploring or replica.retired):
                executor, by = self._replace(replica.executor, left, error)
                ready, where = perf_counter(), ", ".join(by.devices)
                happened("silence", str(error), seconds=by.silent_s, until=noticed)
                happened("decision", where, seconds=by.decided_s, until=ready - by.compiled_s)
                happened("compiling and loading", where, seconds=by.compiled_s, until=ready)
                made = Replica(self, executor, by)
        except PlaceitError as failure:
            error = failure
        except BaseException as failure:  # noqa: BLE001 (after any error, futures have to fail with it)
            error = failure_of(f"{error} And no other placement was found", failure)
        replica.executor.close()
        with self._lock:
            self._replacing -= 1
            dropped = []
            over = self._over
            self.vacant += made is None and not (replica.exploring or replica.retired)
            if made is not None and not over:
                self._add(made)
                made.start()
                self._sort()
            elif not any(other.able for other in self._replicas) and not self._replacing:
                self._reason = error
                happened("nothing is left", str(error))
                dropped = self._drop()
                self.queued.make_room()
        fail(dropped, error)
        if made is not None and over:
            made.close()

    def wait_for_work(self, replica: Replica) -> bool:
        """Wait until a request may wait for a replica; return False if no more will come."""
        while True:
            if (gone := replica.executor.gone) is not None:
                raise gone
            patience = self.patience()
            with self._lock:
                turn = self._waiting.first() is not None and self._next() is replica
                turn |= self.sequences.next(replica) is not None
                over = self._closed and not self.waiting and not any(other.load for other in self._replicas)
                turn |= replica.stays()
            if turn or over or replica.retired:
                return turn
            replica.bell.wait(patience)

    # -- for the refiner -----------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan that serves, on a server with a single replica."""
        return self._replicas[0].executor.plan

    @property
    def exploring(self) -> bool:
        """True if there is a candidate that can run."""
        return any(replica.exploring and replica.able for replica in self._replicas)

    def explore(self, executor: PlanExecutor, every: int) -> None:
        """Have a candidate serve one request in ``every``, one at a time; it is closed with the server, or by :meth:`settle`.

        Raises:
            ExecutionError: the server is closed.
            DeviceError: no thread can be started for it.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(executor.close)
            replica = Replica(self, executor, every=every)
            stack.callback(replica.close)
            with self._lock:
                if self._closed:
                    replica.gone.open()
                    raise self._why()
                self._every, self._since = every, 0
                self._add(replica)
                self._sort()
            replica.start()
            stack.pop_all()

    def settle(self, *, adopt: bool) -> bool:
        """Switch to the candidate if ``adopt`` and it can run, else drop it; close the replicas that no longer serve.

        Returns:
            Whether the candidate serves.
        """
        with self._lock:
            adopt = adopt and self.exploring
            leaving = [replica for replica in self._replicas if replica.exploring != adopt]
            for replica in self._replicas:
                replica.adopt()
                if replica in leaving:
                    replica.retired = True
                    replica.retire()
                replica.bell.ring()
            self._sort()
            self._wake_replicas()
        self._leave(leaving)
        return adopt

    def _leave(self, leaving: abc.Sequence[Replica]) -> None:
        """Close replicas that get no more requests, once their last requests are over."""
        for replica in leaving:
            while not replica.gone.wait(CHECK_S):
                pass
        self.sequences.leave(leaving)
        with self._lock:
            self._replicas = [replica for replica in self._replicas if replica not in leaving]
        for replica in leaving:
            replica.close()

    # -- for the adapter -----------------------------------------------------------------------------------------------------

    @property
    def executors(self) -> list[PlanExecutor]:
        """The executors that serve requests now."""
        return [replica.executor for replica in self._replicas if replica.able]

    def exchange(self, leaving: PlanExecutor | None, executor: PlanExecutor, replacement: Replacement) -> bool:
        """Replace an executor, or one that was lost, by another; the replaced one is closed when its requests have ended.

        Args:
            leaving: the executor to replace; None to fill the place of one that was lost.
            executor: the new one, of the same model; closed with the server.
            replacement: the record of the replacement.

        Returns:
            False if the server is closed, or there is no such executor to replace: then nothing has changed.

        Raises:
            DeviceError: no thread can be started for it.
        """
        self.happened("compiling and loading", ", ".join(replacement.devices), seconds=replacement.compiled_s)
        replica = Replica(self, executor, replacement)
        with self._lock:
            left = [other for other in self._replicas if other.executor is leaving and other.able]
            wanted = not self._closed and self._reason is None and bool(self.vacant if leaving is None else left)
            if wanted:
                self.vacant -= leaving is None
                self._add(replica)
                replica.start()
                for other in left:
                    other.retired = True
                    other.retire()
                    other.bell.ring()
                self._sort()
                self._wake_replicas()
        if wanted:
            self._leave(left)
        else:
            replica.discard()
        return wanted


def _too_late() -> ExecutionError:
    return ExecutionError("The server was closed, and this request had not ended in time.")
