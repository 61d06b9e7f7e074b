"""Choose the number of requests in flight for a plan's highest throughput."""

from __future__ import annotations

import math

from placeit.planning.segments import Plan
from placeit.simulator.objectives.throughput import Throughput
from placeit.simulator.simulate import schedule

__all__ = ["held", "in_flight", "in_service"]

_MOST_REQUESTS = 16  # in flight in an executor, by default
_AS_MANY = 1.01  # most seconds per request, as a multiple of the seconds with _MOST_REQUESTS in flight
_SIMULATED = 64  # requests per simulated run


def held(plan: Plan) -> float:
    """Return how many requests a plan holds while its bottleneck is always busy: makespan / seconds per request, at least 1."""
    each = Throughput().of_plan(plan)
    return max(1.0, plan.schedule.makespan / each) if each > 0 else 1.0


def in_flight(plan: Plan) -> int:
    """Return the fewest requests in flight whose simulated throughput is within 1 % of that with 16 in flight; at least 2.

    One more than :func:`held` may not be enough where segments alternate between devices: a request waits for a device that
    works for another request, and then both want the same device.
    """
    least = min(_MOST_REQUESTS, math.ceil(held(plan) - 1e-9) + 1)
    enough = _AS_MANY * _seconds(plan, _MOST_REQUESTS)
    return next((requests for requests in range(least, _MOST_REQUESTS) if _seconds(plan, requests) <= enough), _MOST_REQUESTS)


def in_service(plan: Plan) -> int:
    """Return how many requests a server has in flight: at least one more than devices, for copying inputs and outputs."""
    return max(len({segment.device for segment in plan.programs}) + 1, in_flight(plan))


def _seconds(plan: Plan, requests: int) -> float:
    """Return the simulated seconds of 64 requests, of which at most ``requests`` are in flight."""
    flights = schedule(plan.problem, plan.placement, requests=_SIMULATED, in_flight=requests).requests
    return float(flights.ended.max())
