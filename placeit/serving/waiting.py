"""The queue of a server: requests in order, also of each sequence, which leave when they begin, are given up, or are late."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from placeit.serving.answers import Pending
from placeit.serving.line import Line

__all__ = ["Waiting"]

_SPARE = 16  # deadlines of requests that have left, which are kept at least


class Waiting:
    """Requests that wait.

    Putting one in, or taking one out, costs the same however many wait; a deadline costs the logarithm of their number. The
    caller holds a lock. Futures may end on any thread, without it.

    Args:
        given_up: called when the future of a request that waits has ended, on the thread that has ended it.

    Attributes:
        over: requests that have left without having run, in order: somebody has to end their futures, and takes them out.
        cancelled: how many were given up.
        expired: of how many the deadline was over.
    """

    def __init__(self, given_up: Callable[[], object]) -> None:
        self._given_up = given_up
        self._requests: dict[Line | None, OrderedDict[Pending, None]] = {}  # by sequence, those of none under None
        self._count = 0
        self._deadlines: list[tuple[float, int, Pending]] = []  # a heap, also of requests that have left
        self._numbers = itertools.count()
        self._ended: deque[Pending] = deque()  # while they waited
        self.over: dict[Pending, None] = {}
        self.cancelled = self.expired = 0

    def __len__(self) -> int:
        return self._count

    def first(self, line: Line | None = None) -> Pending | None:
        """Return the first request of a sequence, or of none; None if no such request waits."""
        return next(iter(self._requests.get(line, ())), None)

    @property
    def lines(self) -> list[Line]:
        """Sequences of which requests wait."""
        return [line for line in self._requests if line is not None]

    @property
    def soonest(self) -> float:
        """Time at which :meth:`expire` has to be called next; no waiting request has an earlier deadline."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def add(self, request: Pending) -> None:
        """Put a request at the end."""
        request.future.add_done_callback(lambda _: self._note(request))
        if request.deadline < math.inf:
            heappush(self._deadlines, (request.deadline, next(self._numbers), request))
        self._put(request)

    def add_first(self, request: Pending) -> None:
        """Put a request that had begun at the front; it has no deadline any more."""
        request.deadline = math.inf
        self._put(request)
        self._requests[request.line].move_to_end(request, last=False)

    def remove(self, request: Pending) -> None:
        """Take a request out; nothing happens if it does not wait."""
        if request in self:
            self._take_out(request)
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
        found = [request for line in [*self._requests] for request in self.clear_line(line)]
        self._deadlines.clear()
        self._ended.clear()
        return found

    def clear_line(self, line: Line | None) -> list[Pending]:
        """Take out those of a sequence, or of none, and return those that were not given up."""
        requests = self._requests.pop(line, OrderedDict())
        found = [request for request in requests if not request.future.done()]
        self.cancelled += len(requests) - len(found)
        self._count -= len(requests)
        return found

    def __contains__(self, request: Pending) -> bool:
        return request in self._requests.get(request.line, ())

    def _put(self, request: Pending) -> None:
        if request not in self:
            self._requests.setdefault(request.line, OrderedDict())[request] = None
            self._count += 1

    def _leave(self, request: Pending) -> bool:
        """Have a request leave; return whether it waited."""
        waited = request in self
        if waited:
            self.over[request] = None
            self._take_out(request)
        return waited

    def _take_out(self, request: Pending) -> None:
        of_line = self._requests[request.line]
        del of_line[request]
        self._count -= 1
        if not of_line:
            del self._requests[request.line]

    def _tidy(self) -> None:
        """Forget the deadlines of requests that have left, once those are most of them."""
        if len(self._deadlines) > 2 * self._count + _SPARE:
            self._deadlines = [entry for entry in self._deadlines if self._waits(entry)]
            heapify(self._deadlines)

    def _waits(self, entry: tuple[float, int, Pending]) -> bool:
        """Return whether a request still waits for its deadline."""
        return entry[2] in self and entry[2].deadline < math.inf

    def _note(self, request: Pending) -> None:
        if request in self:
            self._ended.append(request)
            self._given_up()
