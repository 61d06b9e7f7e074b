"""Give the requests of a server to its replicas, and put them back into the queue if they have to begin again."""

from __future__ import annotations

import itertools
import math
from collections import abc
from time import perf_counter

from placeit.core.errors import PlaceitError, SequenceError
from placeit.core.threads import CHECK_S
from placeit.runtime.calls import failure_of
from placeit.serving.answers import Answer, Pending, fail, too_late
from placeit.serving.queueing import Queueing
from placeit.serving.replica import Replica
from placeit.serving.stepping import Joined

__all__ = ["Admitting"]

_LOOKED_AT = 4  # times the most rows of a batch: requests that are looked at for a batch


class Admitting(Queueing):
    """The part of a server that gives requests to replicas."""

    def wait_for_work(self, replica: Replica) -> bool:
        """Wait until a request may wait for a replica; return False if no more will come."""
        while True:
            if (gone := replica.executor.gone) is not None:
                raise gone
            patience = self.patience()
            with self._lock:
                turn = self._waiting.first() is not None and self._next() is replica
                turn |= bool(self.sequences.next(replica))
                over = self._closed and not self.waiting and not any(other.load for other in self._replicas)
                turn |= self.stays(replica)
            if turn or over or replica.retired:
                return turn
            replica.bell.wait(patience)

    def take(self, replica: Replica, *, room: bool) -> list[Pending]:
        """Return the next request for a replica, or several that run as one; empty if none may run now.

        Args:
            replica: the replica.
            room: whether requests without a sequence are allowed.
        """
        while requests := self._take(replica, room=room):
            ready = [request for request in requests if self._is_ready(request, replica)]
            if len(ready) < len(requests):
                with self._lock:
                    self._let_go(replica, requests)
                    self._hold(replica, ready)
            if ready:
                ready[0].riding = False
                return ready
        return []

    def _is_ready(self, request: Pending, replica: Replica) -> bool:
        """Make a request that a replica has taken ready to run. If it cannot run, end it or put it back, and return False."""
        try:
            if request.line is not None and not self.sequences.make_ready(request.line, request, replica):
                self.again(replica, only=[request])
                return False
        except SequenceError as error:
            self.failed(replica, request, error, begun=False)
        except Exception as error:  # noqa: BLE001 (it concerns this sequence alone, unless the executor is lost)
            replica.executor.check()
            self.failed(replica, request, failure_of("This request cannot begin", error), begun=False)
        else:
            request.started = True
        return request.started

    def _hold(self, replica: Replica, requests: abc.Sequence[Pending]) -> None:
        """Keep the states of sequences for the joined step of some requests; with the lock."""
        if replica.stepping is not None:
            replica.stepping.begin(requests)

    def _let_go(self, replica: Replica, requests: abc.Sequence[Pending], why: PlaceitError | None = None) -> None:
        """Release the states that were kept for unfinished requests; with the lock."""
        if replica.stepping is not None:
            replica.stepping.put_back(requests, why)

    def _take(self, replica: Replica, *, room: bool) -> list[Pending]:
        taken = list[Pending]()
        with self._lock:
            self._waiting.expire(perf_counter())
            while not taken:
                requests = self.sequences.next(replica)
                if not requests and room and self._is_turn_of(replica):
                    requests = self._together(replica)
                if not requests:
                    break
                for request in requests:
                    try:
                        self._waiting.remove(request)
                        if request.future.begin():
                            request.riding = bool(taken)
                            self._hand_over(request, replica)
                            taken.append(request)
                    except BaseException:
                        if not request.replay:
                            self._waiting.add_first(request)
                        raise
            self._hold(replica, taken)
            self.queued.make_room()
            self._wake_replicas()
        self._end_late()
        return taken

    def _together(self, replica: Replica) -> list[Pending]:
        """Return the next batch of a replica, of requests without a sequence; empty if it waits for more; with the lock.

        A batch with room waits while each device of the replica has a run, or for the delay of the server. Idle replicas share
        the requests. The time does not depend on the number of waiting requests.
        """
        first, most = self._waiting.first(), replica.batches.most
        if first is None or first.like is None or first.rows >= most:
            return [] if first is None else [first]
        idle = sum(one.room and not one.runs for one in self._replicas)
        share = math.ceil(len(self._waiting) / max(1, idle))
        found, rows, full = [first], first.rows, False
        for other in itertools.islice(self._waiting.ordinary(), 1, min(share, _LOOKED_AT * most)):
            if other.like == first.like:
                full |= rows + other.rows > most
                if rows + other.rows <= most:
                    found.append(other)
                    rows += other.rows
        waits = replica.busy or (not self._closed and self._until(first) > perf_counter())
        return [] if waits and rows < most and not full else found

    def _until(self, first: Pending) -> float:
        """Return the time until which the first request waits for others while a device is free; with the lock."""
        until = first.future.arrived + (0.0 if self._joining is None or first.like is None else self._joining.delay_s)
        return until if until < self._waiting.soonest else -math.inf

    def _hand_over(self, request: Pending, replica: Replica) -> None:
        """Record that a replica runs a request; with the lock."""
        request.alone = not any(other.load for other in self._replicas)
        request.number = self.queued.enter()
        request.explored = replica.exploring
        replica.flying.append(request)
        if request.line is not None:
            request.line.flying[request] = None
        self._since = 0 if replica.exploring else self._since + 1

    def patience(self) -> float:
        """End requests that were cancelled or are past their deadline, and return the seconds until the next call is due.

        They are limited to half a second, so that the caller regularly checks its executor.
        """
        with self._lock:
            now = perf_counter()
            self._waiting.expire(now)
            self.sequences.tidy()
            if self._waiting.over:
                self.queued.make_room()
            soonest = min(self._waiting.soonest, self.queued.expire())
            first = self._waiting.first()
            if first is not None and (until := self._until(first)) > now:
                soonest = min(soonest, until)
        self._end_late()
        self._resolve_all(due=True, callbacks=True)
        return max(0.0, min(CHECK_S, soonest - now))

    def again(self, replica: Replica, why: PlaceitError | None = None, *, only: abc.Sequence[Pending] | None = None) -> None:
        """Put the requests that a replica has taken, and that have not ended, back at the front of the queue.

        Requests of sequences that had begun fail, unless the state can be recomputed, as they cannot run twice on one state.

        Args:
            replica: the replica that had them.
            why: the error by which the replica was lost; None if it goes on.
            only: the requests of a batch or a joined step, which are not joined again; None for all requests.
        """
        if replica.slots is not None and only is None:
            self.queued.again(replica.slots.number)
        with self._lock:
            flying = [request for request in replica.flying if only is None or request in only]
            left = [request for request in flying if not request.future.done()]
            self._let_go(replica, flying, why)
            for request in flying:
                request.riding, request.like = False, request.like if only is None else None
                if request.line is not None and request in request.line.flying:
                    request.failure = self.sequences.interrupted(request.line, request, why)
            broken = [request for request in left if request.failure is not None and not (self._over or request.replay)]
            again = [request for request in left if request.failure is None and not (self._over or request.replay)]
            try:
                for request in reversed(again):
                    self._waiting.add_first(request)
                for request in broken:
                    self._waiting.over[request] = None
                given_up, failed = 0 if self._over else len(flying) - len(left), len(broken)
                for _ in flying:
                    self.queued.exit()
                replica.flying = [request for request in replica.flying if request not in flying]
                self._history.outcomes["cancelled"] += given_up
                self._history.outcomes["failed"] += failed
            except BaseException:
                for request in again:
                    self._waiting.remove(request)
                raise
            self._wake_replicas()
        if self._over:
            fail(left, too_late())
        self._end_late()

    def separate(self, replica: Replica, requests: abc.Sequence[Pending], why: BaseException) -> None:
        """Put back steps that could not be joined and have not begun; each then runs alone."""
        for request in requests:
            request.started, request.single = False, True
        self.again(replica, failure_of("States could not be joined", why), only=requests)

    def stepped(self, replica: Replica, step: Joined, failure: PlaceitError | None = None) -> None:
        """Record the end of a joined step, with the ``failure`` if it has failed after it had begun."""
        with self._lock:
            if replica.stepping is not None:
                replica.stepping.ended(step, failure)

    def without(self, replica: Replica) -> bool:
        """Give no more requests to a replica, if other replicas can run them; return whether they can."""
        with self._lock:
            others = any(other.able for other in self._replicas if other is not replica)
            replica.lost |= others
        return others

    def failed(self, replica: Replica, item: Pending, error: PlaceitError, *, begun: bool = True) -> None:
        """End a request that has failed, unless it has ended, or begins again on another replica.

        Raises:
            PlaceitError: a device of the replica is lost, and all its requests have to begin again.
        """
        if item.explored and self.without(replica):
            return  # another replica runs it, which shows whether the request is at fault
        if begun:
            self.suspect(replica, error)
        replica.failures = 0

        def tell(future: Answer) -> None:
            if not item.over:
                self.release(replica, item, failure=error if begun or item.replay else None)
            elif item.line is not None:  # its outputs were there, and could not be handed over
                item.line.failed(error, for_good=True)
            future.set_exception(error)

        item.future.end(tell)
        item.uncounted(error)
        if item.submission is not None:
            self.drop(item)
