"""What a server has done so far, as numbers: what its live view and its page of metrics show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.runtime.device_stats import DeviceStats
from placeit.runtime.spans import Event

__all__ = ["OUTCOMES", "ServerStats"]

OUTCOMES = ("succeeded", "failed", "expired", "cancelled", "refused")
"""What becomes of requests, of which each counts once."""


@dataclass(frozen=True, eq=False)
class ServerStats:
    """What a server has done since it was made.

    Attributes:
        at: when this was so, in seconds of ``time.perf_counter``.
        outcomes: how many requests have ended, by :data:`OUTCOMES`: with outputs, with an error, too late to begin, given up by
            their owner while they waited, and refused, as the queue was full or nothing could run.
        waiting: requests in the queue.
        queue: how many may wait.
        in_flight: requests that have begun and not ended.
        latency_s: seconds from arrival to end, as the sum over all requests that succeeded.
        latencies: ``float64[N]``, these seconds of the last thousand requests, as far as they succeeded.
        replacements: how often other executors took the place of those that were lost, or were not the best any more.
        devices: those that requests may run on.
        events: the last ones (:class:`placeit.serving.history.History`).
        sequences: how many are open.
        state_bytes: size of their states.
    """

    at: float
    outcomes: Mapping[str, int]
    waiting: int
    queue: int
    in_flight: int
    latency_s: float
    latencies: NDArray[np.float64]
    replacements: int
    devices: tuple[DeviceStats, ...]
    events: tuple[Event, ...] = ()
    sequences: int = 0
    state_bytes: int = 0

    @property
    def arrived(self) -> int:
        """How many requests have arrived."""
        return sum(self.outcomes.values()) + self.waiting + self.in_flight

    def percentiles(self, *shares: float) -> list[float]:
        """Return percentiles of :attr:`latencies`, in seconds, by shares from 0 to 1; NaN if there are none."""
        found = self.latencies if len(self.latencies) else [np.nan]
        return [float(value) for value in np.quantile(found, shares)]
