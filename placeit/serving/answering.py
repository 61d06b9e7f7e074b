"""The answers of a server: requests that have ended are counted, recorded and reported to attendants."""

from __future__ import annotations

import functools
import logging
import math
from collections import abc
from concurrent.futures import InvalidStateError

from placeit import _core
from placeit.core.errors import PlaceitError
from placeit.core.narrowing import narrowed
from placeit.runtime.feed import Slots
from placeit.runtime.spans import Done, Moved, Ran
from placeit.serving.answers import Answer, Outputs, Pending, late
from placeit.serving.attendant import Attendant, Request
from placeit.serving.batching import Batches, Probe
from placeit.serving.history import History
from placeit.serving.replica import Replacement, Replica
from placeit.serving.turns import Turns

__all__ = ["Answering"]

_LOG = logging.getLogger("placeit")


class Answering(Turns):
    """The part of a server that ends requests."""

    def __init__(self, state_memory: float | None) -> None:
        super().__init__(state_memory)
        self._submitted: dict[_core.Submission, Pending] = {}  # requests of the compiled queue, until they are resolved
        self._numbered: dict[int, Replica] = {}  # by number in the compiled queue
        self._attendants: list[Attendant] = []
        self.replacements: list[Replacement] = []
        self.repeated = 0

    @property
    def history(self) -> History:
        """The last requests and events, for a trace. ``stats`` has the totals."""
        self._resolve_all()
        return self._history

    # -- requests of the compiled queue ------------------------------------------------------------------------------------

    def _wait_for(self, request: Pending, until: float) -> None:
        """Wait for a request of the compiled queue until a time of ``perf_counter``, and resolve it if it is over."""
        submission = request.submission
        if submission is not None and self.queued.wait(submission, until):
            self.resolve(request)

    def resolve(self, request: Pending) -> None:
        """Count a request of the compiled queue that is over, and resolve its future. Any thread may do so, more than once.

        If a signal handler interrupts this, the thread of a replica repeats it.
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
                ran, moved = narrowed(Slots, replica.slots).decode(submission.slot, submission.ran())
                with self._lock:
                    if not request.over:
                        self._record(request, replica, ran, moved, submission.ended)
                self.answered(replica, submission.ended)
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
            if not self.is_here:
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

    def queued_at(self, slots: Slots, slot: int) -> Pending | None:
        """Return the request of the compiled queue in a slot of a replica; None without one."""
        submission = self.queued.in_slot(slots.number, slot)
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

    # -- all requests --------------------------------------------------------------------------------------------------------

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
            self.sequences.measure(request.line, request.inputs)
        with self._lock:
            if request.over:
                self.repeated += 1
                return False
            self._land(replica, request)
            request.alone &= self.queued.begun == request.number
            if request.line is not None:
                self.sequences.released(request.line, request, failure, well=math.isfinite(ended))
                self._wake_replicas()
            self.sequences.tidy()
            if self._closed and not self._waiting:
                self._ring()
            self._record(request, replica, ran, moved, ended)
        return True

    def uncounted(self, replica: Replica, request: Pending, error: BaseException) -> None:
        """Release an ended request that :meth:`release` failed to record."""
        with self._lock:
            request.over = True
            self._land(replica, request)
        request.uncounted(error)

    def _land(self, replica: Replica, request: Pending) -> None:
        """Remove a request from those in flight on a replica, if it is there; with the lock."""
        if request in replica.flying:
            replica.flying.remove(request)
            self.queued.exit()

    def _record(
        self, request: Pending, replica: Replica, ran: abc.Sequence[Ran], moved: abc.Sequence[Moved], ended: float
    ) -> None:
        """Record a request that is over; with the lock."""
        request.over = True
        if self._over or request.replay:  # a request that ends after the server has closed was counted as failed
            return
        self._history.runs += math.isfinite(ended) and not request.riding
        future, of = request.future, 0 if request.line is None else request.line.number
        times = future.arrived, future.begun, ended
        self._history.ended(Done(request.number, replica.executor.labels, *times, ran, moved, sequence=of))

    def ran(self, replica: Replica, rows: int, *, steps: bool) -> None:
        """Count a run by its rows, if the replica joins requests or steps."""
        with self._lock:
            if steps:
                self._history.steps[rows] += 1
            elif replica.batches.most:
                self._history.batches[rows] += 1

    def check_probe(self, probe: Probe, outputs: Outputs) -> None:
        """Compare a batch with the single run of one of its requests; stop joining if they differ."""
        why = None if self._joining is None else probe.wrong(outputs, self._joining.tolerance)
        if why is not None:
            self.stop_joining(why)

    def stop_joining(self, why: str) -> None:
        """Join no more requests, and log the reason once."""
        with self._lock:
            joins = any(replica.batches.most for replica in self._replicas)
            for replica in self._replicas:
                replica.batches = Batches(why=why)
            self._joining = None
        if joins:
            self.happened("joining ended", why)
            _LOG.warning("Requests are not joined any more: %s.", why)

    def tell(self, request: Pending, ran: abc.Sequence[Ran], replica: Replica) -> None:
        """Report a successful request to the attendants."""
        future = request.future
        for attendant in self._attendants:
            attendant.ended(Request(replica.executor.plan, future.begun, future.ended, ran, request.alone, request.explored))

    def suspect(self, replica: Replica, error: PlaceitError) -> None:
        """Let attendants check for a lost device after a failure. Raises PlaceitError if one is lost."""
        for attendant in self._attendants:
            attendant.suspect(replica.executor, error)
        if (gone := replica.executor.gone) is not None:
            raise gone

    def answered(self, replica: Replica, ended: float) -> None:
        """Record a successful request, and log the time to the first answer of a replacement."""
        replica.failures = 0
        replacement, replica.replacement = replica.replacement, None
        if replacement is not None:
            replacement.answered_s = ended - replica.ready
            self.replacements.append(replacement)
            self.happened("first answer", str(replacement), seconds=ended - replica.ready, until=ended)
            _LOG.log(logging.INFO if replacement.asked else logging.WARNING, "%s", replacement)
