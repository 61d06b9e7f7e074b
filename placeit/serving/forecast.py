"""Predicted capacities of servers: requests in flight are simulated, with times of batches that were measured."""

from __future__ import annotations

from collections.abc import Mapping

from placeit.runtime.plan_executor import PlanExecutor
from placeit.simulator.depth import served
from placeit.simulator.throughput_bound import ThroughputCost

__all__ = ["predicted_capacity"]


def predicted_capacity(executor: PlanExecutor, in_flight: int, seconds: Mapping[int, float], rows: int) -> float | None:
    """Return the requests per second that a replica serves while others wait.

    The simulator runs the replica's plan with a number of requests in flight. A batch takes longer than a request in each
    segment, by the ratio of the measured times of a whole run.

    Args:
        executor: of the replica; its plan has the costs of a single request.
        in_flight: batches in flight.
        seconds: of a run, by the number of its rows; the least is the number of a request. Unused without batches.
        rows: of a batch; 0 for requests that run one by one.

    Returns:
        None if the costs of the plan are not known.
    """
    plan = executor.plan
    if float(ThroughputCost(plan.problem)(plan.placement)[0]) <= 0:
        return None
    each = served(plan.problem, plan.placement, in_flight).seconds
    if not rows:
        return 1 / each
    single = min(seconds)
    return rows / single / (each * seconds[rows] / seconds[single])
