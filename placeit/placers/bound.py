"""Compute a lower bound of the makespan of all placements."""

from __future__ import annotations

import numpy as np

from placeit.core.conflicts import cliques
from placeit.core.memory_reads import MemoryReads
from placeit.core.problem import Problem

__all__ = ["lower_bound"]

_TURNS = 200


def lower_bound(problem: Problem, memory: MemoryReads | None = None) -> float:
    """Return a lower bound of all makespans, in seconds: the larger of critical path and work per device, at best costs.

    Transfers and cuts count as free, and the host's part (``Problem.host``) as the least of all devices.

    The bound from work is a lower bound of the assignment in which an op may be divided between devices (Lenstra, Shmoys and
    Tardos 1990, equation 1). For any weights ``l[r]`` of resources that sum to one, no placement ends before ``sum over ops of
    min over d of sum over r of l[r] * seconds[r, v, d]``, where ``seconds`` says how long an op on a device occupies a
    resource. Equal weights come first; multiplicative updates raise the bound where resources differ.

    A set of devices of which only one runs at a time, such as all that use a core, is a resource, which an op occupies for
    ``compute[v, d]``: an op on two cores takes both. So is a memory that devices share, which an op occupies for the bytes of
    its weights over the rate at which all devices of the memory together read it.

    Args:
        problem: the problem to place.
        memory: bytes that its ops read, and the rates of memories; None to leave memories out.
    """
    return float(problem.host.min()) + _of_work(problem, memory)


def _of_work(problem: Problem, memory: MemoryReads | None) -> float:
    """Return the larger of the critical path and the bound from work, in seconds."""
    bound = problem.critical_path if memory is None else _of_work(problem, None)
    sets = cliques(problem.conflicts)
    ops, none = np.arange(len(problem)), np.zeros((0, problem.devices))
    shared = none if memory is None else memory.devices.astype(np.float64)
    read = np.zeros((0, len(problem))) if memory is None else memory.seconds
    weights = np.full(len(sets) + len(shared), 1 / (len(sets) + len(shared)))
    for turn in range(_TURNS):
        of_sets, of_shared = np.split(weights, [len(sets)])
        weighted = problem.compute * (of_sets @ sets) + (of_shared[:, None] * read).T @ shared
        cheapest = weighted.argmin(axis=1)
        bound = max(bound, float(weighted[ops, cheapest].sum()))
        busy = sets @ np.bincount(cheapest, problem.compute[ops, cheapest], problem.devices)
        load = np.concatenate([busy, (read * shared[:, cheapest]).sum(axis=1)])
        if not load.any():
            break
        weights *= np.exp(load / load.max() / (turn + 1) ** 0.5)
        weights /= weights.sum()
    return bound
