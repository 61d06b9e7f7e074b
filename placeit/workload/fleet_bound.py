"""An upper bound on the rates that a fleet can serve, by the time of its nodes alone."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from placeit.workload.fleet import Demand, Fleet

__all__ = ["capacity"]

_STEPS = (4.0, 2.0, 1.4, 1.1, 1.02)  # factors by which the search changes a price, one after the other


def capacity(fleet: Fleet, demand: Demand, rates: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Bound the factor on all rates at which a fleet could serve every request.

    For any prices of a second of each class of nodes, a request costs at least its price on the class where it is cheapest. So
    the factor is at most the price of all nodes, divided by the price of all requests. The search minimises this bound over the
    prices. They are the dual solution of a linear program that ignores memory, links and waiting.

    Args:
        fleet: the nodes.
        demand: the models.
        rates: ``float64[Q]``, requests per second of each source.

    Returns:
        The factor, and the prices, ``float64[C]``, of which the largest is 1.
    """
    count = np.bincount(fleet.node_class, minlength=len(fleet.classes)).astype(float)
    seconds = np.where(count > 0, demand.seconds, np.inf)
    able = np.isfinite(seconds).any(axis=1)
    total, seconds = np.bincount(demand.model, rates, len(seconds))[able], seconds[able]

    def factor(price: NDArray[np.float64]) -> float:
        work = float(total @ (price * seconds).min(axis=1))
        return float(price @ count) / work if work > 0 else np.inf

    price = (1 / seconds).sum(axis=0) + 1e-12  # above 0, so that no class is free
    best = factor(price)
    for step in _STEPS:
        better = True
        while better:
            better = False
            for c, change in itertools.product(range(len(price)), (step, 1 / step)):
                candidate = price.copy()
                candidate[c] *= change
                if (bound := factor(candidate)) < best * (1 - 1e-9):
                    price, best, better = candidate, bound, True
    return best, price / price.max(initial=1e-300)
