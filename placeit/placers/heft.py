"""HEFT: ops in order of upward rank, each on the device where it finishes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.conflicts import cover
from placeit.core.problem import CostFunction, Problem
from placeit.placers.list_scheduling import ListSchedule, list_schedule, priority_order, upward_ranks

__all__ = ["Heft", "HeftPlan"]

_EXCESS = (1.9, 1.6, 1.35, 1.15, 1.0)
"""Limit of an op's time where devices conflict, as a multiple of the least time of cores."""

HeftPlan: TypeAlias = ListSchedule


@dataclass(frozen=True)
class Heft:
    """Heterogeneous Earliest Finish Time (Topcuoglu et al. 2002), with insertion.

    Ranks use mean costs: of an op over the devices that can run it, of a transfer over all pairs of a device that can run
    the producer and one that can run the consumer, where a pair of equal devices counts with zero.

    Differs from the paper: equal ranks go by the topological order of the problem, not at random. Where devices conflict, the
    one where an op finishes first is often one that takes all cores for little: the plan is then the shortest of several, which
    differ in how much of the cores' time an op may take beyond the least that it can.
    """

    def place(
        self,
        problem: Problem,
        cost: CostFunction,  # noqa: ARG002
        *,
        seed: int,  # noqa: ARG002
        evaluations: int | None,  # noqa: ARG002
        deadline: float | None = None,  # noqa: ARG002
    ) -> NDArray[np.int32]:
        """Return the placement of :meth:`plan`; the cost function and the seed are not used."""
        return self.plan(problem).placement

    def plan(self, problem: Problem) -> HeftPlan:
        """Return the placement with the planned schedule; links are without contention.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        order = priority_order(problem, upward_ranks(problem))
        if not problem.conflicts.any():
            return list_schedule(problem, order)
        taken = problem.compute * cover(problem.conflicts).sum(axis=0)
        least = taken.min(axis=1, keepdims=True)
        limited = [problem.compute, *(np.where(taken <= limit * least, problem.compute, np.inf) for limit in _EXCESS)]
        return min((list_schedule(problem, order, compute) for compute in limited), key=lambda plan: plan.makespan)
