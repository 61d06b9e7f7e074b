"""The optimal placement of small problems."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.conflicts import cliques, cover
from placeit.core.errors import UsageError
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, is_over, option
from placeit.placers.list_scheduling import links_of
from placeit.placers.local_search import starts
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.tables import compiled
from placeit.simulator.throughput_bound import ThroughputCost

__all__ = ["Exact", "alike"]

_CHUNK = 4096  # placements that are valued in one call
_NO_TIME = "the time that it has"
_CHECK_EVERY = 200_000  # partial placements between two checks of the deadline


@dataclass(frozen=True)
class Exact:
    """Branch and bound over all placements: the answer is optimal by the given cost function.

    Ops are placed in topological order. If the cost function is a simulator without noise, or the bound of the throughput,
    partial placements that cannot beat the best so far are pruned. Their bounds are the work of each device and of the devices
    that conflict with it, the mean work of all devices, and the critical path or, for the throughput, the transfers over each
    link. Placements that differ from another only by a swap of equal devices are pruned, too. With any other cost function,
    every feasible placement is valued.

    The answer is optimal among placements that run with the simulator's queues; a schedule with a planned order may be shorter
    (see the placer ``cp-sat``).
    """

    nodes: int = option(5_000_000, "partial placements to examine before giving up", least=0, most=10**15)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the optimal placement.

        Raises:
            UsageError: the optimum is not proven within the limits or before the deadline. A cost function without bounds is
                not called at all if there are more placements than the limits allow.
            InfeasibleError: no feasible placement is found.
        """
        found = Incumbent(cost, evaluations)  # no deadline: only a complete search is an answer
        capacity = isinstance(cost, ThroughputCost)
        bounded = capacity or (isinstance(cost, SimulatedCost) and cost.model is not None)
        search = _Search(problem, bounded, capacity, self.nodes, deadline)
        if bounded:
            found.offer(starts(problem, links_of(cost)))
            chunk = 32  # small at first, since the bound improves quickly
            while len(leaves := search.next(found.cost, chunk)):
                if len(leaves) > found.left:
                    raise _too_large(problem, f"{evaluations} evaluations")
                found.offer(leaves)
                chunk = min(2 * chunk, _CHUNK)
            return found.placement
        chunks: list[NDArray[np.int32]] = []
        while len(leaves := search.next(np.inf, _CHUNK)):
            chunks.append(leaves)
            if sum(map(len, chunks)) > found.left:
                raise _too_large(problem, f"{evaluations} evaluations")
        for leaves in chunks:
            if is_over(deadline):
                raise _too_large(problem, _NO_TIME)
            found.offer(leaves)
        return found.placement


def _too_large(problem: Problem, limit: str) -> UsageError:
    return UsageError(
        f"'exact' cannot find the best placement of {len(problem)} ops on {problem.devices} devices for certain within "
        f"{limit}. Allow more, or use 'annealing'."
    )


class _Search:
    """A depth-first search that yields the feasible placements of a problem in chunks."""

    def __init__(self, problem: Problem, bounded: bool, capacity: bool, nodes: int, deadline: float | None) -> None:
        self._problem, self._bounded = problem, bounded
        covering = cover(problem.conflicts)
        self._search = _core.ExactSearch(
            compiled(problem),
            tail=_min_tail(problem),
            alike=(alike(problem) if bounded else np.arange(problem.devices)).astype(np.int32),
            cliques=cliques(problem.conflicts),
            share=covering.sum(axis=0) / len(covering),
            capacity=capacity,
        )
        self._limit, self._deadline = nodes, deadline
        self._left = nodes + 1  # after the last one, the search is known not to be over

    def next(self, bound: float, chunk: int) -> NDArray[np.int32]:
        """Return the next placements, ``int32[<= chunk, V]``, whose lower bound is below ``bound``; no rows at the end.

        Raises:
            UsageError: too many partial placements, or no time left.
        """
        leaves = np.empty((chunk, len(self._problem)), np.int32)
        while True:
            if is_over(self._deadline):
                raise _too_large(self._problem, _NO_TIME)
            count, examined = self._search.next(leaves, bound if self._bounded else np.inf, min(self._left, _CHECK_EVERY))
            self._left -= examined
            if self._left <= 0:
                raise _too_large(self._problem, f"{self._limit} partial placements")
            if count or self._search.over:
                return leaves[:count]


def _min_tail(problem: Problem) -> NDArray[np.float64]:
    """Return the least seconds from each op's end to the end of the graph, with free transfers, ``float64[V]``."""
    least = problem.compute.min(axis=1)
    tail = np.zeros(len(problem))
    for v in problem.order[::-1].tolist():
        heads = problem.edges[problem.successors.row(v), 1]
        tail[v] = (least[heads] + tail[heads]).max(initial=0.0)
    return tail


def alike(problem: Problem) -> NDArray[np.int64]:
    """Return for each device the first device that is equal in all costs, links, memory and conflicts, ``int64[D]``."""
    first = np.arange(problem.devices)
    for b in range(problem.devices):
        for a in range(b):
            swap = np.arange(problem.devices)
            swap[[a, b]] = b, a
            by_device = (problem.compute, problem.cut, problem.memory[None])
            by_link = (problem.bandwidth, problem.latency, problem.conflicts)
            equal = all(np.array_equal(costs[:, swap], costs) for costs in by_device)
            if equal and all(np.array_equal(costs[np.ix_(swap, swap)], costs) for costs in by_link):
                first[b] = first[a]
                break
    return first
