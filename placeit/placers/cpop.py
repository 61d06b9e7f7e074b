"""CPOP: the critical path runs on one device, and every other op where it finishes first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.placers.list_scheduling import (
    ListPlacer,
    ListSchedule,
    downward_ranks,
    fastest_devices,
    mean_comm,
    priority_order,
    shortest_schedule,
    upward_ranks,
)
from placeit.simulator.scheduler import LinkModel

__all__ = ["Cpop"]


@dataclass(frozen=True)
class Cpop(ListPlacer):
    """Critical Path On a Processor (Topcuoglu et al. 2002), with insertion.

    Differs from the paper: if no device can run the whole critical path, the device that can run most of its ops runs these,
    and the other ops of the path go where they finish first. Mean costs are computed as in HEFT. If devices conflict, the plan
    is the shortest of several (:func:`placeit.placers.list_scheduling.shortest_schedule`).
    """

    def plan(self, problem: Problem, links: LinkModel = "contention-free") -> ListSchedule:
        """Return the planned schedule, with its placement. Raises InfeasibleError if no feasible placement is found."""
        upward = upward_ranks(problem)
        path = _critical_path(problem, upward)
        on_path = problem.compute[path]
        device = int(fastest_devices(on_path)[0])
        pinned = problem.compute.copy()
        feasible = path[np.isfinite(on_path[:, device])]
        pinned[feasible] = np.inf
        pinned[feasible, device] = problem.compute[feasible, device]
        return shortest_schedule(
            problem, priority_order(problem, upward + downward_ranks(problem)), compute=pinned, links=links
        )


def _critical_path(problem: Problem, upward: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the ops of the longest path by mean costs, from an entry to an exit."""
    entries = np.flatnonzero(np.bincount(problem.edges[:, 1], minlength=len(problem)) == 0)
    comm = mean_comm(problem)
    path = [int(entries[np.argmax(upward[entries])])]
    while len(out := problem.successors.row(path[-1])):
        heads = problem.edges[out, 1]
        path.append(int(heads[np.argmax(comm[out] + upward[heads])]))
    return np.array(path)
