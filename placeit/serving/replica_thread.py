"""The thread of a replica: it serves the replica's executor with requests of the server, and reports their ends."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import ExecutionError, PlaceitError, StateLostError, forget_frames
from placeit.core.threads import EXITING
from placeit.runtime.calls import failure_of
from placeit.runtime.feed import report
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.spans import Moved, Ran
from placeit.serving.admitting import Admitting
from placeit.serving.answers import Answer, Pending
from placeit.serving.batching import Batch, Probe, Prober, rows_of
from placeit.serving.replica import Replacement, Replica
from placeit.serving.stepping import Joined

__all__ = ["ReplicaThread"]

_FAILURES = 6  # failures in a row that no request caused; after one more, the replica counts as lost
_PAUSE_S = 5e-3  # seconds; the pause after the n-th failure in a row is this times 2**n


class ReplicaThread(Replica):
    """A replica with its thread: the feed of the executor (:class:`placeit.runtime.feed.Feed`).

    Args:
        server: the server whose requests it takes.
        executor: closed with the replica.
        lose: called on the thread, with the replica and the error, when the replica cannot run requests any more.
        replacement: logged with its first answer; None if this replica replaces none.
        every: a candidate gets one request in ``every``; 0 for any other replica.
    """

    def __init__(
        self,
        server: Admitting,
        executor: PlanExecutor,
        lose: Callable[[Replica, PlaceitError], object],
        replacement: Replacement | None = None,
        *,
        every: int = 0,
    ) -> None:
        super().__init__(server.queued, executor, replacement, every=every)
        self._server, self._lose, self._prober = server, lose, Prober()

    def start(self) -> None:
        """Start taking requests, on the replica's thread."""
        self._worker.submit(self._work)

    def _work(self) -> None:
        reason: PlaceitError | None = None
        try:
            while reason is None:
                try:
                    if not self._run_what_waits():
                        return
                except BaseException as error:  # noqa: BLE001 (the thread serves others)
                    if EXITING.is_open:
                        return
                    reason = self._end_of(error)
            if self.slots is not None:
                self._queued.close(self.slots.number)
            self._lose(self, reason)
        except BaseException as error:  # noqa: BLE001 (a job of a worker must not raise)
            report("A replica could not be replaced:", error)
        finally:
            self.gone.open()

    def _run_what_waits(self) -> bool:
        """Run requests until none waits, at first those interrupted by an error; return False if no more will come."""
        self._thread = threading.get_ident()
        if self.slots is not None:
            self._queued.close(self.slots.number)
        self.executor.drain()
        self._server.again(self)
        if not self.stays() and not self._server.wait_for_work(self):
            return False
        self.executor.serve(self)
        return True

    def _end_of(self, error: BaseException) -> PlaceitError | None:
        """Return why the replica is lost, after an error that ended serving; None if it continues."""
        why = error if isinstance(error, PlaceitError) else None
        try:
            self.executor.check()
        except PlaceitError as reason:
            return why or reason
        self.failures += 1
        if self.failures > _FAILURES or self.exploring:
            return why or failure_of("Serving failed", error)
        report("Serving continues after", error)
        forget_frames(error)  # its frames hold requests
        time.sleep(_PAUSE_S * 2**self.failures)
        return None

    def take(self, *, room: bool) -> Pending | Batch | Probe | Joined | None:
        """See :class:`placeit.runtime.feed.Feed`."""
        if room and (probe := self._prober.take()) is not None:
            return probe
        while requests := self._server.take(self, room=room):
            begun = perf_counter()
            for request in requests:
                request.future.begun = begun
            if self.stepping is not None and requests[0].step:
                try:
                    return self.stepping.prepare(requests)
                except Exception as error:  # noqa: BLE001 (there is no memory for their states together)
                    self.executor.check()
                    self._server.separate(self, requests, error)
                    continue
            if len(requests) == 1:
                return requests[0]
            with contextlib.suppress(Exception):  # there is no memory for their rows together
                padding = self._server.padding
                if all(rows_of(request.inputs, padding) == (request.rows, request.like) for request in requests):
                    return Batch(requests, padding)
            self._server.again(self, only=requests)  # or a caller has given an array another shape
        return None

    def patience(self) -> float:
        """See :class:`placeit.runtime.feed.Feed`."""
        return self._server.patience()

    def stays(self) -> bool:
        """See :class:`placeit.runtime.feed.Feed`."""
        return self._server.stays(self)

    def at(self, number: int) -> Pending | None:
        """See :class:`placeit.runtime.feed.Feed`."""
        return None if self.slots is None else self._server.queued_at(self.slots, number)

    def ended(
        self,
        item: Pending | Batch | Probe | Joined,
        outputs: Mapping[str, NDArray[np.generic]],
        ran: Sequence[Ran],
        moved: Sequence[Moved],
    ) -> None:
        """See :class:`placeit.runtime.feed.Feed`."""
        if isinstance(item, Probe):
            self._server.check_probe(item, dict(outputs))
            return
        step = isinstance(item, Joined) or (isinstance(item, Pending) and item.step)
        self._server.ran(self, 1 if isinstance(item, Pending) and step else item.rows, steps=step)
        if isinstance(item, Pending):
            self._ended(item, outputs, ran, moved)
            return
        parts = item.divided(outputs)
        if isinstance(item, Joined):
            self._server.stepped(self, item)
            for request, part in zip(item.requests, parts or (), strict=True):
                self._ended(request, part, () if request.riding else ran, () if request.riding else moved, joined=True)
            return
        if parts is None:
            self._server.stop_joining("an output of a batch does not have a row for each row of the inputs")
            self._server.again(self, only=item.requests)
            return
        self._prober.ended(item, parts)
        for request, part in zip(item.requests, parts, strict=True):
            self._ended(request, part, () if request.riding else ran, () if request.riding else moved)  # it ran once

    def _ended(
        self,
        item: Pending,
        outputs: Mapping[str, NDArray[np.generic]],
        ran: Sequence[Ran],
        moved: Sequence[Moved],
        *,
        joined: bool = False,
    ) -> None:
        line = item.line
        if line is not None and line.lost is not None and item.position > line.lost_at:  # one before it has failed
            self._server.failed(self, item, StateLostError(line.number, line.lost))
            return
        ended = perf_counter()
        self.failures = 0
        try:
            if not self._server.release(self, item, ran, moved, ended) and item.future.done():
                return
            item.future.ended = ended
            self._server.answered(self, ended)
            joined |= line is not None and line.convoy is not None
            self._server.tell(item, () if joined else ran, self)  # costs are not of joined steps
        except BaseException as error:  # noqa: BLE001 (the outputs are there)
            report("A request has ended and was not counted:", error)
            self._server.uncounted(self, item, error)

        def tell(future: Answer) -> None:
            try:
                future.set_result(dict(outputs))
            finally:
                if item.line is not None and not future.done():
                    item.line.failed(ExecutionError("The outputs of a request could not be handed over."), for_good=True)

        item.future.end(tell)

    def failed(self, item: Pending | Batch | Probe | Joined, error: PlaceitError, *, begun: bool = True) -> None:
        """See :class:`placeit.runtime.feed.Feed`. The requests of a batch begin again, each alone."""
        if isinstance(item, Joined):
            if not begun:
                self._server.separate(self, item.requests, error)
                return
            self._server.stepped(self, item, error)
            for request in item.requests:
                self._server.failed(self, request, error)
        elif isinstance(item, Batch):
            self._server.again(self, only=item.requests)
        elif isinstance(item, Pending):
            self._server.failed(self, item, error, begun=begun)
