"""PEFT: each op runs on the device where its finish time plus the optimistic cost of the ops after it is lowest."""

from __future__ import annotations

from dataclasses import dataclass

from placeit.core.problem import Problem
from placeit.placers.list_scheduling import (
    ListPlacer,
    ListSchedule,
    mean_over_devices,
    optimistic_costs,
    priority_order,
    shortest_schedule,
)
from placeit.simulator.scheduler import LinkModel

__all__ = ["Peft"]


@dataclass(frozen=True)
class Peft(ListPlacer):
    """Predict Earliest Finish Time (Arabnejad and Barbosa 2014), with insertion: a list scheduler that looks ahead.

    The optimistic cost table holds the shortest remaining time after an op on a device if all devices were idle. The ready op
    with the largest mean over devices is placed first, where its finish time plus its optimistic cost is lowest.

    Differs from the paper: means of ops are over the devices that can run them, and means of transfers over all pairs of
    different devices that can run their ends. Ties go by the topological order of the problem. If devices conflict, the plan
    is the shortest of several (:func:`placeit.placers.list_scheduling.shortest_schedule`).
    """

    def plan(self, problem: Problem, links: LinkModel = "contention-free") -> ListSchedule:
        """Return the planned schedule, with its placement. Raises InfeasibleError if no feasible placement is found."""
        costs = optimistic_costs(problem)
        return shortest_schedule(problem, priority_order(problem, mean_over_devices(problem, costs)), costs, links=links)
