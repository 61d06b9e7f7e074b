"""METIS: a partition into parts of equal work with few bytes between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.conflicts import together
from placeit.core.errors import UsageError
from placeit.core.extras import need
from placeit.core.graph import unique_rows
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import best, option
from placeit.placers.feasibility import repair
from placeit.placers.list_scheduling import fastest_devices, mean_compute

__all__ = ["Metis", "partition"]

_UNITS = 1_000_000  # approximate sum of all weights of one kind, since METIS weights are 32-bit integers


@dataclass(frozen=True)
class Metis:
    """K-way partition of the undirected graph (Karypis and Kumar 1998), one part per device that can run at the same time.

    The weight of a vertex is its mean compute time, and the weight of an edge its bytes. A part's share of the work is its
    device's share of the speed. METIS takes no account of how devices differ op by op, nor of how links differ, so parts are
    assigned to devices afterwards. If there are at most ``ways`` assignments, the best by cost is chosen. Otherwise parts are
    assigned by falling work, each to the device where it computes fastest. Needs ``pip install 'placeit[metis]'`` on machines
    other than x86-64.
    """

    ways: int = option(120, "most assignments of parts to devices to evaluate", least=1, most=50_000)

    def __post_init__(self) -> None:
        need("The placer 'metis'", "metis", "pymetis")

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the partition, repaired if a device cannot run an op or memory is exceeded. Raises InfeasibleError."""
        part = _partition(problem, seed)
        limit = self.ways if evaluations is None else min(self.ways, evaluations)
        parts = together(problem.conflicts)
        if math.perm(problem.devices, len(parts)) <= limit:
            chosen = itertools.permutations(range(problem.devices), len(parts))
            assignments = [_assignment(problem, parts, devices) for devices in chosen]
        else:
            assignments = [_greedy(problem, part)]
        candidates = [repair(problem, np.array(assignment, np.int32)[part]) for assignment in assignments]
        return best(cost, unique_rows(np.array(candidates))[0], evaluations, deadline)


def partition(problem: Problem, parts: int, *, seed: int = 0) -> NDArray[np.int32]:
    """Divide the ops into parts of equal work with few bytes between them, by METIS' multilevel k-way scheme.

    The weight of an op is its mean compute time, and the weight of an edge its bytes. If devices are equal, the part numbers
    are a placement, for any number of parts up to the number of devices. For other devices see :class:`Metis`.

    Args:
        problem: the problem whose ops to divide. Feasibility and memory are ignored.
        parts: number of parts, at least 1. Some may be empty.
        seed: seed of METIS' random numbers.

    Returns:
        ``int32[V]``, the number of each op's part.

    Raises:
        UsageError: ``parts`` is less than 1.
    """
    if parts < 1:
        raise UsageError(f"A graph is divided into at least one part; got parts={parts}.")
    parts = min(parts, len(problem))
    if parts == 1:
        return np.zeros(len(problem), np.int32)
    return _cut(problem, np.arange(len(problem)), parts, recursive=False, tpwgts=None, seed=seed).astype(np.int32)


def _partition(problem: Problem, seed: int) -> NDArray[np.int64]:
    """Return the part of each op, ``int64[V]``; parts have the numbers of devices that can all run at once."""
    devices = list(together(problem.conflicts))
    feasible = np.zeros_like(problem.feasible)
    feasible[:, devices] = problem.feasible[:, devices]
    parts = min(int(feasible.any(axis=0).sum()), len(problem))
    if parts <= 1:
        return np.full(len(problem), devices[0])
    work = mean_compute(problem)
    # speed of a device: its ops' total mean time over their total time on this device
    relative = np.where(feasible, problem.compute, 0.0).sum(axis=0) / np.maximum(feasible.T @ work, np.finfo(float).tiny)
    speed = 1.0 / np.maximum(relative, 1e-9)
    speed = np.where(feasible.any(axis=0), speed, 0.0)
    share = np.sort(speed)[::-1][:parts]
    part = _bisect(problem, share / share.sum(), seed)
    # part i has the i-th largest share: give it the number of the i-th fastest device
    return np.argsort(-speed, kind="stable")[part]


def _bisect(problem: Problem, shares: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """Divide the undirected graph by recursive bisection into parts with given shares of the work, which sum to one.

    METIS' own recursion prints to standard output when it runs out of ops.
    """
    part = np.zeros(len(problem), np.int64)
    pending = [(np.arange(len(problem)), 0, len(shares))]
    while pending:
        ops, first, end = pending.pop()
        if end - first == 1 or not len(ops):
            part[ops] = first
            continue
        middle = first + (end - first) // 2
        share = shares[first:middle].sum() / shares[first:end].sum()
        right = _cut(problem, ops, 2, recursive=True, tpwgts=[share, 1.0 - share], seed=seed) == 1
        pending += [(ops[~right], first, middle), (ops[right], middle, end)]
    return part


def _cut(
    problem: Problem, ops: NDArray[np.int64], parts: int, *, recursive: bool, tpwgts: list[float] | None, seed: int
) -> NDArray[np.int64]:
    """Divide the undirected graph of the given ops, at least one, by METIS; return the part of each."""
    need("A partition by METIS", "metis", "pymetis")
    import pymetis

    if len(ops) == 1:
        return np.zeros(1, np.int64)
    # both directions of each edge, with parallel edges merged
    number = np.full(len(problem), -1)
    number[ops] = np.arange(len(ops))
    ends = np.sort(number[problem.edges], axis=1)
    inside = ends[:, 0] >= 0
    pairs, inverse = unique_rows(ends[inside])
    weight = _integers(np.bincount(inverse, problem.edge_bytes[inside], len(pairs)).astype(np.float64))
    tails, heads = np.concatenate([pairs[:, 0], pairs[:, 1]]), np.concatenate([pairs[:, 1], pairs[:, 0]])
    by_tail = np.lexsort((heads, tails))
    xadj = np.concatenate([[0], np.cumsum(np.bincount(tails, minlength=len(ops)))])
    result = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(xadj.tolist(), heads[by_tail].tolist()),
        vweights=_integers(mean_compute(problem)[ops]).tolist(),
        eweights=np.concatenate([weight, weight])[by_tail].tolist(),
        tpwgts=tpwgts,
        recursive=recursive,
        options=pymetis.Options(seed=seed % 2**31),
    )
    return np.array(result.vertex_part, np.int64)


def _assignment(problem: Problem, parts: Sequence[int], devices: Sequence[int]) -> list[int]:
    """Return a device for each part number, where ``parts[i]`` goes to ``devices[i]``."""
    assignment = list(range(problem.devices))
    for part, device in zip(parts, devices, strict=True):
        assignment[part] = device
    return assignment


def _integers(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Scale weights to integers of at least 1 whose sum fits into METIS' 32-bit integers."""
    total = weights.sum()
    scaled = weights * (_UNITS / total) if total > 0 else weights
    return np.maximum(1, np.rint(scaled)).astype(np.int64)


def _greedy(problem: Problem, part: NDArray[np.int64]) -> list[int]:
    """Return a device for each part: by falling work, each part gets the device that can run most of its ops, fastest."""
    work = np.bincount(part, weights=mean_compute(problem), minlength=problem.devices)
    assignment = [-1] * problem.devices
    for p in np.argsort(-work, kind="stable").tolist():
        assignment[p] = next(d for d in fastest_devices(problem.compute[part == p]).tolist() if d not in assignment)
    return assignment
