"""Sequences: requests of a server, each of which goes on from the model's state that the one before has left."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, Self

from placeit.backends.base import Arrays
from placeit.core.errors import ExecutionError, PlaceitError, SequenceError, StateMemoryError
from placeit.core.threads import Gate
from placeit.core.units import about_bytes
from placeit.devices.host import free_bytes
from placeit.runtime.plan_executor import failure_of
from placeit.serving.answers import Answer, Outputs, Pending
from placeit.serving.line import Home, Line
from placeit.serving.replica import Replica
from placeit.serving.waiting import Waiting

__all__ = ["Sequence", "Sequences"]

_LOOK_S = 0.5
_OF_FREE = 0.5  # share of the free memory that states may take
_OF_DEVICE = 0.9  # share of what a device may hold besides weights
_NEAR = 0.8  # share of what states may take, from which they are measured after each run


class Serving(Protocol):
    """The server of a sequence: see :class:`placeit.serving.server.Server`."""

    sequences: Sequences

    def submit(
        self,
        inputs: Arrays,
        *,
        start_within_s: float | None = None,
        wait: bool = True,
        timeout: float | None = None,
        sequence: Sequence | None = None,
        behind: bool = True,
    ) -> Answer:
        """Ask for a run of the model."""
        ...

    def check_thread(self) -> None:
        """Raise ExecutionError if nobody can wait for requests on this thread."""
        ...

    def end(self, line: Line, *, drain: bool) -> None:
        """Close a sequence."""
        ...


class Sequence:
    """A sequence of requests, made by :meth:`placeit.serving.server.Server.sequence`. Use it as a context manager.

    Its first request starts from the model's initial state, each other one from the state that the one before has left. They
    run in the order in which they are submitted, beside those of other sequences. Any thread may call.

    One that nobody refers to any more is closed.
    """

    def __init__(self, server: Serving, line: Line) -> None:
        self._server, self.line = server, line
        self._dropped = weakref.finalize(self, server.sequences.dropped.append, line)
        self._dropped.atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close(drain=kind is None)

    @property
    def number(self) -> int:
        """Its number among those of its server, from 1."""
        return self.line.number

    @property
    def state_bytes(self) -> int:
        """Size of its state."""
        return self.line.bytes.total()

    def submit(
        self,
        inputs: Arrays,
        *,
        start_within_s: float | None = None,
        wait: bool = True,
        timeout: float | None = None,
        behind: bool = True,
    ) -> Answer:
        """Ask for a run of the model that goes on from the state that the requests before it leave.

        Args:
            inputs: by name. Arrays are read when the request begins, not now: leave them as they are until it has ended.
            start_within_s: seconds in which it has to begin; if it has not by then, its future fails.
            wait: whether to wait for room in the server's queue.
            timeout: seconds to wait at most; None for as long as it takes.
            behind: whether it may wait for earlier requests of the sequence.

        Raises:
            SequenceError: the sequence is closed; or it may not wait for earlier requests, and one has not ended.
            UsageError, QueueFullError, DeadlineError, ExecutionError: as by :meth:`placeit.serving.server.Server.submit`.
        """
        return self._server.submit(
            inputs, start_within_s=start_within_s, wait=wait, timeout=timeout, sequence=self, behind=behind
        )

    def run(self, inputs: Arrays, *, timeout: float | None = None) -> Outputs:
        """Run the model on inputs and the state that the requests before leave, and return the outputs by name.

        Args:
            inputs: by name.
            timeout: seconds to wait at most; None for as long as it takes.

        Raises:
            ExecutionError: it failed; it takes longer than ``timeout`` (one that has not begun then is as if it had not been
                asked for, and any other goes on to its end); or a callback of one of the server's futures asks, which would
                wait for itself.
            SequenceError: the sequence is closed, or its state is not known after a failure.
            StateMemoryError: there is no room for its state to grow; the state is as it was.
            UsageError, QueueFullError: as by :meth:`submit`.
        """
        self._server.check_thread()
        until = None if timeout is None else perf_counter() + timeout
        answer = self.submit(inputs, timeout=timeout)
        try:
            return answer.result(None if until is None else max(0.0, until - perf_counter()))
        except TimeoutError as late:
            gone = "has not begun, and will not" if answer.cancel() else "goes on to its end"
            raise ExecutionError(f"The time-out is over, and the request has not ended: it {gone}.") from late

    def reset(self) -> None:
        """Have requests that are submitted from now on start from the initial state again.

        Those submitted before are not changed. A sequence whose state was lost can be used again.

        Raises:
            SequenceError: the sequence is closed.
        """
        self._server.sequences.reset(self.line)

    def fork(self, *, timeout: float | None = None) -> Sequence:
        """Make another sequence that goes on from the state which the requests submitted so far leave; wait for these.

        Args:
            timeout: seconds to wait at most; None for as long as it takes.

        Raises:
            SequenceError: the sequence is closed, or its state is not known after a failure.
            StateMemoryError: there is no room for another state.
            ExecutionError: requests take longer than ``timeout``; a callback of one of the server's futures asks, which would
                wait for itself; or the server is closed.
            DeviceError: there is no room for buffers.
        """
        self._server.check_thread()
        return Sequence(self._server, self._server.sequences.fork(self.line, timeout))

    def close(self, *, drain: bool = True) -> None:
        """Take no more requests, and release the state when those that were submitted have ended. A second call has no effect.

        Args:
            drain: whether to run those that wait; otherwise their futures fail.
        """
        self._dropped.detach()
        self._server.end(self.line, drain=drain)


class Sequences:
    """The sequences of a server. Methods that say so are called with the server's lock.

    Args:
        lock: the server's.
        waiting: its queue.
        replicas: returns those that may take requests of sequences, with the lock; raises if there never will be any more.
        call: wakes the replicas whose turn it is to take what waits; with the lock.
        most: bytes that all states may take; None for half of the memory that is free now. Those on a device never take more
            than nine tenths of what it may hold besides weights.

    Attributes:
        dropped: sequences that nobody refers to any more. Whoever collects garbage may hold any lock, and adds to it.
    """

    def __init__(
        self,
        lock: threading.Lock,
        waiting: Waiting,
        replicas: Callable[[], list[Replica]],
        call: Callable[[], object],
        most: float | None = None,
    ) -> None:
        self.most = _OF_FREE * free_bytes() if most is None else most
        self._lock, self._waiting, self._replicas, self._call = lock, waiting, replicas, call
        self._made = 0
        self._lines: dict[int, Line] = {}
        self._closing: dict[Line, None] = {}  # closed, with requests left
        self.dropped: deque[Line] = deque()

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, line: Line) -> bool:
        return self._lines.get(line.number) is line

    @property
    def open_lines(self) -> list[Line]:
        """Those that are not closed; with the lock."""
        return [line for line in self._lines.values() if not line.closed]

    @property
    def bytes(self) -> int:
        """Size of all states; with the lock."""
        return sum(line.bytes.total() for line in self._lines.values())

    # -- what their owners do ----------------------------------------------------------------------------------------------

    def open(self, *, recompute: bool, like: Line | None = None) -> Line:
        """Make a sequence with a slot, whose state is that of another one if there is one, which is idle."""
        with self._lock:
            self._made += 1
            line = self._lines[self._made] = Line(self._made, recompute)
        try:
            if like is not None:
                line.copy(like)
            self._settle_anywhere(line, None if like is None else like.replica, None if like is None else _states(like))
        except BaseException:
            with self._lock:
                _release(line)
                self._lines.pop(line.number, None)
            raise
        return line

    def fork(self, line: Line, timeout: float | None) -> Line:
        """See :meth:`Sequence.fork`."""
        line.check_open()
        until = math.inf if timeout is None else perf_counter() + timeout
        with self._idle(line, line.submitted, until):
            self._carry_out_resets(line, line.resets)
            line.check_known()
            return self.open(recompute=line.recompute, like=line)

    def reset(self, line: Line) -> None:
        """See :meth:`Sequence.reset`."""
        with self._lock:
            line.check_open()
            line.resets += 1
            now = line.slot is not None and self._is_idle(line, line.submitted)  # else the next request does it
        if now:
            with self._idle(line, 0):
                self._carry_out_resets(line, line.resets)

    def end(self, line: Line, *, drain: bool) -> list[Pending]:
        """Close a sequence; with the lock. Return the requests that are to fail."""
        dropped = [] if drain else self._waiting.clear_line(line)
        line.closed = True
        self._closing[line] = None
        self.tidy()
        return dropped

    # -- what replicas do --------------------------------------------------------------------------------------------------

    def next(self, replica: Replica) -> Pending | None:
        """The first request of a sequence that may begin on a replica; with the lock."""
        if not replica.able or replica.exploring:
            return None
        for line in self._waiting.lines:
            request = self._waiting.first(line)
            if line.replica in (replica, None) and request is not None and line.may_begin(request.position):
                if line.behind and request.resets == line.begun:
                    return Pending(line.inputs[line.ran], math.inf, line=line, resets=line.begun, replay=True)
                return request
        return None

    def make_ready(self, line: Line, request: Pending, replica: Replica) -> None:
        """Have the slot of a sequence hold the state that its request goes on from; on the thread of the replica."""
        if line.slot is None:
            self._settle(line, replica, here=True)
        self._carry_out_resets(line, request.resets)
        line.check_known()
        with self._lock:
            self._check_room(line, replica, line.growth)

    def measure(self, line: Line) -> None:
        """Take note of what a run has added to a state; on the thread of the replica, when nothing of the sequence runs."""
        with self._lock:
            due = line.due or self.bytes > _NEAR * self.most
        found = None
        if due and line.slot is not None:
            with contextlib.suppress(Exception):  # the next request tells what is the matter
                found = line.slot.state_bytes()
        with self._lock:
            line.grown(found)

    def released(self, line: Line, request: Pending, failure: PlaceitError | None, *, well: bool) -> None:
        """A request of a sequence is not in flight any more; ``failure`` of one that had begun. With the lock."""
        if well:
            line.ended(request.inputs, replay=request.replay)
        elif failure is not None:
            line.failed(failure, for_good=request.replay)
        line.flying, request.settled = False, True
        line.note()

    def interrupted(self, line: Line, request: Pending, why: PlaceitError | None) -> SequenceError | None:
        """A request in flight has to begin again; return why it cannot, None if it can. With the lock."""
        if request.started:
            line.failed(why or ExecutionError("A request of it was interrupted by an error of the server's."))
        line.flying, request.started, request.settled = False, False, True
        line.note()
        return None if line.lost is None else SequenceError(line.lost)

    def lose(self, replica: Replica, why: PlaceitError) -> None:
        """All slots of a replica are lost; with the lock."""
        for line in self._lines.values():
            if line.replica is replica:
                line.replica = line.slot = None
                line.least = Counter()
                line.failed(why)
                line.empty()

    def leave(self, leaving: Collection[Replica]) -> None:
        """Move the states of sequences from replicas that take no more requests, and of which nothing runs, to others."""
        with self._lock:
            lines = [line for line in self._lines.values() if _is_on(line, leaving)]
        for line in lines:
            with self._idle(line, 0):
                if not _is_on(line, leaving):
                    continue
                try:
                    self._settle_anywhere(line, None, _states(line))
                except Exception as error:  # noqa: BLE001 (of this sequence alone)
                    with self._lock:
                        _release(line)
                        line.failed(failure_of("it could not be moved to another placement.", error))

    def tidy(self) -> None:
        """Release the slots of closed sequences of which no request is left; with the lock."""
        while self.dropped:
            line = self.dropped.popleft()
            line.closed = True
            self._closing[line] = None
        for line in [*self._closing]:
            if self._is_idle(line, line.submitted) and not line.holds:
                del self._closing[line]
                self._lines.pop(line.number, None)
                _release(line)

    # -- how -----------------------------------------------------------------------------------------------------------------

    def _home(self) -> Replica:
        """The replica with the fewest sequences; with the lock."""
        replicas = self._replicas()
        if not replicas:
            raise ExecutionError("Nothing runs requests of this server just now, as its devices are lost: try again later.")
        return min(replicas, key=lambda replica: sum(line.replica is replica for line in self._lines.values()))

    def _check_room(self, line: Line, home: Home, more: Counter[str]) -> None:
        """Raise StateMemoryError if so many bytes more of state have no room; with the lock."""
        total = self.bytes + more.total()
        what, taken, most = "all devices", total, self.most
        for device, room in home.executor.room_for_state.items():
            here = sum(other.bytes[device] for other in self._lines.values()) + more[device]
            if here > _OF_DEVICE * room:
                what, taken, most = device, here, _OF_DEVICE * room
        if taken > most and taken > 0:
            raise StateMemoryError(
                f"The state of sequence {line.number} has no room: those of {len(self._lines)} sequences would take "
                f"{about_bytes(taken)} on {what}, and may take {about_bytes(most)} there. Close or reset others, or allow more "
                "(state_memory=)."
            )

    def _settle_anywhere(self, line: Line, wanted: Home | None, states: Mapping[str, Any] | None) -> None:
        """Give a sequence a slot, on the wanted replica if that can be, and else where the fewest are."""
        while True:
            with self._lock:
                home = wanted if wanted is not None and wanted.able else self._home()
            try:
                self._settle(line, home, states)
            except PlaceitError:
                if home.able:
                    raise
            else:
                return

    def _settle(self, line: Line, home: Home, states: Mapping[str, Any] | None = None, *, here: bool = False) -> None:
        """Give a sequence of which nothing runs a slot on a replica, with given states or the initial one.

        Raises ExecutionError if that takes no requests any more, unless it is ``here``: then it leaves after its thread's work.
        """
        with self._lock:
            self._check_room(line, home, Counter())
        slot = home.executor.open_slot()
        try:
            if states is not None:
                slot.set_states(states)
            least = slot.state_bytes() if line.fresh else None
            with self._lock:
                if least is not None:
                    self._check_room(line, home, least - line.bytes)
                    line.least = least
                    line.empty()
                if not (here or home.able):
                    raise ExecutionError("This replica has just been taken out of service.")
                _release(line)
                line.replica, line.slot = home, slot
        except BaseException:
            home.executor.close_slot(slot)
            raise

    def _carry_out_resets(self, line: Line, resets: int) -> None:
        """Have the slot of a sequence of which nothing runs start anew, if that is due."""
        due = resets > line.begun
        if line.slot is not None and (due or (line.recompute and line.ran == 0)):
            line.slot.reset_state()
        if due:
            with self._lock:
                line.reset(resets)

    @contextlib.contextmanager
    def _idle(self, line: Line, hold: int, until: float = math.inf) -> Iterator[None]:
        """Wait until the first so many requests of a sequence have ended; no later one begins meanwhile, nor in the context."""
        me = object()
        with self._lock:
            line.holds.append(hold)
        try:
            self._claim(line, hold, until, me)
            yield
        finally:
            with self._lock:
                line.holds.remove(hold)
                line.moving = None if line.moving is me else line.moving
                line.note()
                self.tidy()
                self._call()

    def _claim(self, line: Line, hold: int, until: float, me: object) -> None:
        """Wait until the first so many requests of a sequence have ended and nobody uses its state, and then use it."""
        while True:
            with self._lock:
                if self._is_idle(line, hold):
                    line.moving = me
                    return
                gate = line.noted = line.noted or Gate()
            if perf_counter() >= until:
                raise ExecutionError(f"The time-out is over, and requests of sequence {line.number} have not ended.")
            gate.wait(max(0.0, min(_LOOK_S, until - perf_counter())))

    def _is_idle(self, line: Line, hold: int) -> bool:
        """Return whether nobody uses the state of a sequence, and none of its first so many requests is left; with the lock."""
        first = self._waiting.first(line)
        return not line.flying and line.moving is None and (first is None or first.position > hold)


def _states(line: Line) -> dict[str, Any] | None:
    """Copies of the states of a sequence of which nothing runs; None if it has the initial one, or has to compute it anew."""
    return None if line.slot is None or line.fresh or line.behind else line.slot.states()


def _is_on(line: Line, replicas: Collection[Home]) -> bool:
    return line.replica is not None and line.replica in replicas


def _release(line: Line) -> None:
    """Release the slot of a sequence, if it has one."""
    if line.replica is not None and line.slot is not None:
        line.replica.executor.close_slot(line.slot)
    line.replica = line.slot = None
