"""A lower bound of the makespan of all placements."""

from __future__ import annotations

import numpy as np

from placeit.core.conflicts import cliques
from placeit.core.problem import Problem

__all__ = ["lower_bound"]

_TURNS = 200


def lower_bound(problem: Problem) -> float:
    """Lower bound of all makespans, in seconds: the larger of critical path and work per device, at best costs.

    Transfers and cuts are taken to be free. The bound from work is that of the assignment whose ops may be divided between
    devices (Lenstra, Shmoys and Tardos 1990, equation 1), from below: for any weights ``l[d]`` that sum to one, no placement
    ends before ``sum over ops of min over d of l[d] * compute[v, d]``. With equal weights that is the sum of the best times
    over the number of devices; multiplicative updates raise it where devices differ.

    Where devices conflict, the weights are those of sets of which only one device runs at a time, such as all that use a core,
    and a device counts with those of all its sets: an op on two cores takes both.
    """
    bound = problem.critical_path
    sets = cliques(problem.conflicts)
    weights = np.full(len(sets), 1 / len(sets))
    for turn in range(_TURNS):
        weighted = problem.compute * (weights @ sets)
        cheapest = weighted.argmin(axis=1)
        ops = np.arange(len(problem))
        bound = max(bound, float(weighted[ops, cheapest].sum()))
        load = sets @ np.bincount(cheapest, problem.compute[ops, cheapest], problem.devices)
        if not load.any():
            break
        weights *= np.exp(load / load.max() / (turn + 1) ** 0.5)
        weights /= weights.sum()
    return bound
