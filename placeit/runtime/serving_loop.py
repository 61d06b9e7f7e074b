"""The serving loop: one thread admits the requests of a feed to an executor while others are in flight."""

from __future__ import annotations

import math
from typing import Any

from placeit.core.errors import ExecutionError, NoRoomError, UsageError, forget_frames
from placeit.core.threads import CHECK_S
from placeit.runtime.active_run import ActiveRun
from placeit.runtime.calls import failure_of
from placeit.runtime.feed import Feed, Slots
from placeit.runtime.run_ends import RunEnds

__all__ = ["ServingLoop"]


class Serving:
    """The state of a call of ``serve``.

    Args:
        run: the run of its requests.
        in_flight: maximum number of requests in flight outside sequences.
        slots: slots of a compiled queue to take numbers from, if other threads take some, too; else None.

    Attributes:
        item: the request that the thread is working for; None if it works for no request, or for several.
        requests: the requests in flight, by number; requests of sequences have higher numbers than all others.
    """

    def __init__(self, run: ActiveRun, in_flight: int, slots: Slots | None) -> None:
        self.run, self._in_flight, self._slots = run, in_flight, slots
        self._free = [*range(in_flight)][::-1]
        self.item: Any = None
        self.requests: dict[int, Any] = {}

    def reserve(self) -> int | None:
        """Take a number for another request; None if the maximum number of requests is in flight."""
        if self._slots is not None:
            return self._slots.reserve()
        return self._free.pop() if self._free else None

    def give_back(self, number: int) -> None:
        """Free a number, unless it belongs to a sequence."""
        if number < self._in_flight:
            self._free.append(number) if self._slots is None else self._slots.release(number)

    def remove(self, number: int) -> None:
        """Remove a request that has ended, and free its number."""
        del self.requests[number]
        self.give_back(number)


class ServingLoop(RunEnds):
    """The part of an executor that serves a feed."""

    def serve(self, feed: Feed) -> None:
        """Run the requests of a feed, each as soon as a slot is free, until the feed has no more.

        A request that fails is reported to the feed. Where possible, other requests go on. Otherwise the failure ends the run,
        and the other requests in flight have to begin again; if this raises, all requests in flight have to. The executor can
        be used again, unless :meth:`check` raises. The next call waits for segments that still run.

        Raises:
            ExecutionError: something has been closed, a thread has died, or it is unknown which request has failed.
            DeviceError: a device is lost.
            Exception: an error that was not raised on behalf of a single request.
        """
        with self._turn:
            self._check_not_broken()
            self._drain()
            serving = Serving(self._prepare(feed.bell), self.in_flight, feed.slots)
            run = serving.run
            item, number = _next(feed, serving)
            if item is None and not feed.stays():
                return
            try:
                self._serve(feed, serving, item, number)
            except BaseException as error:
                run.stop()
                self._admit_no_more(run)
                if serving.item is None or self.gone is not None or not isinstance(error, Exception):
                    raise
                forget_frames(error)  # its frames refer to the request, which refers to the error from now on
                feed.failed(serving.item, failure_of("This request could not be served", error.with_traceback(None)))
                return
            if run.error is None:
                if run.stopped:
                    raise ExecutionError("This executor was closed in the middle of a run: make a new one.")
            elif (gone := self.gone) is not None:
                raise gone
            elif run.failed in serving.requests:
                feed.failed(serving.requests[run.failed], run.error)
            else:
                raise run.error

    def _serve(self, feed: Feed, serving: Serving, item: Any, number: int) -> None:
        """Run requests until none is left, or the run is stopped, and nothing of it runs any more."""
        run = serving.run
        self._run = run
        if feed.slots is None:
            self._start(run)
        else:
            feed.slots.open()
        while not run.stopped:
            while item is not None and not run.stopped:
                serving.item = item
                try:
                    inputs = self.checked(item.inputs)  # again: their owner may have changed them
                    out = self.on_device() if item.on == "device" else {}
                except (UsageError, NoRoomError) as error:
                    serving.give_back(number)
                    feed.failed(item, failure_of("This request could not be served", error), begun=False)
                else:
                    serving.requests[number] = item
                    self._admit(run, number, inputs, out)
                serving.item = None
                item, number = _next(feed, serving)
            if not (serving.requests or feed.stays()) and (feed.slots is None or feed.slots.retire()):
                break
            self._pass_time(run)
            if not run.stopped:
                feed.bell.wait(min(CHECK_S, feed.patience()))
            self._hand_over(feed, serving)
            self._check_lanes()
            if (gone := self.gone) is not None and (self._gone is not None or not serving.requests):
                raise gone
            if not run.stopped:
                item, number = _next(feed, serving)
        self._admit_no_more(run)
        self._wait(run, math.inf)
        self._hand_over(feed, serving)

    def _hand_over(self, feed: Feed, serving: Serving) -> None:
        """Report requests that have ended to the feed."""
        for number in self._ended(serving.run):
            is_own = number in serving.requests  # not begun by another thread, through a compiled queue
            item = serving.requests[number] if is_own else feed.at(number)
            if item is None:
                continue
            if number in serving.run.failures and (gone := self.gone) is not None:
                raise gone
            serving.item = item
            if number in serving.run.failures:
                feed.failed(item, serving.run.failures.pop(number))
            elif is_own:
                feed.ended(item, *self._outcome(serving.run, number))
            if is_own:
                serving.remove(number)
            serving.item = None


def _next(feed: Feed, serving: Serving) -> tuple[Any, int]:
    """Take the next request of a feed, and a number for it; (None, any number) if the feed has no request."""
    number = serving.reserve()
    item = None
    try:
        item = feed.take(room=number is not None)
    finally:
        if number is not None and (item is None or item.slot is not None):
            serving.give_back(number)
    if item is not None and item.slot is not None:
        return item, item.slot
    return item, -1 if number is None else number
