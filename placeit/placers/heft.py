"""HEFT: ops in order of upward rank, each on the device where it finishes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import CostFunction, Problem
from placeit.placers.list_scheduling import ListSchedule, list_schedule, priority_order, upward_ranks

__all__ = ["Heft", "HeftPlan"]

HeftPlan: TypeAlias = ListSchedule


@dataclass(frozen=True)
class Heft:
    """Heterogeneous Earliest Finish Time (Topcuoglu et al. 2002), with insertion.

    Ranks use mean costs: of an op over the devices that can run it, of a transfer over all pairs of a device that can run
    the producer and one that can run the consumer, where a pair of equal devices counts with zero.

    Differs from the paper: equal ranks go by the topological order of the problem, not at random.
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
        return list_schedule(problem, priority_order(problem, upward_ranks(problem)))
