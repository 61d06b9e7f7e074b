"""Choose the number of requests in flight for a plan's highest throughput."""

from __future__ import annotations

from collections.abc import Sequence

from placeit.planning.segments import Plan
from placeit.simulator import depth
from placeit.simulator.throughput_bound import ThroughputCost

__all__ = ["bound", "held", "in_flight", "in_service", "share_of"]


def bound(plan: Plan) -> float:
    """Return the seconds for which one request keeps the busiest device or link of a plan busy."""
    return float(ThroughputCost(plan.problem)(plan.placement)[0])


def held(plan: Plan) -> float:
    """Return how many requests in flight keep a plan's bottleneck busy: makespan / seconds per request, at least 1."""
    return depth.held(plan.problem, plan.placement)


def in_flight(plan: Plan) -> int:
    """Return the fewest requests in flight that reach 95 % of a plan's throughput (:func:`placeit.simulator.depth.enough`)."""
    return depth.enough(plan.problem, plan.placement).in_flight


def share_of(in_flight: int | None, replicas: Sequence[Plan]) -> int | None:
    """Return each replica's share of a number of requests in flight, at least 1; None if the number is None."""
    return None if in_flight is None else max(1, in_flight // len(replicas))


def in_service(plan: Plan) -> int:
    """Return how many requests a server has in flight: at least one more than devices, to copy inputs and outputs meantime."""
    return max(len({segment.device for segment in plan.programs}) + 1, in_flight(plan))
