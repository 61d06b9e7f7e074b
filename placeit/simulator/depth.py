"""Simulate many requests over a placement, of which a limited number is in flight."""

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
_WARM, _COUNTED = 16, 64  # least requests that fill the devices before those that count


@dataclass(frozen=True)
class Served:
    """What a placement serves with a number of requests in flight.

    Attributes:
        in_flight: most requests in flight.
        seconds: seconds per request, once as many requests are in flight.
    """

    in_flight: int
    seconds: float


def served(problem: Problem, placement: NDArray[np.int32], in_flight: int) -> Served:
    """Return what a feasible placement, ``int32[V]``, serves while requests wait and ``in_flight`` of them are in flight."""
    first = _WARM + 2 * in_flight
    last = first + math.ceil(_COUNTED / in_flight) * in_flight  # requests in flight may end in bursts
    ended = np.sort(schedule(problem, placement, requests=last + in_flight, in_flight=in_flight).requests.ended)
    seconds = float(ended[last - 1] - ended[first - 1]) / (last - first)
    return Served(in_flight, max(seconds, float(ThroughputCost(problem)(placement)[0])))


def enough(problem: Problem, placement: NDArray[np.int32]) -> Served:
    """Return what a placement serves with the fewest requests in flight that reach 95 % of its throughput with 16 in flight.

    There is at least one more request in flight than :func:`held` says, as the times of real runs vary. That may not be
    enough where segments alternate between devices: a request waits for a device that works for another request, and then
    both want the same device.
    """
    most = served(problem, placement, _MAX_REQUESTS)
    for requests in range(min(_MAX_REQUESTS, math.ceil(held(problem, placement) - 1e-9) + 1), _MAX_REQUESTS):
        found = served(problem, placement, requests)
        if _SHARE * found.seconds <= most.seconds:
            return found
    return most


def at_depth(problem: Problem, placement: NDArray[np.int32], in_flight: int | None) -> Served:
    """Return what a placement serves with a number of requests in flight; None for what :func:`enough` returns."""
    return enough(problem, placement) if in_flight is None else served(problem, placement, in_flight)


def held(problem: Problem, placement: NDArray[np.int32]) -> float:
    """Return how many requests are in flight while the bottleneck is always busy: makespan / its seconds, at least 1."""
    each = float(ThroughputCost(problem)(placement)[0])
    return max(1.0, schedule(problem, placement).makespan / each) if each > 0 else 1.0
