"""A lower bound of the makespan of all placements."""

from __future__ import annotations

import numpy as np

from placeit.core.conflicts import cliques
from placeit.core.memory_reads import MemoryReads
from placeit.core.problem import Problem

__all__ = ["lower_bound"]

_STEPS = 200  # multiplicative updates of the resources' weights


def lower_bound(problem: Problem, memory: MemoryReads | None = None) -> float:
    """Return a lower bound of all makespans, in seconds: the larger of critical path and work per device, at best costs.

    Transfers and cuts are free, and the host's part (``Problem.host``) is the lowest of all devices.

    The bound from work is a lower bound of the assignment in which an op may be divided between devices (Lenstra, Shmoys and
    Tardos 1990, equation 1). For any weights ``l[r]`` of resources that sum to one, no placement ends before ``sum over ops of
    min over d of sum over r of l[r] * seconds[r, v, d]``, where ``seconds[r, v, d]`` is the time for which op v on device d
    occupies resource r. The weights start equal, and multiplicative updates raise the bound.

    There are two kinds of resources. The first is a set of devices of which only one runs at a time, such as all devices that
    use a core. An op occupies it for ``compute[v, d]``; an op on two cores occupies both. The second is a memory that devices
    share. An op occupies it for the bytes of its weights, divided by the rate at which all these devices together read it.

    Args:
        problem: the problem to place.
        memory: bytes that the ops read, and the rates of memories; None to leave memories out.
    """
    return float(problem.host.min()) + _compute_bound(problem, memory)


def _compute_bound(problem: Problem, memory: MemoryReads | None) -> float:
    """Return the larger of the critical path and the bound from work, in seconds."""
    bound = problem.critical_path if memory is None else _compute_bound(problem, None)
    sets = cliques(problem.conflicts)
    ops = np.arange(len(problem))
    shared = np.zeros((0, problem.devices)) if memory is None else memory.devices.astype(np.float64)
    read = np.zeros((0, len(problem))) if memory is None else memory.seconds
    weights = np.full(len(sets) + len(shared), 1 / (len(sets) + len(shared)))
    for step in range(_STEPS):
        set_weights, memory_weights = np.split(weights, [len(sets)])
        weighted = problem.compute * (set_weights @ sets) + (memory_weights[:, None] * read).T @ shared
        cheapest = weighted.argmin(axis=1)
        bound = max(bound, float(weighted[ops, cheapest].sum()))
        busy = sets @ np.bincount(cheapest, problem.compute[ops, cheapest], problem.devices)
        load = np.concatenate([busy, (read * shared[:, cheapest]).sum(axis=1)])
        if not load.any():
            break
        weights *= np.exp(load / load.max() / (step + 1) ** 0.5)
        weights /= weights.sum()
    return bound
