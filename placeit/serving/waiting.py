"""The queue of a server: waiting requests, in order, until they begin, are cancelled or miss their deadline."""

from __future__ import annotations

import itertools
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import takewhile

from placeit.serving.answers import Pending
from placeit.serving.line import Line

__all__ = ["Waiting"]

_SPARE = 16  # outdated deadlines, below which their heap is not cleaned up


class Waiting:
    """The waiting requests of a server, in order, for each sequence and for all requests of no sequence.

    Adding or removing a request takes constant time, a deadline logarithmic time, and a priority time linear in the requests
    that it overtakes. The caller holds a lock, but futures may end on any thread without it.

    Args:
        given_up: called when the future of a waiting request has ended, on the thread that has ended it.
        outcomes: counts requests that leave without having run, as "cancelled" or "expired".

    Attributes:
        over: requests that left without having run, in order. The server ends their futures, and then removes them from here.
    """

    def __init__(self, given_up: Callable[[], object], outcomes: Counter[str]) -> None:
        self._given_up, self._outcomes = given_up, outcomes
        self._requests: dict[Line | None, OrderedDict[Pending, None]] = {}  # by sequence; None: of no sequence
        self._count = self._max_priority = 0
        self._deadlines: list[tuple[float, int, Pending]] = []  # a heap; some of the requests may have left
        self._numbers = itertools.count()
        self._ended: deque[Pending] = deque()  # requests whose futures ended while they waited
        self.over: dict[Pending, None] = {}

    def __len__(self) -> int:
        return self._count

    def first(self, line: Line | None = None) -> Pending | None:
        """Return the first request of a sequence, or of no sequence if ``line`` is None; None if no such request waits."""
        return next(iter(self._requests.get(line, ())), None)

    def ordinary(self) -> Iterator[Pending]:
        """Return the requests of no sequence, in order; for use before the next change."""
        return iter(self._requests.get(None, ()))

    @property
    def lines(self) -> list[Line]:
        """Sequences with waiting requests, first the one that was served least recently."""
        return [line for line in self._requests if line is not None]

    @property
    def soonest(self) -> float:
        """Time of the next deadline, at which :meth:`expire` is due."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def add(self, request: Pending) -> None:
        """Add a request behind all others, or before the requests without a sequence whose priority number is higher."""
        request.future.add_done_callback(lambda _: self._note(request))
        if request.deadline < math.inf:
            heappush(self._deadlines, (request.deadline, next(self._numbers), request))
        self._put(request)
        if request.line is None and request.priority < self._max_priority:
            self._advance(request)
        self._max_priority = max(self._max_priority, request.priority)

    def add_first(self, request: Pending) -> None:
        """Add a request that had begun at the front, and remove its deadline."""
        request.deadline = math.inf
        self._put(request)
        self._requests[request.line].move_to_end(request, last=False)

    def remove(self, request: Pending) -> None:
        """Remove a request, if it waits."""
        if request in self:
            self._take_out(request)
        self._tidy()

    def expire(self, now: float) -> None:
        """Move requests that were cancelled, or whose deadline is over, to :attr:`over`."""
        while self._ended:
            self._outcomes["cancelled"] += self._leave(self._ended[0])
            self._ended.popleft()
        while self._deadlines and (not self._waits(self._deadlines[0]) or self._deadlines[0][0] <= now):
            if self._waits(self._deadlines[0]):
                self._outcomes["expired"] += self._leave(self._deadlines[0][2])
            heappop(self._deadlines)
        self._tidy()

    def clear(self) -> list[Pending]:
        """Remove all requests, and return those that were not cancelled."""
        found = [request for line in [*self._requests] for request in self.clear_line(line)]
        self._deadlines.clear()
        self._ended.clear()
        return found

    def clear_line(self, line: Line | None) -> list[Pending]:
        """Remove the requests of a sequence, or of no sequence if ``line`` is None; return those that were not cancelled."""
        requests = self._requests.pop(line, OrderedDict())
        found = [request for request in requests if not request.future.done()]
        self._outcomes["cancelled"] += len(requests) - len(found)
        self._count -= len(requests)
        return found

    def __contains__(self, request: Pending) -> bool:
        return request in self._requests.get(request.line, ())

    def _advance(self, request: Pending) -> None:
        """Move a request without a sequence before those with a higher priority number."""
        others = self._requests[None]
        behind = [*takewhile(lambda one: one.priority > request.priority, itertools.islice(reversed(others), 1, None))]
        for one in reversed(behind):
            others.move_to_end(one)

    def _put(self, request: Pending) -> None:
        if request not in self:
            self._requests.setdefault(request.line, OrderedDict())[request] = None
            self._count += 1

    def _leave(self, request: Pending) -> bool:
        """Move a request to :attr:`over` if it waits; return whether it did."""
        waited = request in self
        if waited:
            self.over[request] = None
            self._take_out(request)
        return waited

    def _take_out(self, request: Pending) -> None:
        of_line = self._requests.pop(request.line)
        del of_line[request]
        self._count -= 1
        if of_line:
            self._requests[request.line] = of_line

    def _tidy(self) -> None:
        """Drop the deadlines of requests that have left, once they are most of the heap."""
        if len(self._deadlines) > 2 * self._count + _SPARE:
            self._deadlines = [entry for entry in self._deadlines if self._waits(entry)]
            heapify(self._deadlines)

    def _waits(self, entry: tuple[float, int, Pending]) -> bool:
        """Return whether the request of an entry still waits and still has a deadline."""
        return entry[2] in self and entry[2].deadline < math.inf

    def _note(self, request: Pending) -> None:
        if request in self:
            self._ended.append(request)
            self._given_up()
