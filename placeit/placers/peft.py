"""PEFT: each op on the device where it, and the optimistic cost of what comes after it, finish first."""

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

    The optimistic cost table holds the least remaining time after an op on a device, if all devices were free. The ready op
    with the largest mean over devices goes first; it goes to the device where its finish plus the optimistic cost is least.

    Differs from the paper: means of ops are over the devices that can run them, and means of transfers over all pairs of
    different devices that can run their ends. Equal ranks go by the topological order of the problem. Where devices conflict,
    the plan is the shortest of several (:func:`placeit.placers.list_scheduling.shortest_schedule`).
    """

    def plan(self, problem: Problem, links: LinkModel = "contention-free") -> ListSchedule:
        """Return the planned schedule, with its placement.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        costs = optimistic_costs(problem)
        return shortest_schedule(problem, priority_order(problem, mean_over_devices(problem, costs)), costs, links=links)
