"""Limits on latencies, and latencies at a rate of requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import UsageError
from placeit.core.units import parse_duration
from placeit.measuring.statistics import median_interval
from placeit.simulator.load import PERCENTILES

__all__ = ["LatencyLimit", "OperatingPoint", "most_left"]

_LEFT = 0.05  # share of the requests that may wait when the last one has arrived


def most_left(in_flight: int, arrived: int) -> float:
    """Return the most unfinished requests, when the last of ``arrived`` arrives, of a server that keeps up."""
    return in_flight + _LEFT * arrived


@dataclass(frozen=True)
class LatencyLimit:
    """A limit on a percentile of latencies.

    Attributes:
        percentile: 50, 95 or 99.
        seconds: most seconds from the arrival of a request to its end.
    """

    percentile: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``p95=20ms``. Raises UsageError."""
        name, _, value = text.partition("=")
        if name not in ("p50", "p95", "p99") or not value:
            raise UsageError(
                f"Cannot read the limit '{text}'; write a percentile (p50, p95 or p99) and a time, as in p95=20ms."
            )
        seconds = parse_duration(value)
        if not 0 < seconds < math.inf:
            raise UsageError(f"The limit '{text}' has to be a positive, finite time, as in p95=20ms.")
        return cls(int(name[1:]), seconds)

    def of(self, latencies: NDArray[np.float64]) -> float:
        """Return the percentile of latencies, seconds."""
        return float(np.percentile(latencies, self.percentile))

    def at(self, point: OperatingPoint) -> float:
        """Return the percentile at a point, seconds."""
        return {50: point.p50, 95: point.p95, 99: point.p99}[self.percentile]

    def __str__(self) -> str:
        return f"p{self.percentile}={self.seconds * 1e3:g}ms"


@dataclass(frozen=True)
class OperatingPoint:
    """Latencies of a configuration at a rate.

    Attributes:
        rate: requests per second that arrive, on average.
        p50: seconds; median over turns of the median latency.
        p95: seconds; median over turns of the 95th percentile.
        p99: seconds; median over turns of the 99th percentile.
        ci: 95 % interval of the percentile that is limited.
        requests: number of requests in all turns.
        kept: whether the limit was kept and the server kept up with the arrivals.
    """

    rate: float
    p50: float
    p95: float
    p99: float
    ci: tuple[float, float]
    requests: int
    kept: bool

    @classmethod
    def of(cls, rate: float, turns: Sequence[tuple[NDArray[np.float64], bool]], limit: LatencyLimit) -> Self:
        """Sum up turns: the latencies of each, ``float64[R]`` seconds, and whether the server kept up with the arrivals.

        Percentiles of turns are estimated so that their median is right for few requests, too (Hyndman and Fan 1996, type 8).
        """
        each = np.array(
            [
                np.percentile(latencies, PERCENTILES, method="median_unbiased") if len(latencies) else (math.inf,) * 3
                for latencies, _ in turns
            ]
        )
        p50, p95, p99 = (float(value) for value in np.median(each, axis=0))
        limited = each[:, PERCENTILES.index(limit.percentile)]
        kept = sum(up for _, up in turns) * 2 > len(turns) and float(np.median(limited)) <= limit.seconds
        return cls(rate, p50, p95, p99, median_interval(limited), sum(len(latencies) for latencies, _ in turns), kept)

    def to_dict(self) -> dict[str, Any]:
        """Return the point as a dict for JSON."""
        return {
            "rate_per_s": self.rate,
            "latency_s": {"p50": self.p50, "p95": self.p95, "p99": self.p99},
            "limited_ci_s": list(self.ci),
            "requests": self.requests,
            "kept": self.kept,
        }
