"""A fuser by rules, in the manner of IBM Streams: processing elements of about equally many ops, along heavy edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import UsageError
from placeit.core.graph import unique_rows
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import best, option
from placeit.placers.feasibility import repair
from placeit.placers.list_scheduling import mean_compute

__all__ = ["Fuser", "fuse"]


def fuse(problem: Problem, parts: int) -> NDArray[np.int32]:
    """Fuse ops into at most ``parts`` parts of about equally many ops, however long these take.

    The heaviest edge (by bytes; of equals the first) between two parts whose ops together do not exceed a part's share fuses
    them, until there is no such edge. The share is the number of ops divided by ``parts``, rounded up. Then, while there are
    too many parts, the two smallest are fused.

    The rules of the fuser in IBM Streams are not published; Ni et al. (2020, section 4.1) say that they are simple, balance the
    number of operators and reduce the edge cut.

    Args:
        problem: the problem whose ops to divide; feasibility and memory do not count.
        parts: most parts, at least 1.

    Returns:
        ``int32[V]``, the number of each op's part; the part with most work has number 0, and so on.

    Raises:
        UsageError: ``parts`` is less than 1.
    """
    if parts < 1:
        raise UsageError(f"A graph is divided into at least one part; got parts={parts}.")
    part = np.arange(len(problem))
    room = -(-len(problem) // parts)
    for e in np.argsort(-problem.edge_bytes, kind="stable").tolist():
        a, b = part[problem.edges[e]]
        if a != b and np.count_nonzero((part == a) | (part == b)) <= room:
            part[part == b] = a
    while True:
        numbers, sizes = np.unique(part, return_counts=True)
        if len(numbers) <= parts:
            break
        small, smaller = numbers[np.argsort(sizes, kind="stable")[1::-1]]
        part[part == small] = smaller
    work = np.bincount(np.searchsorted(numbers, part), mean_compute(problem))
    rank = np.empty(len(numbers), np.int32)
    rank[np.argsort(-work, kind="stable")] = np.arange(len(numbers))
    fused: NDArray[np.int32] = rank[np.searchsorted(numbers, part)]
    return fused


@dataclass(frozen=True)
class Fuser:
    """Parts of equally many ops, along heavy edges, in the manner of IBM Streams.

    The part with most work goes to the device that computes the graph fastest.
    """

    parts: int = option(0, "parts; 0 to try each number up to the number of devices", least=0, most=10_000)

    def place(
        self,
        problem: Problem,
        cost: CostFunction,
        *,
        seed: int,  # noqa: ARG002
        evaluations: int | None,
        deadline: float | None = None,
    ) -> NDArray[np.int32]:
        """Return the best placement by cost; if not all numbers of parts may be valued, most parts come first.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        most = min(problem.devices, len(problem))
        numbers = [min(self.parts, most)] if self.parts else range(most, 0, -1)
        missing = (~problem.feasible).sum(axis=0)
        fast = np.lexsort((np.where(problem.feasible, problem.compute, 0.0).sum(axis=0), missing)).astype(np.int32)
        candidates = np.array([repair(problem, fast[fuse(problem, number)]) for number in numbers])
        different = candidates[np.sort(np.unique(unique_rows(candidates)[1], return_index=True)[1])]
        return best(cost, different, evaluations, deadline)
