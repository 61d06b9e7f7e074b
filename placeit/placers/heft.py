"""HEFT: ops in order of their upward ranks, each on the device where it finishes first."""

from __future__ import annotations

from dataclasses import dataclass

from placeit.core.problem import Problem
from placeit.placers.list_scheduling import ListPlacer, ListSchedule, priority_order, shortest_schedule, upward_ranks
from placeit.simulator.scheduler import LinkModel

__all__ = ["Heft"]


@dataclass(frozen=True)
class Heft(ListPlacer):
    """Heterogeneous Earliest Finish Time (Topcuoglu et al. 2002), with insertion.

    Ranks use mean costs: the mean of an op over the devices that can run it, and the mean of a transfer over all pairs of a
    device that can run the producer and a device that can run the consumer. A pair of a device with itself counts as zero.

    Differs from the paper: ties go by the topological order of the problem, not at random. If devices conflict, the plan is the
    shortest of several (:func:`placeit.placers.list_scheduling.shortest_schedule`).
    """

    def plan(self, problem: Problem, links: LinkModel = "contention-free") -> ListSchedule:
        """Return the planned schedule, with its placement. Raises InfeasibleError if no feasible placement is found."""
        return shortest_schedule(problem, priority_order(problem, upward_ranks(problem)), links=links)
