"""Record the last requests of a server, and what has happened to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter

from placeit.runtime.feed import Ran
from placeit.runtime.spans import Event, Span

__all__ = ["History"]

_KEPT = 1000  # requests, and as many events


class History:
    """The last thousand requests of a server, and the last thousand events; written by any thread."""

    def __init__(self) -> None:
        self._requests: deque[tuple[int, Sequence[str], Sequence[Ran]]] = deque(maxlen=_KEPT)
        self._events: deque[Event] = deque(maxlen=_KEPT)

    def ended(self, request: int, names: Sequence[str], ran: Sequence[Ran]) -> None:
        """A request has ended: its number, the device of each segment, and what ran."""
        self._requests.append((request, names, ran))

    def happened(self, what: str, why: str, *, seconds: float = 0.0, until: float | None = None) -> None:
        """Something has happened now, or at another moment of ``perf_counter``; it has taken so many seconds until then."""
        finish = perf_counter() if until is None else until
        self._events.append(Event(what, finish - seconds, finish, why))

    def trace(self) -> list[Span | Event]:
        """A span for each segment that a request ran, and the events, for :func:`placeit.profiler.trace.write_chrome_trace`.

        Transfers are not in it.
        """
        spans = [
            Span("compute", (names[s],), request, s, start, finish, f"segment {s}")
            for request, names, ran in self._requests.copy()
            for s, start, finish in ran
        ]
        return [*spans, *self._events.copy()]
