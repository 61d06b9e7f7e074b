"""Predicted capacities of servers: requests in flight are simulated, with times of batches that were measured."""

from __future__ import annotations

from collections.abc import Mapping

from placeit.runtime.plan_executor import PlanExecutor
from placeit.simulator.depth import served

__all__ = ["predicted_capacity"]


def predicted_capacity(executor: PlanExecutor, in_flight: int, seconds: Mapping[int, float], rows: int) -> float | None:
    """Return the requests per second that a replica serves while others wait.

    The simulator runs the replica's plan with a number of requests in flight. If runs of it were timed, simulated times
    are scaled so that a single run takes the time of a run with as many rows.

    Args:
        executor: of the replica; its plan has the costs of a single request.
        in_flight: batches in flight.
        seconds: of a run alone, by the number of its rows, the fewest of which are a request's; empty if none was timed.
        rows: of a batch; 0 for requests that run one by one.

    Returns:
        None if the costs of the plan are not known.
    """
    plan = executor.plan
    alone = served(plan.problem, plan.placement, 1).seconds
    if alone <= 0:
        return None
    each, single = served(plan.problem, plan.placement, in_flight).seconds / alone, min(seconds, default=1)
    rows = rows if rows in seconds else single
    return rows / single / (each * seconds.get(rows, alone))
