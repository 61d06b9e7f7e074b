"""Requests under load: when they arrive, how long they take, how many wait.

The figures are the same for simulated times (:attr:`placeit.simulator.simulate.Schedule.requests`) and for measured ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.core.errors import UsageError

__all__ = ["ARRIVALS", "PERCENTILES", "LoadReport", "arrival_times", "check_rate", "constant_arrivals", "poisson_arrivals"]

ARRIVALS = ("constant", "poisson")
"""Ways in which requests can arrive."""
PERCENTILES = (50, 95, 99)
"""Percentiles of latencies that reports, limits and corrections have."""


@dataclass(frozen=True, eq=False)
class LoadReport:
    """Summary of a load: latencies, rates and queue. Times in seconds; the first request need not arrive at 0.

    Attributes:
        requests: number of requests that ended.
        offered: requests per second that arrived: all but the first, divided by the time from the first arrival to the last;
            None for a single request, or if all arrived at once.
        achieved: requests per second that ended, from the first arrival to the last end; None if there is no time between.
        p50: median of the latencies, from the arrival of a request to its end, waiting included.
        p95: 95th percentile of the latencies.
        p99: 99th percentile of the latencies.
        worst: longest latency.
        mean_queue: number of waiting requests (arrived, not begun), averaged from the first arrival to the last end.
        max_queued: largest number of requests that were waiting at any time.
        queue_at: ``float64[N]``, times at which the number of waiting requests changed, ascending, from the first arrival.
        queue: ``int64[N]``, the number of waiting requests from then on.
    """

    requests: int
    offered: float | None
    achieved: float | None
    p50: float
    p95: float
    p99: float
    worst: float
    mean_queue: float
    max_queued: int
    queue_at: NDArray[np.float64]
    queue: NDArray[np.int64]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON."""
        return {
            "requests": self.requests,
            "offered": self.offered,
            "achieved": self.achieved,
            "latency_s": {"p50": self.p50, "p95": self.p95, "p99": self.p99, "worst": self.worst},
            "waiting": {"mean": self.mean_queue, "most": self.max_queued},
        }

    @classmethod
    def of(cls, arrived: ArrayLike, begun: ArrayLike, ended: ArrayLike) -> LoadReport:
        """Summarize requests that ended.

        Args:
            arrived: ``float[R]``, seconds by any clock, in any order.
            begun: ``float[R]``, when the execution of each began; not before its arrival.
            ended: ``float[R]``, when each was answered.

        Raises:
            UsageError: there is no request, arrays differ in length, or times are not finite or not in this order.
        """
        times = [np.asarray(values, np.float64) for values in (arrived, begun, ended)]
        if times[0].ndim != 1 or not len(times[0]) or any(values.shape != times[0].shape for values in times):
            raise UsageError("A load is summed up from one arrival, one beginning and one end of each of its requests.")
        arrivals, begins, ends = times
        if not np.isfinite(times).all() or (begins < arrivals).any() or (ends < begins).any():
            raise UsageError("Requests arrive, begin and end in this order, at times that are finite.")
        first, last = arrivals.min(), ends.max()
        count, span, arrival_span = len(arrivals), float(last - first), float(arrivals.max() - first)
        latency = ends - arrivals
        p50, p95, p99 = (float(value) for value in np.percentile(latency, PERCENTILES))
        at, change = np.unique(np.concatenate([arrivals, begins]) - first, return_inverse=True)
        steps = np.bincount(change, np.repeat([1.0, -1.0], count), len(at))
        queue = np.rint(steps.cumsum()).astype(np.int64)
        changes = np.flatnonzero(np.diff(queue, prepend=0))  # a request that begins at its arrival changes nothing
        return cls(
            requests=count,
            offered=(count - 1) / arrival_span if arrival_span > 0 else None,
            achieved=count / span if span > 0 else None,
            p50=p50,
            p95=p95,
            p99=p99,
            worst=float(latency.max()),
            mean_queue=float((begins - arrivals).sum()) / span if span > 0 else 0.0,
            max_queued=int(queue.max()),
            queue_at=at[changes],
            queue=queue[changes],
        )

    def scaled(self, factor: float) -> LoadReport:
        """Return this report with all times multiplied by a factor, and all rates divided by it."""
        return replace(
            self,
            offered=None if self.offered is None else self.offered / factor,
            achieved=None if self.achieved is None else self.achieved / factor,
            p50=self.p50 * factor,
            p95=self.p95 * factor,
            p99=self.p99 * factor,
            worst=self.worst * factor,
            queue_at=self.queue_at * factor,
        )


def constant_arrivals(rate: float, requests: int) -> NDArray[np.float64]:
    """Return the arrival times of requests at regular intervals, ``float64[R]`` seconds, the first at 0.

    Args:
        rate: requests per second.
        requests: number of requests.

    Raises:
        UsageError: the rate is not positive and finite, or there is no request.
    """
    check_rate(rate)
    _check_count(requests)
    return np.arange(requests) / rate


def poisson_arrivals(rate: float, requests: int, *, seed: int = 0) -> NDArray[np.float64]:
    """Return the arrival times of requests in a Poisson process, ``float64[R]`` seconds, the first at 0.

    Args:
        rate: requests per second, on average.
        requests: number of requests.
        seed: seed of the intervals, which are exponentially distributed.

    Raises:
        UsageError: the rate is not positive and finite, there is no request, or the seed is negative.
    """
    check_rate(rate)
    _check_count(requests)
    if seed < 0:
        raise UsageError(f"The seed is {seed}; it must not be negative.")
    between = np.random.default_rng(seed).exponential(1.0 / rate, requests)
    between[0] = 0.0
    return between.cumsum()


def arrival_times(arrivals: str, rate: float, requests: int, *, seed: int = 0) -> NDArray[np.float64]:
    """Return arrival times, ``float64[R]`` seconds, by one of the names in :data:`ARRIVALS`. Raises UsageError for others."""
    if arrivals not in ARRIVALS:
        raise UsageError(f"Requests cannot arrive '{arrivals}'; there are {', '.join(ARRIVALS)}.")
    if arrivals == "poisson":
        return poisson_arrivals(rate, requests, seed=seed)
    return constant_arrivals(rate, requests)


def check_rate(rate: float) -> None:
    """Raise UsageError unless a rate is positive and finite."""
    if not 0 < rate < math.inf:
        raise UsageError(f"The rate is {rate:g} requests per second; it must be positive and finite.")


def _check_count(requests: int) -> None:
    if requests < 1:
        raise UsageError(f"'requests' is {requests}; it must be at least 1.")
