"""Simulate requests that arrive over time, on one plan or on several replicas that share a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.simulator.load import LoadReport
from placeit.simulator.simulate import schedule
from placeit.simulator.throughput_bound import ThroughputCost

__all__ = ["SimulatedReplica", "serve"]


@dataclass(frozen=True, eq=False)
class SimulatedReplica:
    """A plan that serves whole requests, alone or beside other replicas.

    Attributes:
        problem: its ops, or segments.
        placement: ``int32[V]``, their devices.
        in_flight: most requests in flight on it at a time.
    """

    problem: Problem
    placement: NDArray[np.int32]
    in_flight: int


def serve(replicas: Sequence[SimulatedReplica], arrivals: NDArray[np.float64]) -> LoadReport:
    """Simulate requests that arrive over time, by the rules of executors (``channel`` links, ``priority`` queues).

    Requests begin in the order of their arrival, as soon as a replica has fewer than ``in_flight`` of them in flight. Of
    several such replicas, a request goes to the one where it would end first if each served its requests one after the other,
    at its seconds per request. The work of one replica does not slow down another.

    Args:
        replicas: at least one.
        arrivals: ``float64[R]``, seconds, ascending (:mod:`placeit.simulator.load`).
    """
    if len(replicas) == 1:
        flights = _schedule(replicas[0], arrivals)
        return LoadReport.of(arrivals, *flights)
    seconds = [float(ThroughputCost(one.problem)(one.placement)[0]) for one in replicas]
    taken: list[list[int]] = [[] for _ in replicas]  # requests of each replica since it was last idle, in order
    begun, ended = np.empty(len(arrivals)), np.empty(len(arrivals))
    now = 0.0
    for request, arrival in enumerate(arrivals.tolist()):
        now = max(now, arrival)
        while True:
            busy = [sum(ended[r] > now for r in mine) for mine in taken]
            free = [s for s, one in enumerate(replicas) if busy[s] < one.in_flight]
            if free:
                break
            now = min(ended[r] for mine in taken for r in mine if ended[r] > now)
        chosen = min(free, key=lambda s: (busy[s] + 1) * seconds[s])
        if not busy[chosen]:
            taken[chosen].clear()
        begun[request] = now
        taken[chosen].append(request)
        ended[taken[chosen]] = _schedule(replicas[chosen], begun[taken[chosen]])[1]
    return LoadReport.of(arrivals, begun, ended)


def _schedule(replica: SimulatedReplica, arrivals: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return when requests begin and end on one replica, ``float64[R]`` both."""
    simulated = schedule(
        replica.problem,
        replica.placement,
        arrivals=arrivals,
        in_flight=replica.in_flight,
    )
    return simulated.requests.begun, simulated.requests.ended
