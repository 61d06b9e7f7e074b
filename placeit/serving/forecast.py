"""Predicted capacities of servers: simulated requests in flight, bounded by the host's work for each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import thread_time

from placeit.backends.base import Arrays
from placeit.core.clock import now
from placeit.runtime.plan_executor import PlanExecutor
from placeit.serving.batching import Batches
from placeit.serving.load_run import saturate
from placeit.serving.server import Server
from placeit.simulator.depth import served

__all__ = ["HostCosts", "predicted_capacity"]

_RUNS, _RUN_S = 5, 0.04  # most runs that measure the cost of a request on the host, and the seconds of each


class HostCosts:
    """CPU seconds that the host spends on each request of a model: to submit it, to join it with others and to answer it.

    Python's lock lets one thread at a time do this. The costs are measured once for requests that run alone, and once for
    joined ones, on the first server of each kind.

    Args:
        inputs: of each request, by name.
    """

    def __init__(self, inputs: Arrays) -> None:
        self._inputs = inputs
        self._known: dict[bool, float] = {}

    def of(self, server: Server) -> float:
        """Return the CPU seconds of a request of an idle server. Raises KeyboardInterrupt at Ctrl-C."""
        joined = any(batches.most for batches in server.batches)
        if joined not in self._known:
            until, found = now() + _RUNS * _RUN_S, [self._measured(server)]
            while len(found) < _RUNS and now() < until:
                found.append(self._measured(server))
            self._known[joined] = min(found)  # the first requests take longer
        return self._known[joined]

    def _measured(self, server: Server) -> float:
        begin = thread_time() + server.cpu_seconds
        found = saturate(server, self._inputs, seconds=_RUN_S)
        if found.interrupted:
            raise KeyboardInterrupt
        return (thread_time() + server.cpu_seconds - begin) / max(1, found.arrived)


def predicted_capacity(
    executors: Sequence[PlanExecutor], batches: Sequence[Batches], rows: int, host: float = 0.0
) -> float | None:
    """Return the requests per second that a server serves while others wait.

    The simulator runs the plan of each replica with as many requests in flight as it may have. If runs of it were timed,
    simulated times are scaled so that a single run takes the time of a run with as many rows.

    Args:
        executors: of the replicas; their plans have the costs of a single request.
        batches: for each replica, with the seconds of a run alone, by the number of its rows, the fewest of which are a
            request's; without seconds if none was timed.
        rows: of a batch; 0 for requests that run one by one.
        host: CPU seconds of the host for each request, on one thread at a time, which bound the capacity.

    Returns:
        None if the costs of a plan are not known.
    """
    each = [_simulated(one, timed.seconds, rows) for one, timed in zip(executors, batches, strict=True)]
    known = [one for one in each if one is not None]
    return None if len(known) < len(each) else min(sum(known), 1 / host if host else sum(known))


def _simulated(executor: PlanExecutor, seconds: Mapping[int, float], rows: int) -> float | None:
    """Return the requests per second of a replica; None if the costs of its plan are not known."""
    plan = executor.plan
    alone = served(plan.problem, plan.placement, 1).seconds
    if alone <= 0:
        return None
    each, single = served(plan.problem, plan.placement, executor.in_flight).seconds / alone, min(seconds, default=1)
    rows = rows if rows in seconds else single
    return rows / single / (each * seconds.get(rows, alone))
