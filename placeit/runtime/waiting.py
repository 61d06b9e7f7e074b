"""The queue of a server: requests in order, which leave when they begin, are given up, or come too late."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from placeit.runtime.answers import Pending

__all__ = ["Waiting"]

_SPARE = 16  # deadlines of requests that have left, which are kept at least


class Waiting:
    """Requests that wait.

    Putting one in, or taking one out, costs the same however many wait; a deadline costs the logarithm of their number. The
    caller holds a lock. Futures may end on any thread, without it.

    Args:
        given_up: called when the future of a request that waits has ended, on the thread that has ended it.

    Attributes:
        over: requests that have left without having begun, in order: somebody has to end their futures, and takes them out.
        cancelled: how many were given up.
        expired: of how many the deadline was over.
    """

    def __init__(self, given_up: Callable[[], object]) -> None:
        self._given_up = given_up
        self._requests: OrderedDict[Pending, None] = OrderedDict()
        self._deadlines: list[tuple[float, int, Pending]] = []  # a heap, also of requests that have left
        self._numbers = itertools.count()
        self._ended: deque[Pending] = deque()  # while they waited
        self.over: dict[Pending, None] = {}
        self.cancelled = self.expired = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def first(self) -> Pending | None:
        """The request that has waited longest; None if none waits."""
        return next(iter(self._requests), None)

    @property
    def soonest(self) -> float:
        """Time at which :meth:`expire` has to be called next; no waiting request has an earlier deadline."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def add(self, request: Pending) -> None:
        """Put a request at the end."""
        request.future.add_done_callback(lambda _: self._note(request))
        if request.deadline < math.inf:
            heappush(self._deadlines, (request.deadline, next(self._numbers), request))
        self._requests[request] = None

    def add_first(self, request: Pending) -> None:
        """Put a request that had begun at the front; it has no deadline any more."""
        request.deadline = math.inf
        self._requests[request] = None
        self._requests.move_to_end(request, last=False)

    def remove(self, request: Pending) -> None:
        """Take a request out; nothing happens if it does not wait."""
        self._requests.pop(request, None)
        self._tidy()

    def expire(self, now: float) -> None:
        """Have requests leave that were given up, or whose deadline is over."""
        while self._ended:
            self.cancelled += self._leave(self._ended[0])
            self._ended.popleft()
        while self._deadlines and (not self._waits(self._deadlines[0]) or self._deadlines[0][0] <= now):
            if self._waits(self._deadlines[0]):
                self.expired += self._leave(self._deadlines[0][2])
            heappop(self._deadlines)
        self._tidy()

    def clear(self) -> list[Pending]:
        """Take all out, and return those that were not given up."""
        found = [request for request in self._requests if not request.future.done()]
        self.cancelled += len(self._requests) - len(found)
        self._requests.clear()
        self._deadlines.clear()
        self._ended.clear()
        return found

    def _leave(self, request: Pending) -> bool:
        """Have a request leave; return whether it waited."""
        waited = request in self._requests
        if waited:
            self.over[request] = None
            del self._requests[request]
        return waited

    def _tidy(self) -> None:
        """Forget the deadlines of requests that have left, once those are most of them."""
        if len(self._deadlines) > 2 * len(self._requests) + _SPARE:
            self._deadlines = [entry for entry in self._deadlines if self._waits(entry)]
            heapify(self._deadlines)

    def _waits(self, entry: tuple[float, int, Pending]) -> bool:
        """Return whether a request still waits for its deadline."""
        return entry[2] in self._requests and entry[2].deadline < math.inf

    def _note(self, request: Pending) -> None:
        if request in self._requests:
            self._ended.append(request)
            self._given_up()
