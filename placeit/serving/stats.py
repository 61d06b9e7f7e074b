"""Numbers of a server so far, for its live view and its page of metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.runtime.device_stats import DeviceStats
from placeit.runtime.spans import Event

__all__ = ["OUTCOMES", "ServerStats"]

OUTCOMES = ("succeeded", "failed", "expired", "cancelled", "refused")
"""Outcomes of requests; each request counts once."""


@dataclass(frozen=True, eq=False)
class ServerStats:
    """Numbers of a server since it was made.

    Attributes:
        at: time of these numbers, in seconds of ``time.perf_counter``.
        outcomes: number of requests that have ended, by :data:`OUTCOMES`: with outputs; with an error; past their deadline
            before they began; cancelled while they waited; refused, as the queue was full or nothing could run.
        waiting: number of requests in the queue.
        queue: number of requests that may wait.
        in_flight: number of requests that have begun and not ended.
        latency_s: seconds from arrival to end, summed over all requests that succeeded.
        latencies: ``float64[N]``, seconds from arrival to end of each request among the last thousand that succeeded.
        replacements: number of executors that another one replaced because they were lost or no longer the best.
        devices: devices that requests may run on.
        events: the last events (:class:`placeit.serving.history.History`).
        sequences: number of open sequences.
        state_bytes: bytes of their states.
        batches: number of runs of one request or several joined ones, by the number of their rows; empty if the server joins no
            requests.
        steps: number of runs of single tokens of texts, by the number of texts whose tokens are joined in the run; empty if the
            server joins no steps.
        runs: number of runs that have ended well, each of one request or of several joined ones.
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
    batches: Mapping[int, int] = field(default_factory=dict)
    steps: Mapping[int, int] = field(default_factory=dict)
    runs: int = 0

    @property
    def arrived(self) -> int:
        """Number of requests that have arrived."""
        return sum(self.outcomes.values()) + self.waiting + self.in_flight

    def percentiles(self, *shares: float) -> list[float]:
        """Return percentiles of :attr:`latencies`, in seconds, by shares from 0 to 1; NaN if there are none."""
        found = self.latencies if len(self.latencies) else [np.nan]
        return [float(value) for value in np.quantile(found, shares)]

    def after(self, before: ServerStats) -> ServerStats:
        """Return these numbers plus the counts of an earlier server of the model; other fields stay as they are."""
        old = {device.name: device for device in before.devices}
        sums: dict[str, Any] = {}
        for name in ("waiting", "in_flight", "latency_s", "replacements", "sequences", "state_bytes", "runs"):
            sums[name] = getattr(before, name) + getattr(self, name)
        for name in ("outcomes", "batches", "steps"):
            counts = Counter(getattr(before, name))
            counts.update(getattr(self, name))  # a sum of counters has no zeros
            sums[name] = counts
        return replace(self, **sums, devices=tuple(device.after(old.get(device.name)) for device in self.devices))
