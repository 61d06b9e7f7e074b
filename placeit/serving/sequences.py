"""The sequences of a server: their slots on replicas, and their states, which are measured, moved and recomputed."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from time import perf_counter
from typing import Any

from placeit.backends.base import Arrays
from placeit.core.errors import ExecutionError, PlaceitError, SequenceError, StateLostError, StateMemoryError
from placeit.core.threads import CHECK_S, Gate
from placeit.core.units import about_bytes
from placeit.devices.host import free_bytes
from placeit.runtime.calls import failure_of
from placeit.serving.answers import Pending, interruption
from placeit.serving.line import Home, Line
from placeit.serving.replica import Replica
from placeit.serving.waiting import Waiting

__all__ = ["OF_DEVICE", "Sequences"]

_OF_FREE = 0.5  # share of the free memory that states may take
OF_DEVICE = 0.9
"""Share of what a device may hold besides weights that states may take there."""
_NEAR = 0.8  # share of the memory for states, above which states are measured after each run


class Sequences:
    """The sequences of a server. A method documented as "with the lock" is called by a thread that holds the server's lock.

    Args:
        lock: the server's lock.
        waiting: the server's queue.
        replicas: returns the replicas that may take requests of sequences, with the lock; raises if there never will be any.
        call: wakes the replicas whose turn it is to take a waiting request, with the lock.
        most: bytes that all states may take; None for half of the memory that is free now. The states on a device never take
            more than nine tenths of what it may hold besides weights.

    Attributes:
        dropped: sequences to which no reference is left. The thread that collects garbage, which may hold any lock, adds them.
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
        """Sequences that are not closed; with the lock."""
        return [line for line in self._lines.values() if not line.closed]

    @property
    def bytes(self) -> int:
        """Size of all states in bytes; with the lock."""
        return sum(line.bytes.total() for line in self._lines.values())

    # -- for the users of sequences ----------------------------------------------------------------------------------------

    def open(self, *, recompute: bool, like: Line | None = None) -> Line:
        """Open a sequence in the state of ``like``, which must be idle, or else in the initial state."""
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
        """See :meth:`placeit.serving.sequence.Sequence.fork`."""
        line.check_open()
        until = math.inf if timeout is None else perf_counter() + timeout
        with self._idle(line, line.submitted, until):
            self._carry_out_resets(line, line.resets)
            line.check_known()
            return self.open(recompute=line.recompute, like=line)

    def reset(self, line: Line) -> None:
        """See :meth:`placeit.serving.sequence.Sequence.reset`."""
        with self._lock:
            line.check_open()
            line.resets += 1
            now = line.slot is not None and self._is_idle(line, line.submitted)  # else the next request carries out the reset
        if now:
            with contextlib.suppress(PlaceitError), self._idle(line, 0):  # the device is lost: the next request does it
                self._carry_out_resets(line, line.resets)

    def end(self, line: Line, *, drain: bool) -> list[Pending]:
        """Close a sequence; with the lock. Return its waiting requests, which are to fail, unless they are to ``drain``."""
        dropped = [] if drain else self._waiting.clear_line(line)
        line.closed = True
        self._closing[line] = None
        self.tidy()
        return dropped

    # -- for replicas ------------------------------------------------------------------------------------------------------

    def next(self, replica: Replica) -> list[Pending]:
        """Return the requests of sequences that a replica runs next, as one; empty if none may begin. With the lock.

        Sequences take turns, so that steps run between the chunks of another sequence's prompt.
        """
        if not replica.able or replica.exploring:
            return []
        steps, other = list[Pending](), None
        for line in self._waiting.lines:
            request = self._waiting.first(line)
            if request is None or line.replica not in (replica, None):
                continue
            if line.may_begin(request.position):
                if line.behind and request.resets == line.begun:
                    request = Pending(line.inputs[line.ran], math.inf, line=line, resets=line.begun, replay=True)
                elif replica.stepping is not None and replica.stepping.is_step(line, request):
                    request.step = True
                    steps.append(request)
                    continue
            elif not self._may_follow(line, request, replica):
                continue
            request.step = False
            if not steps:
                return [request]
            other = other or request
        chosen = list[Pending]()
        if replica.stepping is not None and steps:
            lines = sum(line.replica is replica for line in self._lines.values())
            chosen = replica.stepping.choose(steps, replica.steps, lines, lambda more: self._lacks(replica, more) is None)
        return chosen or ([] if other is None else [other])

    def _may_follow(self, line: Line, request: Pending, replica: Replica) -> bool:
        """Return whether a waiting request may begin while others of its sequence are in flight; with the lock."""
        joined = replica.stepping is not None and replica.stepping.may_join(request)
        return line.may_follow(request.position, request.resets) and not joined and self.bytes <= _NEAR * self.most

    def make_ready(self, line: Line, request: Pending, replica: Replica) -> bool:
        """Have a request run in a slot of its sequence, in the state that it continues from; on the replica's thread.

        Returns:
            False if the request has to wait for those in flight, as there is no room for a further slot.
        """
        if line.slot is None:
            self._settle(line, replica, here=True)
        if len(line.flying) == 1:
            self._carry_out_resets(line, request.resets)
            if not request.step:
                line.separate()
        line.check_known()
        with self._lock:
            self._check_room(line, replica, line.coming)
        slot = line.free_slot
        if slot is None:
            try:
                slot = replica.executor.open_slot(beside=line.slot)
            except PlaceitError:
                line.alone = True
                return False
            line.more.append(slot)
        line.flying[request] = slot
        return True

    def measure(self, line: Line, inputs: Arrays) -> None:
        """Record the size of a state after a run, or its likely size while other requests run; on the replica's thread."""
        with self._lock:
            due = len(line.flying) <= 1 and (line.due or self.bytes > _NEAR * self.most)
        found = None
        if due and line.slot is not None and line.convoy is None:
            with contextlib.suppress(Exception):  # the next request reports the error
                found = line.slot.state_bytes()
        with self._lock:
            line.grown(inputs, found)

    def released(self, line: Line, request: Pending, failure: PlaceitError | None, *, well: bool) -> None:
        """Record that a request is no longer in flight, with the ``failure`` if it failed after it had begun. With the lock."""
        if well:
            line.ended(request.inputs, replay=request.replay)
        elif failure is not None:
            line.failed(failure, at=request.position, for_good=request.replay)
        line.flying.pop(request, None)
        line.note()

    def interrupted(self, line: Line, request: Pending, why: PlaceitError | None) -> SequenceError | None:
        """Record that a request in flight has to begin again; return the error if it cannot, else None. With the lock."""
        if request.started:
            line.failed(why or interruption())
        request.started = False
        line.flying.pop(request, None)
        line.note()
        return None if line.lost is None else StateLostError(line.number, line.lost)

    def lose(self, replica: Replica, why: PlaceitError) -> None:
        """Record that all slots of a replica are lost; with the lock."""
        for line in self._lines.values():
            if line.replica is replica:
                line.leave()
                line.let_go()
                line.least = Counter()
                line.failed(why)
                line.empty()

    def leave(self, leaving: Collection[Replica]) -> None:
        """Move the states of sequences from retired replicas, on which no request runs, to other replicas."""
        with self._lock:
            lines = [line for line in self._lines.values() if _is_on(line, leaving)]
        for line in lines:
            with self._idle(line, 0):
                if not _is_on(line, leaving):
                    continue
                try:
                    self._settle_anywhere(line, None, _states(line))
                except Exception as error:  # noqa: BLE001 (it concerns this sequence alone)
                    with self._lock:
                        _release(line)
                        line.failed(failure_of("it could not be moved to another placement", error))

    def tidy(self) -> None:
        """Release the slots of closed sequences that have no requests left; with the lock."""
        while self.dropped:
            line = self.dropped.popleft()
            line.closed = True
            self._closing[line] = None
        for line in [*self._closing]:
            if self._is_idle(line, line.submitted) and not line.holds:
                del self._closing[line]
                self._lines.pop(line.number, None)
                _release(line)

    # -- slots and states ----------------------------------------------------------------------------------------------------

    def _home(self) -> Replica:
        """Return the replica with the fewest sequences; with the lock."""
        replicas = self._replicas()
        if not replicas:
            raise ExecutionError("Nothing runs requests of this server just now, as its devices are lost: try again later.")
        return min(replicas, key=lambda replica: sum(line.replica is replica for line in self._lines.values()))

    def _check_room(self, line: Line, home: Home, more: Counter[str]) -> None:
        """Raise StateMemoryError if there is no room for ``more`` bytes of state, by device name; with the lock."""
        if (lack := self._lacks(home, more)) is not None:
            raise StateMemoryError(
                f"The state of sequence {line.number} has no room: the states of {len(self._lines)} sequences would take "
                f"{lack}. Close or reset others, or allow more (state_memory=)."
            )

    def _lacks(self, home: Home, more: Counter[str]) -> str | None:
        """Return which memory ``more`` bytes of state would exceed, None if there is room for them; with the lock."""
        total = self.bytes + more.total()
        what, taken, most = "all devices", total, self.most
        for device, room in home.executor.room_for_state.items():
            here = sum(other.bytes[device] for other in self._lines.values()) + more[device]
            if here > OF_DEVICE * room:
                what, taken, most = device, here, OF_DEVICE * room
        exceeds = taken > most and taken > 0
        return f"{about_bytes(taken)} on {what}, and may take {about_bytes(most)} there" if exceeds else None

    def _settle_anywhere(self, line: Line, wanted: Home | None, states: Mapping[str, Any] | None) -> None:
        """Give a sequence a slot, on the wanted replica if it may take requests, else on the one with the fewest sequences.

        If all replicas are being replaced, a sequence in the initial state gets none, and its requests wait.
        """
        while True:
            with self._lock:
                if states is None and not self._replicas():
                    _release(line)
                    return
                home = wanted if wanted is not None and wanted.able else self._home()
            try:
                self._settle(line, home, states)
            except PlaceitError:
                if home.able:
                    raise
            else:
                return

    def _settle(self, line: Line, home: Home, states: Mapping[str, Any] | None = None, *, here: bool = False) -> None:
        """Give an idle sequence a slot on a replica, with the given states or the initial one.

        Raises ExecutionError if the replica takes no more requests. If this is the replica's thread (``here``), it does not:
        the replica then leaves only after the thread's work.
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
        """Reset the slot of an idle sequence to the initial state, if a reset or a recomputation is due."""
        due = resets > line.begun
        if due:
            line.leave()
        if line.slot is not None and (due or (line.recompute and line.ran == 0)):
            line.slot.reset_state()
        if due:
            with self._lock:
                line.reset(resets)

    @contextlib.contextmanager
    def _idle(self, line: Line, hold: int, until: float = math.inf) -> Iterator[None]:
        """Wait until the first ``hold`` requests of a sequence have ended; no later request begins before the context ends."""
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
        """Wait until the first ``hold`` requests of a sequence have ended and no thread uses its state; then claim it."""
        while True:
            with self._lock:
                if self._is_idle(line, hold):
                    line.moving = me
                    return
                gate = line.noted = line.noted or Gate()
            if perf_counter() >= until:
                raise ExecutionError(f"The time-out is over, and requests of sequence {line.number} have not ended.")
            gate.wait(max(0.0, min(CHECK_S, until - perf_counter())))

    def _is_idle(self, line: Line, hold: int) -> bool:
        """Return whether no thread uses a sequence's state, and its first ``hold`` requests have ended; with the lock."""
        first = self._waiting.first(line)
        return not line.busy and line.moving is None and (first is None or first.position > hold)


def _states(line: Line) -> Mapping[str, Any] | None:
    """Return copies of an idle sequence's states; None if it has the initial state, or has to recompute it."""
    return None if line.fresh or line.behind else line.states


def _is_on(line: Line, replicas: Collection[Home]) -> bool:
    return line.replica is not None and line.replica in replicas


def _release(line: Line) -> None:
    """Release the slots of a sequence."""
    line.leave()
    home = line.replica
    for slot in line.let_go():
        if home is not None:
            home.executor.close_slot(slot)
