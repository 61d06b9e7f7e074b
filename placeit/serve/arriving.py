"""Room for requests that are arriving, in which slow clients give way to others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from placeit.serve.refusal import RefusedError, Status

__all__ = ["Arrival", "Room"]

_FAIR_S: Final = 1.0  # seconds of arriving after which a request gives way to others


class Arrival:
    """A request that is arriving.

    Attributes:
        since: time of the event loop when it began to arrive.
        size: room that it takes.
        limit: ends its arrival.
    """

    def __init__(self, since: float, limit: asyncio.Timeout) -> None:
        self.since, self.limit, self.size = since, limit, 0


class Room:
    """Room that is shared by requests: bytes that are kept, or calls. Used on the thread of the event loop.

    Where there is no room, requests that have been arriving for more than a second are refused, the oldest one first, so that
    clients that send little or nothing for a long time do not keep others out.

    Args:
        size: of the room, in the unit of :meth:`take`.
        what: is too many if there is no room, for messages: "requests are being read".
    """

    def __init__(self, size: int, what: str) -> None:
        self._left, self._what = size, what
        self._arriving: dict[Arrival, None] = {}  # the oldest first

    @contextlib.asynccontextmanager
    async def arrival(self, patience_s: float | None = None) -> AsyncIterator[Arrival]:
        """Read a request in the context, in at most ``patience_s`` seconds; its room is free again when the context ends.

        Raises:
            RefusedError: it has not arrived in time, or had to give way.
        """
        now = asyncio.get_running_loop().time()
        arrival = None
        try:
            async with asyncio.timeout(patience_s) as limit:
                arrival = Arrival(now, limit)
                self._arriving[arrival] = None
                yield arrival
        except TimeoutError:
            if arrival is None or not arrival.limit.expired():
                raise
            if arrival in self._arriving:
                raise RefusedError(Status.SLOW, "This request has not arrived in time.") from None
            raise self._full() from None
        finally:
            if arrival is not None:
                self._arriving.pop(arrival, None)
                self._left += arrival.size

    def arrived(self, arrival: Arrival) -> None:
        """Record that a request has arrived: it keeps its room, and does not give way."""
        self._arriving.pop(arrival, None)
        _reschedule(arrival, None)

    def take(self, arrival: Arrival, size: int) -> None:
        """Let a request take more room. Raises RefusedError if there is too little, and no slow request gives way."""
        arrival.size += size
        self._left -= size
        if self._left < 0:
            self._make_room(arrival)

    def _make_room(self, arrival: Arrival) -> None:
        """Refuse slow requests, but not this one, until there is room. Raises RefusedError if there is still too little."""
        now = asyncio.get_running_loop().time()
        for other in [*self._arriving]:
            if self._left >= 0 or now - other.since < _FAIR_S:
                break
            if other is not arrival and other.size:
                del self._arriving[other]
                _reschedule(other, now)
                self._left += other.size
                other.size = 0
        if self._left < 0:
            raise self._full()

    def _full(self) -> RefusedError:
        return RefusedError(Status.FULL, f"Too many {self._what} at once: send fewer, or try again later.")


def _reschedule(arrival: Arrival, when: float | None) -> None:
    """Change the time limit of a request, unless it has passed; then the request ends when its task runs next."""
    if not arrival.limit.expired():
        arrival.limit.reschedule(when)
