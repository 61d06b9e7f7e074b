"""A rule-based fuser in the manner of IBM Streams: parts of about the same number of ops, fused along heavy edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import UsageError
from placeit.core.graph import distinct_rows
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import best, option
from placeit.placers.feasibility import repair
from placeit.placers.list_scheduling import fastest_devices, mean_compute

__all__ = ["Fuser", "fuse"]


def fuse(problem: Problem, parts: int) -> NDArray[np.int32]:
    """Fuse ops into at most ``parts`` parts of about the same number of ops, regardless of their compute times.

    The two ends of the heaviest edge (by bytes; the first in a tie) are fused if the new part does not exceed its share, until
    there is no such edge. The share is the number of ops divided by ``parts``, rounded up. Then, while there are too many
    parts, the two smallest are fused.

    The rules of the fuser in IBM Streams are not published. According to Ni et al. (2020, section 4.1) they are simple, balance
    the number of operators and reduce the edge cut.

    Args:
        problem: the problem whose ops to divide. Feasibility and memory are ignored.
        parts: maximum number of parts, at least 1.

    Returns:
        ``int32[V]``, the number of each op's part; parts are numbered by falling work.

    Raises:
        UsageError: ``parts`` is less than 1.
    """
    if parts < 1:
        raise UsageError(f"A graph is divided into at least one part; got parts={parts}.")
    part = np.arange(len(problem))
    max_size = -(-len(problem) // parts)
    for e in np.argsort(-problem.edge_bytes, kind="stable").tolist():
        a, b = part[problem.edges[e]]
        if a != b and np.count_nonzero((part == a) | (part == b)) <= max_size:
            part[part == b] = a
    while True:
        numbers, sizes = np.unique(part, return_counts=True)
        if len(numbers) <= parts:
            break
        smallest, second = numbers[np.argsort(sizes, kind="stable")[:2]]
        part[part == second] = smallest
    work = np.bincount(np.searchsorted(numbers, part), mean_compute(problem))
    rank = np.argsort(np.argsort(-work, kind="stable")).astype(np.int32)
    return rank[np.searchsorted(numbers, part)]


@dataclass(frozen=True)
class Fuser:
    """Parts of equally many ops, along heavy edges, in the manner of IBM Streams.

    The part with most work goes to the device that computes the graph fastest.
    """

    parts: int = option(0, "parts; 0 to try each number up to the number of devices", least=0, most=10_000)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best placement by cost; the largest numbers of parts are valued first. Raises InfeasibleError."""
        max_parts = min(problem.devices, len(problem))
        counts = [min(self.parts, max_parts)] if self.parts else range(max_parts, 0, -1)
        by_speed = fastest_devices(problem.compute)
        candidates = np.array([repair(problem, by_speed[fuse(problem, count)]) for count in counts])
        return best(cost, distinct_rows(candidates)[0], evaluations, deadline)
