"""Replicas of a server: each runs requests with an executor and a thread, and is replaced when it is lost."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.errors import ExecutionError, PlaceitError, forget_frames
from placeit.core.narrowing import narrowed
from placeit.core.threads import Gate, Worker
from placeit.runtime.feed import Bell, Slots, report
from placeit.runtime.plan_executor import PlanExecutor, failure_of
from placeit.runtime.spans import Moved, Ran
from placeit.serving.answers import Answer, Pending

__all__ = ["Host", "Replace", "Replacement", "Replica"]

_LOG = logging.getLogger("placeit")
_FAILURES = 6  # failures in a row that no request caused; after one more, the replica counts as lost
_PAUSE_S = 5e-3  # seconds; the pause after the n-th failure in a row is this times 2**n


@dataclass
class Replacement:
    """Record of the replacement of an executor: the reason, the new devices, and how long each step took.

    Attributes:
        why: the reason: a device or a link was lost, is back, or is slow.
        devices: devices that requests run on afterwards.
        silent_s: seconds from the last sign of life of the lost device or link until the loss was noticed; 0 without a loss.
        decided_s: seconds to decide on the new placement.
        compiled_s: seconds from the decision until the placement could run.
        answered_s: seconds from then to its first answer; NaN before that.
    """

    why: str
    devices: tuple[str, ...]
    silent_s: float
    decided_s: float
    compiled_s: float
    answered_s: float = math.nan

    def __str__(self) -> str:
        return (
            f"{self.why} Requests are run on {', '.join(self.devices)}: noticed after {self.silent_s:.2f} s, decided in "
            f"{self.decided_s:.2f} s, compiled in {self.compiled_s:.2f} s, first answer {self.answered_s:.2f} s later."
        )


Replace: TypeAlias = Callable[[PlanExecutor, Sequence[PlanExecutor], PlaceitError], tuple[PlanExecutor, Replacement]]
"""Replaces a lost executor, given it, the executors that still run, and the error. Raises PlaceitError if it cannot."""


class Host(Protocol):
    """The server of a replica: it supplies requests, and is told when they end.

    Attributes:
        replacements: of executors, in order.
        queued: the compiled queue, whose requests need no Python.
    """

    replacements: list[Replacement]
    queued: _core.RequestQueue

    @property
    def able(self) -> bool:
        """True if the server takes requests and has devices that run them."""
        ...

    def take(self, replica: Replica, *, room: bool) -> Pending | None:
        """Return the next request for a replica; None if no request waits, or another replica has to take it.

        Args:
            replica: the replica that asks.
            room: whether it may be a request of no sequence.
        """
        ...

    def patience(self) -> float:
        """End requests that were cancelled or are past their deadline, and return the seconds until the next call is due."""
        ...

    def happened(self, what: str, why: str, *, seconds: float = 0.0, until: float | None = None) -> None:
        """Record an event; see :meth:`placeit.serving.history.History.happened`."""
        ...

    def queued_at(self, replica: int, slot: int) -> Pending | None:
        """Return the request of the compiled queue that is in a slot of a replica; None if the slot has no such request."""
        ...

    def drop(self, request: Pending) -> None:
        """Take a failed request out of the compiled queue."""
        ...

    def wait_for_work(self, replica: Replica) -> bool:
        """Wait until a request may wait for a replica; return False if no more will come."""
        ...

    def again(self, replica: Replica) -> None:
        """Put the requests that a replica has taken, and that have not ended, back at the front of the queue."""
        ...

    def release(
        self,
        replica: Replica,
        request: Pending,
        ran: Sequence[Ran] = (),
        moved: Sequence[Moved] = (),
        ended: float = math.nan,
        failure: PlaceitError | None = None,
    ) -> bool:
        """Record that a request is no longer in flight; return False if it had ended before."""
        ...

    def tell(self, request: Pending, ran: Sequence[Ran], replica: Replica) -> None:
        """Tell the attendants of a request that has ended well."""
        ...

    def without(self, replica: Replica) -> bool:
        """Give no more requests to a replica, if other replicas can run them; return whether they can."""
        ...

    def lose(self, replica: Replica, error: PlaceitError) -> None:
        """Go on without a replica that cannot run requests any more."""
        ...


class Replica:
    """An executor, the thread that serves it, and the requests in flight there: the feed of the executor.

    Args:
        server: the server whose requests it takes.
        executor: closed with the replica.
        replacement: logged with its first answer; None if this replica replaces none.
        every: a candidate gets one request in ``every``; 0 for any other replica.

    Attributes:
        number: its number in the compiled queue of the server; None if its requests need Python.
        exploring: whether it is a candidate.
        flying: requests in flight; read and changed with the server's lock.
        lost: whether it cannot run requests any more.
        retired: whether it is to take no more requests.
        gone: opens when its thread has nothing left to do.
    """

    def __init__(
        self,
        server: Host,
        executor: PlanExecutor,
        replacement: Replacement | None = None,
        *,
        every: int = 0,
    ) -> None:
        self.executor, self._server, self._replacement, self.exploring = executor, server, replacement, every > 0
        self._ready = perf_counter()
        self.bell, self.gone = Bell(), Gate()
        self.flying: list[Pending] = []
        self.lost = self.retired = False
        self._thread = 0
        self._failures = 0  # failures in a row that no request caused
        self._worker = Worker("placeit serving")
        self.number = executor.join(server.queued, self.bell, every)

    def start(self) -> None:
        """Start taking requests, on the replica's thread."""
        self._worker.submit(self._work)

    @property
    def able(self) -> bool:
        """True if the replica may take requests."""
        return not (self.lost or self.retired)

    @property
    def room(self) -> bool:
        """True if the replica may take a request of no sequence; requests of sequences have separate slots."""
        ordinary = sum(request.line is None for request in self.flying) if self.number is None else self._relayed
        return self.able and ordinary < self.executor.in_flight

    @property
    def _relayed(self) -> int:
        return 0 if self.number is None else self._server.queued.in_flight(self.number)

    @property
    def load(self) -> int:
        """Number of requests in flight, by which the server chooses the replica for the next request."""
        return len(self.flying) + self._relayed

    def is_here(self) -> bool:
        """Return whether the calling thread is the replica's thread."""
        return self._thread == threading.get_ident()

    def close(self) -> None:
        """End the thread and release the executor, now or when the thread has ended its current work."""
        if self.gone.is_open:
            self._end()
        else:
            with contextlib.suppress(ExecutionError):  # the thread ends already
                self._worker.submit(self._end)

    def discard(self) -> None:
        """End the thread of a replica that was never started; the executor stays open."""
        self._worker.close()
        self.bell.close()

    def _end(self) -> None:
        self.discard()
        self.executor.close()

    def _work(self) -> None:
        reason: PlaceitError | None = None
        try:
            while reason is None:
                try:
                    if not self._run_what_waits():
                        return
                except BaseException as error:  # noqa: BLE001 (the thread serves others)
                    reason = self._end_of(error)
            if self.number is not None:
                self._server.queued.close(self.number)
            self._server.lose(self, reason)
        finally:
            self.gone.open()

    def _run_what_waits(self) -> bool:
        """Run requests until none waits; return False if no more will come. Requests in flight after an error begin again."""
        self._thread = threading.get_ident()
        if self.number is not None:
            self._server.queued.close(self.number)
        self.executor.settle()
        self._server.again(self)
        if not self.stays() and not self._server.wait_for_work(self):
            return False
        self.executor.serve(self)
        return True

    def _end_of(self, error: BaseException) -> PlaceitError | None:
        """Return why the replica is lost, after an error that ended serving; None if the replica goes on."""
        why = error if isinstance(error, PlaceitError) else None
        try:
            self.executor.check()
        except PlaceitError as reason:
            return why or reason
        self._failures += 1
        if self._failures > _FAILURES or self.exploring:
            return why or failure_of("Serving failed", error)
        report("Serving goes on after", error)
        forget_frames(error)  # its frames hold requests
        time.sleep(_PAUSE_S * 2**self._failures)
        return None

    def take(self, *, room: bool) -> Pending | None:
        """See :class:`placeit.runtime.feed.Feed`."""
        request = self._server.take(self, room=room)
        if request is not None:
            request.future.begun = perf_counter()
        return request

    def patience(self) -> float:
        """See :class:`placeit.runtime.feed.Feed`."""
        return self._server.patience()

    def stays(self) -> bool:
        """See :class:`placeit.runtime.feed.Feed`."""
        return self.executor.stays and self.able and (self._server.able or self._server.queued.waiting > 0)

    @property
    def slots(self) -> Slots | None:
        """See :class:`placeit.runtime.feed.Feed`."""
        return None if self.number is None else self

    def open(self) -> None:
        """See :class:`placeit.runtime.feed.Slots`."""
        self._server.queued.open(narrowed(int, self.number))

    def reserve(self) -> int | None:
        """See :class:`placeit.runtime.feed.Slots`."""
        slot = self._server.queued.reserve(narrowed(int, self.number))
        return slot if slot >= 0 else None

    def release(self, number: int) -> None:
        """See :class:`placeit.runtime.feed.Slots`."""
        self._server.queued.release(narrowed(int, self.number), number)

    def retire(self) -> bool:
        """See :class:`placeit.runtime.feed.Slots`."""
        return self.number is None or self._server.queued.retire(self.number)

    def adopt(self) -> None:
        """Turn a candidate into an ordinary replica, which gets as many requests as any other."""
        self.exploring = False
        if self.number is not None:
            self._server.queued.adopt(self.number)

    def at(self, number: int) -> Pending | None:
        """See :class:`placeit.runtime.feed.Feed`."""
        return None if self.number is None else self._server.queued_at(self.number, number)

    def ended(
        self, item: Pending, outputs: Mapping[str, NDArray[np.generic]], ran: Sequence[Ran], moved: Sequence[Moved]
    ) -> None:
        """See :class:`placeit.runtime.feed.Feed`."""
        ended = perf_counter()
        self._failures = 0
        try:
            if not self._server.release(self, item, ran, moved, ended) and item.future.done():
                return
            item.future.ended = ended
            self.answered(ended)
            self._server.tell(item, ran, self)
        except BaseException as error:  # noqa: BLE001 (the outputs are there)
            report("A request has ended and was not counted:", error)
            _settle(item, error)

        def tell(future: Answer) -> None:
            try:
                future.set_result(dict(outputs))
            finally:
                if item.line is not None and not future.done():
                    item.line.failed(ExecutionError("The outputs of a request could not be handed over."), for_good=True)

        item.future.end(tell)

    def answered(self, ended: float) -> None:
        """Record that a request has ended well. If the replica replaces another one, log the time to its first answer."""
        self._failures = 0
        replacement, self._replacement = self._replacement, None
        if replacement is not None:
            replacement.answered_s = ended - self._ready
            self._server.replacements.append(replacement)
            self._server.happened("first answer", str(replacement), seconds=ended - self._ready, until=ended)
            _LOG.warning("%s", replacement)

    def failed(self, item: Pending, error: PlaceitError, *, begun: bool = True) -> None:
        """See :class:`placeit.runtime.feed.Feed`."""
        if item.explored and self._server.without(self):
            return  # it begins again on another replica, which shows whether the request is at fault
        self._failures = 0

        def tell(future: Answer) -> None:
            if not item.over:
                self._server.release(self, item, failure=error if begun or item.replay else None)
            elif item.line is not None:  # its outputs were there, and could not be handed over
                item.line.failed(error, for_good=True)
            future.set_exception(error)

        item.future.end(tell)
        _settle(item, error)
        if item.submission is not None:
            self._server.drop(item)


def _settle(item: Pending, error: BaseException) -> None:
    """Have the sequence of a request go on after the server failed to count the request; its state counts as lost."""
    if item.line is not None and not item.settled:
        item.line.failed(failure_of("a request was not counted", error), for_good=True)
        item.line.flying, item.settled = False, True
