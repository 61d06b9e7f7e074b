"""The best of a family of list schedulers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import best, is_over
from placeit.placers.cpop import Cpop
from placeit.placers.heft import Heft
from placeit.placers.list_scheduling import (
    ListSchedule,
    downward_ranks,
    mean_compute,
    mean_over_devices,
    optimistic_costs,
    priority_order,
    shortest_schedule,
    upward_ranks,
)
from placeit.placers.peft import Peft

__all__ = ["BestList"]

_SHARES = (0.0, 0.5, 1.0)


@dataclass(frozen=True)
class BestList:
    """Place by HEFT, PEFT, CPOP and eleven mixtures of them; the best placement by the cost function wins.

    A mixture has one of four orders of ops: by upward rank (HEFT), by the mean optimistic cost from the end of an op (PEFT) or
    from its start, or by the longest path through an op (CPOP). It places an op where its finish and a share of the optimistic
    cost, none, half or all of it, are least.
    """

    def place(
        self,
        problem: Problem,
        cost: CostFunction,
        *,
        seed: int,  # noqa: ARG002
        evaluations: int | None,
        deadline: float | None = None,
    ) -> NDArray[np.int32]:
        """Return the best placement by cost, among as many as may be evaluated; HEFT's if none may be.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        made = [Heft().plan(problem).placement]
        for plan in _family(problem):
            if is_over(deadline) or (evaluations is not None and len(made) >= evaluations):
                break
            made.append(plan.placement)
        distinct = {placement.tobytes(): placement for placement in made}
        return best(cost, np.stack(list(distinct.values())), evaluations, deadline)


def _family(problem: Problem) -> Iterator[ListSchedule]:
    """Plan by all members but HEFT, those first that are best the most often."""
    yield Peft().plan(problem)
    upward, onward = upward_ranks(problem), optimistic_costs(problem)
    after = mean_over_devices(problem, onward)
    through = upward + downward_ranks(problem)
    orders = [priority_order(problem, rank) for rank in (upward, through, after + mean_compute(problem), after)]
    for share in reversed(_SHARES):
        for number, order in enumerate(orders):
            if (share, number) not in ((0.0, 0), (1.0, 3)):  # HEFT and PEFT
                yield shortest_schedule(problem, order, share * onward)
    yield Cpop().plan(problem)
