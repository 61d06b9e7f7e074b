"""Run the requests of a server: an executor and a thread, and its replacement when it is lost."""

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
_FAILURES = 6  # in a row, which were no request's, after which nothing is expected to run any more
_PAUSE_S = 5e-3  # after the first of them; after each other one, twice as long


@dataclass
class Replacement:
    """Record of how requests went on elsewhere.

    Attributes:
        why: a device or a link was lost, is back, or is slow.
        devices: that requests run on from then on.
        silent_s: seconds from the last sign of life of what was lost to the moment when that was noticed; 0 if nothing was.
        decided_s: seconds that the new placement took.
        compiled_s: seconds until it could run.
        answered_s: seconds from then to its first answer; NaN before.
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
"""Makes an executor in place of one that is lost, given it, those that still run, and why. Raises PlaceitError if it cannot."""


class Host(Protocol):
    """The server of a replica: where requests come from, and what is told of their ends.

    Attributes:
        replacements: of executors, in order.
        queued: requests that need no Python.
    """

    replacements: list[Replacement]
    queued: _core.RequestQueue

    @property
    def able(self) -> bool:
        """True if requests are taken, and there are devices that run them."""
        ...

    def take(self, replica: Replica, *, room: bool) -> Pending | None:
        """The next request for a replica, maybe of no sequence; None if there is none, or another replica has to take it."""
        ...

    def patience(self) -> float:
        """End what was given up or is too late, and return the seconds until that has to be done again."""
        ...

    def happened(self, what: str, why: str, *, seconds: float = 0.0, until: float | None = None) -> None:
        """Record an event; see :meth:`placeit.serving.history.History.happened`."""
        ...

    def queued_at(self, replica: int, slot: int) -> Pending | None:
        """The request of the compiled queue that is in a slot of a replica; None if there is none."""
        ...

    def drop(self, request: Pending) -> None:
        """Take a request out of the compiled queue that has failed."""
        ...

    def wait_for_work(self, replica: Replica) -> bool:
        """Wait until something may wait for a replica; False if nothing will any more."""
        ...

    def again(self, replica: Replica) -> None:
        """Have the requests that a replica has taken, and that have not ended, begin again before all others."""
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
        """Take note that a request is not in flight any more; False if it had ended before."""
        ...

    def tell(self, request: Pending, ran: Sequence[Ran], replica: Replica) -> None:
        """Tell those that listen of a request that has ended well."""
        ...

    def without(self, replica: Replica) -> bool:
        """Give no more requests to a replica, if there are others; return whether."""
        ...

    def lose(self, replica: Replica, error: PlaceitError) -> None:
        """Go on without a replica on which nothing runs any more."""
        ...


class Replica:
    """An executor, the thread that serves it, and the requests in flight there: the feed of the executor.

    Args:
        server: the server whose requests it takes.
        executor: closed with it.
        replacement: logged with its first answer; None if this replica replaces none.
        every: of a candidate, which gets one request in ``every``; 0 of any other replica.

    Attributes:
        number: in the compiled queue of the server; None if its requests need Python.
        exploring: whether it is a candidate.
        flying: requests in flight, for the server's lock.
        lost: whether nothing can run on it any more.
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
        self._failures = 0  # in a row, that were no request's
        self._worker = Worker("placeit serving")
        self.number = executor.join(server.queued, self.bell, every)

    def start(self) -> None:
        """Have its thread take requests."""
        self._worker.submit(self._work)

    @property
    def able(self) -> bool:
        """True if it may take requests."""
        return not (self.lost or self.retired)

    @property
    def room(self) -> bool:
        """True if it may take a request of no sequence; those of sequences have slots of their own."""
        ordinary = sum(request.line is None for request in self.flying) if self.number is None else self._relayed
        return self.able and ordinary < self.executor.in_flight

    @property
    def _relayed(self) -> int:
        return 0 if self.number is None else self._server.queued.in_flight(self.number)

    @property
    def load(self) -> int:
        """How many requests are in flight there, as far as that decides which replica takes the next one."""
        return len(self.flying) + self._relayed

    def is_here(self) -> bool:
        """Return whether this is its thread."""
        return self._thread == threading.get_ident()

    def close(self) -> None:
        """End the thread and release the executor, at once or when what it does has ended."""
        if self.gone.is_open:
            self._end()
        else:
            with contextlib.suppress(ExecutionError):  # it ends already
                self._worker.submit(self._end)

    def discard(self) -> None:
        """End the thread of one that was never started, and leave the executor as it is."""
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
        """Run requests until none waits; False if no more will come. What is in flight after an error begins again."""
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
        """Why nothing can run here any more, as serving has ended by an error; None if it goes on."""
        why = error if isinstance(error, PlaceitError) else None
        try:
            self.executor.check()
        except PlaceitError as reason:
            return why or reason
        self._failures += 1
        if self._failures > _FAILURES or self.exploring:
            return why or failure_of("Serving failed", error)
        report("Serving goes on after", error)
        forget_frames(error)  # which hold requests
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
        """Have a candidate get as many requests as any other replica."""
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
        """Take note of a request that has ended well; if this replica replaces another one, say how long the first took."""
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
            return  # it begins again elsewhere, and that says whether it is the fault of the request
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
    """Have the sequence of a request that is over go on, though the server did not count it; nobody knows its state then."""
    if item.line is not None and not item.settled:
        item.line.failed(failure_of("a request was not counted", error), for_good=True)
        item.line.flying, item.settled = False, True
