"""Record a server's last requests, the outcomes of all its requests, and its events."""

from __future__ import annotations

import math
from collections import Counter, deque
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from placeit.runtime.spans import Done, Event, Span
from placeit.serving.stats import OUTCOMES

__all__ = ["History"]

_KEPT = 1000  # requests, and as many events


class History:
    """The last thousand requests of a server, the last thousand events, and counts of all requests.

    Any thread may read it or record an event. A thread that counts requests holds the server's lock.

    Attributes:
        outcomes: how many requests have ended, by :data:`placeit.serving.stats.OUTCOMES`.
        latency_s: seconds from the arrival to the end, summed over all requests that succeeded.
        busy: seconds that segments ran, by device name.
        runs: number of runs that have ended well, each of one request or of several joined ones.
        batches: number of runs by number of rows, where requests are joined.
        steps: number of runs of steps of sequences by number of sequences, where steps are joined.
    """

    def __init__(self) -> None:
        self._requests: deque[Done] = deque(maxlen=_KEPT)
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self.outcomes = Counter(dict.fromkeys(OUTCOMES, 0))
        self.latency_s = 0.0
        self.busy: dict[str, float] = {}
        self.batches = Counter[int]()
        self.steps = Counter[int]()
        self.runs = 0

    def ended(self, done: Done) -> None:
        """Record a request that has run, and count it."""
        self._requests.append(done)
        if math.isfinite(done.ended):
            self.outcomes["succeeded"] += 1
            self.latency_s += done.ended - done.arrived
        else:
            self.outcomes["failed"] += 1
        devices, segments = done.labels.devices, done.labels.segments
        for s, start, finish in done.ran:
            name = devices[segments[s][0]]
            self.busy[name] = self.busy.get(name, 0.0) + finish - start

    def happened(self, what: str, why: str, *, seconds: float = 0.0, until: float | None = None) -> None:
        """Record an event.

        Args:
            what: its name.
            why: its reason.
            seconds: how long it took.
            until: when it ended, in seconds of ``time.perf_counter``; None for now.
        """
        finish = perf_counter() if until is None else until
        self._events.append(Event(what, finish - seconds, finish, why))

    def requests(self) -> list[Done]:
        """Return the last requests, in the order in which they ended."""
        return list(self._requests.copy())

    def events(self) -> tuple[Event, ...]:
        """Return the last events, in the order in which they were recorded."""
        return tuple(self._events.copy())

    def latencies(self) -> NDArray[np.float64]:
        """Return ``float64[N]``, seconds from arrival to end of each of the last requests that succeeded."""
        return np.array([done.ended - done.arrived for done in self._requests.copy() if math.isfinite(done.ended)])

    def trace(self) -> list[Span | Event]:
        """Return spans of the last requests and the events, for :func:`placeit.profiler.trace.write_chrome_trace`."""
        return [*(span for done in self._requests.copy() for span in done.spans()), *self._events.copy()]
