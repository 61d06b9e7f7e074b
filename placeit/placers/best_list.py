"""The placer that selects the best schedule of a family of list schedulers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.graph import distinct_rows
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

_SHARES = (0.0, 1.0, 0.5)  # shares of the optimistic cost table: HEFT's, PEFT's, and the mean of both
_MAX_SHARE, _RANK_DEVIATION = 1.2, 0.2  # of random mixtures: largest share, standard deviation of the logarithm of a rank


@dataclass(frozen=True)
class BestList:
    """Place by HEFT, PEFT, CPOP and mixtures of them, over links as they are; the best placement by the cost function wins.

    A plan is made from an order of the ops and a share of PEFT's optimistic cost table. In this order, each op goes to the
    device where its finish time plus that share of its optimistic cost is lowest. The four orders are by upward rank (HEFT), by
    the longest path through an op (CPOP), and by the mean optimistic cost from an op's start, or from its end (PEFT). The three
    shares are zero (HEFT), one (PEFT) and one half. After these twelve plans come the plans of HEFT, PEFT and CPOP as in their
    papers, unless they are among the twelve. All later plans are random mixtures of the four orders, with random shares.

    Differs from the papers, where transfers never wait: the plans use the link model of the simulator that values placements,
    or the link model of executors if another cost function values them.
    """

    plans: int = option(24, "plans to make and value, unless the caller sets a lower limit", least=1, most=10**6)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the placement with the lowest cost; HEFT's if none may be evaluated. Raises InfeasibleError."""
        count = self.plans if evaluations is None else min(self.plans, max(1, evaluations))
        placements: list[NDArray[np.int32]] = []
        half = None if deadline is None else (clock.now() + deadline) / 2  # the other half of the time is for valuing
        for plan in islice(_plans(problem, links_of(cost), np.random.default_rng(seed)), count):
            placements.append(plan.placement)
            if is_over(half):
                break
        return best(cost, distinct_rows(np.stack(placements))[0], evaluations, deadline)


def _plans(problem: Problem, links: LinkModel, rng: np.random.Generator) -> Iterator[ListSchedule]:
    """Yield an endless sequence of plans: HEFT's first, then the other ones by fixed rules, then random mixtures."""
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
        rank = rng.dirichlet(np.ones(len(ranks))) @ ranks * rng.lognormal(0.0, _RANK_DEVIATION, len(problem))
        yield shortest_schedule(problem, priority_order(problem, rank), rng.uniform(0, _MAX_SHARE) * onward, links=links)
