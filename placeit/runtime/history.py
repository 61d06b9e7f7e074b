"""Record the last requests of a server, and what has happened to it."""

from __future__ import annotations

from collections import deque
from time import perf_counter

from placeit.runtime.spans import Done, Event, Span

__all__ = ["History"]

_KEPT = 1000  # requests, and as many events


class History:
    """The last thousand requests of a server, and the last thousand events; written by any thread."""

    def __init__(self) -> None:
        self._requests: deque[Done] = deque(maxlen=_KEPT)
        self._events: deque[Event] = deque(maxlen=_KEPT)

    def ended(self, done: Done) -> None:
        """Record a request that has ended."""
        self._requests.append(done)

    def happened(self, what: str, why: str, *, seconds: float = 0.0, until: float | None = None) -> None:
        """Something has happened now, or at another moment of ``perf_counter``; it has taken so many seconds until then."""
        finish = perf_counter() if until is None else until
        self._events.append(Event(what, finish - seconds, finish, why))

    def requests(self) -> list[Done]:
        """The requests, in the order in which they ended."""
        return list(self._requests.copy())

    def trace(self) -> list[Span | Event]:
        """Segments and transfers of requests, and the events, for :func:`placeit.profiler.trace.write_chrome_trace`."""
        return [*(span for done in self._requests.copy() for span in done.spans()), *self._events.copy()]
