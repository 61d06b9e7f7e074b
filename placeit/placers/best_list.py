"""The placer that takes the best schedule of a family of list schedulers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import best, is_over, option
from placeit.placers.cpop import Cpop
from placeit.placers.heft import Heft
from placeit.placers.list_scheduling import (
    ListSchedule,
    downward_ranks,
    links_of,
    mean_compute,
    mean_over_devices,
    optimistic_costs,
    priority_order,
    shortest_schedule,
    upward_ranks,
)
from placeit.placers.peft import Peft
from placeit.simulator.scheduler import LinkModel

__all__ = ["BestList"]

_SHARES = (0.0, 1.0, 0.5)
_LARGEST_SHARE, _SPREAD = 1.2, 0.2  # for random mixtures: largest share, standard deviation of the logarithm of a rank


@dataclass(frozen=True)
class BestList:
    """Place by HEFT, PEFT, CPOP and mixtures of them, over links as they are; the best placement by the cost function wins.

    A plan is made from an order of the ops and a share of PEFT's optimistic cost table. In this order, each op goes to the
    device where its finish plus that share of the optimistic cost is least. Orders are by upward rank (HEFT), by the longest
    path through an op (CPOP), or by the mean optimistic cost from an op's start, or from its end (PEFT). Shares are zero
    (HEFT), all (PEFT) or half. These are twelve plans. Then come the plans of HEFT, PEFT and CPOP as in their papers, unless
    they are among the twelve; and then random mixtures of the four orders, with random shares.

    Differs from the papers, where transfers never wait: in plans, transfers wait for each other if they do so in the simulator
    that values placements, or if real runs or another cost function value them, as executors let them wait.
    """

    plans: int = option(24, "plans to make and value, unless the caller sets a lower limit", least=1, most=10**6)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best placement by cost, among as many as may be evaluated; HEFT's if none may be.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        count = self.plans if evaluations is None else min(self.plans, max(1, evaluations))
        made: dict[bytes, NDArray[np.int32]] = {}
        half = None if deadline is None else (clock.now() + deadline) / 2  # the other half of the time is for valuing
        for plan in islice(_plans(problem, links_of(cost), np.random.default_rng(seed)), count):
            made.setdefault(plan.placement.tobytes(), plan.placement)
            if is_over(half):
                break
        return best(cost, np.stack(list(made.values())), evaluations, deadline)


def _plans(problem: Problem, links: LinkModel, rng: np.random.Generator) -> Iterator[ListSchedule]:
    """Yield plans without end: HEFT's first, then the others, then random mixtures."""
    upward, onward = upward_ranks(problem), optimistic_costs(problem)
    after = mean_over_devices(problem, onward)
    ranks = np.stack([upward, upward + downward_ranks(problem), after + mean_compute(problem), after])
    orders = [priority_order(problem, rank) for rank in ranks]
    for share in _SHARES:
        for order in orders:
            yield shortest_schedule(problem, order, share * onward, links=links)
    papers = (Cpop(),) if links == "contention-free" else (Heft(), Peft(), Cpop())  # the others are among the twelve
    for placer in papers:
        yield placer.plan(problem)
    while True:
        rank = rng.dirichlet(np.ones(len(ranks))) @ ranks * rng.lognormal(0.0, _SPREAD, len(problem))
        yield shortest_schedule(problem, priority_order(problem, rank), rng.uniform(0, _LARGEST_SHARE) * onward, links=links)
