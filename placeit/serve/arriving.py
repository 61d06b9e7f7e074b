"""Room for requests that are arriving, in which slow clients give way to others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from placeit.serve.refusal import RefusedError, Status

__all__ = ["SMALL_BYTES", "Arrival", "Room"]

SMALL_BYTES: Final = 1 << 15
"""Most bytes of a request that takes no room from larger ones, nor they from it."""

_FAIR_S: Final = 1.0  # seconds of arriving after which a request gives way to others
_LOOK_S: Final = 0.25  # seconds between two looks for a request that gives way
_WAITING: Final = 16  # most requests that wait for room: of each, up to 0.3 MB have been read


class Arrival:
    """A request that is arriving, or whose answer is being sent.

    Attributes:
        since: time of the event loop when it began to.
        size: room that it takes.
        limit: ends its arrival; None if it has arrived.
        drop: has it give way.
    """

    def __init__(self, since: float) -> None:
        self.since, self.size = since, 0
        self.limit: asyncio.Timeout | None = None
        self.drop: Callable[[], object] = lambda: _reschedule(self, since)


class Room:
    """Room that is shared by requests: bytes that are kept, or calls. Used on the thread of the event loop.

    If there is no room, requests that have been arriving for more than a second are refused, oldest first, so that slow clients
    do not keep others out. The same holds for answers that are being sent.

    Args:
        size: of the room, in the unit of :meth:`take`.
        what: subject of the message if there is no room, such as "requests are being read".
    """

    def __init__(self, size: int, what: str) -> None:
        self.size = self._left = size
        self._what = what
        self._arriving: dict[Arrival, None] = {}  # the oldest first
        self._turn, self._freed, self._waiting = asyncio.Lock(), asyncio.Event(), 0

    @contextlib.asynccontextmanager
    async def arrival(self, timeout_s: float | None = None) -> AsyncIterator[Arrival]:
        """Read a request in the context, in at most ``timeout_s`` seconds, then free its room. Raises RefusedError."""
        arrival = self.begin()
        try:
            async with self.arriving(arrival, timeout_s):
                yield arrival
        finally:
            self.end(arrival)

    def begin(self) -> Arrival:
        """Return the record of a request that takes no room yet."""
        return Arrival(asyncio.get_running_loop().time())

    def end(self, arrival: Arrival) -> None:
        """Free the room of a request."""
        self._arriving.pop(arrival, None)
        self.take_back(arrival, arrival.size)

    @contextlib.asynccontextmanager
    async def arriving(self, arrival: Arrival, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Read a request in the context. Raises RefusedError if it takes over ``timeout_s`` seconds, or has to give way."""
        try:
            async with asyncio.timeout(timeout_s) as arrival.limit:
                self._arriving[arrival] = None
                yield
        except TimeoutError:
            if arrival.limit is None or not arrival.limit.expired():
                raise
            if arrival in self._arriving:
                raise RefusedError(Status.SLOW, "This request has not arrived in time.") from None
            raise self.full() from None

    def arrived(self, arrival: Arrival) -> None:
        """Record that a request has arrived: it keeps its room, and does not give way."""
        self._arriving.pop(arrival, None)
        _reschedule(arrival, None)

    def answered(self, arrival: Arrival, size: int, drop: Callable[[], object] | None = None) -> None:
        """Record that the answer of a request, which has arrived, is being sent.

        The answer may take more room than is free: later requests then wait until it has been sent.

        Args:
            arrival: of the request.
            size: bytes of its answer.
            drop: ends the sending if the answer has to give way; None if the limit of ``arrival`` does.
        """
        arrival.drop = drop or arrival.drop
        self._sized(arrival, size)

    def taken_at_once(self, size: int) -> Arrival | None:
        """Take room for a complete request; return None if there is too little, or if other requests wait for room."""
        if self._waiting or size > self._left:
            return None
        arrival = self.begin()
        self.take_back(arrival, -size)
        return arrival

    async def reserve(self, arrival: Arrival, size: int) -> None:
        """Wait until there is room for a whole request of a known size, and take it. Raises RefusedError if too many wait."""
        if self.is_full:
            raise self.full()
        self._waiting += 1
        try:
            async with self._turn:  # the first one that came waits first
                while not self._has_room(arrival, size):
                    self._freed.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._freed.wait(), _LOOK_S)
        finally:
            self._waiting -= 1
        del self._arriving[arrival]
        self._sized(arrival, size)

    def take(self, arrival: Arrival, size: int) -> None:
        """Take more room for a request. Raises RefusedError if there is too little, and no slow request gives way."""
        self.take_back(arrival, -size)
        if not self._has_room(arrival, 0):
            raise self.full()

    @contextlib.contextmanager
    def kept(self, size: int) -> Iterator[None]:
        """Have a request that has arrived take room in the context, unless it is small. Raises RefusedError."""
        size = size if size > SMALL_BYTES else 0
        self._left -= size
        try:
            if size and not self._has_room(None, 0):
                raise self.full()
            yield
        finally:
            self._left += size
            self._freed.set()

    def take_back(self, arrival: Arrival, size: int) -> None:
        """Free a part of the room of a request."""
        arrival.size -= size
        self._left += size
        self._freed.set()

    def _sized(self, arrival: Arrival, size: int) -> None:
        """Take room for a request that begins to arrive, or for an answer that begins to be sent."""
        arrival.since = asyncio.get_running_loop().time()
        self._arriving[arrival] = None
        self.take_back(arrival, -size)

    def _has_room(self, arrival: Arrival | None, size: int) -> bool:
        """Refuse slow requests other than ``arrival`` until there is room; return whether there is."""
        now = asyncio.get_running_loop().time()
        for other in [*self._arriving]:
            if self._left >= size or now - other.since < _FAIR_S:
                break
            if other is not arrival and other.size:
                del self._arriving[other]
                other.drop()
                self.take_back(other, other.size)
        return self._left >= size

    @property
    def is_full(self) -> bool:
        """True if no other request may wait for room."""
        return self._waiting >= _WAITING

    def full(self) -> RefusedError:
        """Return the refusal of a request that has no room."""
        return RefusedError(Status.FULL, f"Too many {self._what} at once: send fewer, or try again later.")


def _reschedule(arrival: Arrival, when: float | None) -> None:
    """Change the time limit of a request, unless it has passed; then the request ends when its task runs next."""
    if arrival.limit is not None and not arrival.limit.expired():
        arrival.limit.reschedule(when)
