"""Simulate many requests over a placement, with a limited number in flight."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.simulator.simulate import schedule
from placeit.simulator.throughput_bound import ThroughputCost

__all__ = ["Served", "at_depth", "enough", "held", "served"]

_MAX_REQUESTS = 16  # in flight, unless a caller asks for more
_SHARE = 0.95  # share of the throughput with _MAX_REQUESTS in flight that fewer requests have to reach
_WARM, _COUNTED = 16, 64  # minimum number of requests that fill the devices, and of requests that are counted after them


@dataclass(frozen=True)
class Served:
    """The throughput of a placement with a number of requests in flight.

    Attributes:
        in_flight: number of requests in flight.
        seconds: seconds per request in steady state.
    """

    in_flight: int
    seconds: float


def served(problem: Problem, placement: NDArray[np.int32], in_flight: int) -> Served:
    """Return the throughput of a feasible placement, ``int32[V]``, with ``in_flight`` requests in flight all the time."""
    first = _WARM + 2 * in_flight
    last = first + math.ceil(_COUNTED / in_flight) * in_flight  # requests in flight may end in bursts
    ended = np.sort(schedule(problem, placement, requests=last + in_flight, in_flight=in_flight).requests.ended)
    seconds = float(ended[last - 1] - ended[first - 1]) / (last - first)
    return Served(in_flight, max(seconds, float(ThroughputCost(problem)(placement)[0])))


def enough(problem: Problem, placement: NDArray[np.int32]) -> Served:
    """Return the throughput with the fewest requests in flight that reach 95 % of a placement's throughput with 16 in flight.

    At least one more request is in flight than :func:`held` returns, as the times of real runs vary. Where segments alternate
    between devices, more may be needed: a request waits for a device that works for another request, and then both need the
    same device.
    """
    highest = served(problem, placement, _MAX_REQUESTS)
    for requests in range(min(_MAX_REQUESTS, math.ceil(held(problem, placement) - 1e-9) + 1), _MAX_REQUESTS):
        found = served(problem, placement, requests)
        if _SHARE * found.seconds <= highest.seconds:
            return found
    return highest


def at_depth(problem: Problem, placement: NDArray[np.int32], in_flight: int | None) -> Served:
    """Return the throughput of a placement with a number of requests in flight; None for as many as :func:`enough` finds."""
    return enough(problem, placement) if in_flight is None else served(problem, placement, in_flight)


def held(problem: Problem, placement: NDArray[np.int32]) -> float:
    """Return how many requests in flight keep the bottleneck busy: makespan / its seconds per request, at least 1."""
    request_s = float(ThroughputCost(problem)(placement)[0])
    return max(1.0, schedule(problem, placement).makespan / request_s) if request_s > 0 else 1.0
