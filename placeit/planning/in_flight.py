"""How many requests in flight a plan needs to serve as many as it can."""

from __future__ import annotations

import math

from placeit.planning.segments import Plan
from placeit.simulator.objectives import Throughput
from placeit.simulator.simulate import schedule

__all__ = ["held", "in_flight", "in_service"]

_MOST = 16
_AS_MANY = 1.01  # times the seconds per request of that many in flight
_SIMULATED = 64  # requests


def held(plan: Plan) -> float:
    """How many requests a plan holds when its bottleneck is always busy: makespan over seconds per request; at least 1."""
    each = Throughput().of_plan(plan)
    return max(1.0, plan.schedule.makespan / each) if each > 0 else 1.0


def in_flight(plan: Plan) -> int:
    """How many requests in flight serve as many, within 1 %, as 16 would, by the simulator; no fewer than two.

    Those that a plan holds and one that waits may not be enough where segments alternate between devices: a request waits for a
    device that works for another one, and then both want the same device.
    """
    least = min(_MOST, math.ceil(held(plan) - 1e-9) + 1)
    enough = _AS_MANY * _seconds(plan, _MOST)
    return next((requests for requests in range(least, _MOST) if _seconds(plan, requests) <= enough), _MOST)


def in_service(plan: Plan) -> int:
    """How many a server has in flight: no fewer than the devices and one, whose inputs and outputs are copied meanwhile."""
    return max(len({segment.device for segment in plan.programs}) + 1, in_flight(plan))


def _seconds(plan: Plan, requests: int) -> float:
    """Simulated seconds of a run with so many in flight."""
    flights = schedule(plan.problem, plan.placement, requests=_SIMULATED, in_flight=requests).requests
    return float(flights.ended.max())
