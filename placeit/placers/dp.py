"""Optimal contiguous splits of topological orders by dynamic programming."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, is_over, option
from placeit.placers.heft import Heft
from placeit.placers.list_scheduling import links_of
from placeit.simulator.tables import compiled
from placeit.simulator.throughput_bound import ThroughputCost

__all__ = ["Dp", "splits"]

_STATES = 512  # most numbers of devices of each class that are combined
_STEPS = 1e8  # most steps of the dynamic program over one order
_BORDERS = 1024  # most positions of an order at which it can be cut


@dataclass(frozen=True)
class Dp:
    """Best contiguous splits of several topological orders: each device gets one run of ops; the best placement by cost wins.

    Source: PipeDream (Narayanan et al., SOSP 2019), and DPL of Tarnawski et al., Efficient Algorithms for Device Placement of
    DNN Graph Operators (NeurIPS 2020), for devices of several classes, with memory and the cost of cut tensors. With a bound
    of throughput as the cost function, a split minimises the seconds of its busiest device or link, else the sum of the seconds
    of all devices and of transfers, which one request needs.

    Differs from the papers: stages are not replicated; the best of many orders of the graph is taken, not one order; orders of
    more than 1,024 ops are cut only where few bytes cross; many classes of devices are joined until there are few; and links
    count by their mean, for the busiest one as if all that enters a device came over one.
    """

    orders: int = option(40, "topological orders to split, unless the caller sets a limit", least=1, most=10**6)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best split by cost; HEFT's placement if the weights fit in no split that was found.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        count = self.orders if evaluations is None else min(self.orders, max(1, evaluations))
        busiest = isinstance(cost, ThroughputCost)
        found = Incumbent(cost, 0 if count == 1 else evaluations, deadline)
        for split in splits(problem, seed, count, busiest=busiest, deadline=deadline):
            found.offer(split[None])
        if hasattr(found, "placement"):
            return found.placement
        return Heft().plan(problem, links_of(cost)).placement


def splits(
    problem: Problem, seed: int, orders: int, *, busiest: bool, deadline: float | None = None
) -> Iterator[NDArray[np.int32]]:
    """Yield the best contiguous split of one topological order after the other, ``int32[V]``, if it has one that can run.

    Args:
        problem: the problem.
        seed: of random orders.
        orders: most orders to split.
        busiest: whether a split minimises the seconds of its busiest device, else the seconds of one request.
        deadline: when to stop, by :func:`placeit.core.clock.now`; None for no limit.
    """
    kinds, states = _classes(problem)
    most = min(_BORDERS, max(2, int((2 * _STEPS / (states * (kinds.max() + 1))) ** 0.5)))
    cost = _core.SplitCost.busiest if busiest else _core.SplitCost.sum
    tables = compiled(problem)
    for order in islice(_orders(problem, np.random.default_rng(seed)), orders):
        place = np.empty(len(problem), np.int32)
        if np.isfinite(_core.contiguous_split(tables, order, _borders(problem, order, most), kinds, cost, place)):
            yield place
        if is_over(deadline):
            return


def _classes(problem: Problem) -> tuple[NDArray[np.int32], int]:
    """Return the class of each device, ``int32[D]``, and in how many ways numbers of devices of each class combine.

    Devices are alike if all costs are equal. If there are too many classes, the ones of the most similar speeds are joined.
    """
    usable = np.isfinite(problem.compute)
    work = np.where(usable, problem.compute, 0.0).sum(axis=0) + np.where(usable, 0.0, 1e9).sum(axis=0)
    alike: dict[bytes, list[int]] = {}
    for d in range(problem.devices):
        costs = (problem.compute[:, d], problem.cut[:, d], problem.memory[d : d + 1])
        alike.setdefault(b"".join(cost.tobytes() for cost in costs), []).append(d)
    classes = sorted(alike.values(), key=lambda devices: work[devices[0]])
    while (states := int(np.prod([len(devices) + 1.0 for devices in classes]))) > _STATES and len(classes) > 1:
        gaps = [work[after[0]] - work[before[0]] for before, after in pairwise(classes)]
        at = int(np.argmin(gaps))
        classes[at : at + 2] = [classes[at] + classes[at + 1]]
    kinds = np.empty(problem.devices, np.int32)
    for k, devices in enumerate(sorted(classes, key=min)):
        kinds[devices] = k
    return kinds, states


def _borders(problem: Problem, order: NDArray[np.int32], most: int) -> NDArray[np.int32]:
    """Return the positions at which an order may be cut, ascending, both ends included: where the fewest bytes cross."""
    ops = len(order)
    if ops < most:
        return np.arange(ops + 1, dtype=np.int32)
    position = np.empty(ops, np.int64)
    position[order] = np.arange(ops)
    crossing = np.zeros(ops + 1)
    np.add.at(crossing, position[problem.edges[:, 0]] + 1, problem.edge_bytes)
    np.subtract.at(crossing, position[problem.edges[:, 1]] + 1, problem.edge_bytes)
    crossing = crossing.cumsum()
    windows = pairwise(np.linspace(1, ops, most - 1, dtype=np.int64))
    inner = [low + int(crossing[low:high].argmin()) for low, high in windows if low < high]
    return np.array([0, *inner, ops], np.int32)


def _orders(problem: Problem, rng: np.random.Generator) -> Iterator[NDArray[np.int32]]:
    """Yield topological orders, ``int32[V]``, without end: the problem's, depth-first ones, then random depth-first ones."""
    ops = len(problem)
    after: list[list[int]] = [[] for _ in range(ops)]
    before: list[list[int]] = [[] for _ in range(ops)]
    for tail, head in problem.edges.tolist():
        after[tail].append(head)
        before[head].append(tail)
    plain: tuple[Callable[[list[int]], list[int]], ...] = (lambda nodes: nodes, lambda nodes: nodes[::-1])
    for order in (problem.order.tolist(), *(_depth_first(after, before, arranged) for arranged in plain)):
        yield np.array(_sources_late(order, after, before), np.int32)
        yield np.array(order, np.int32)
    while True:
        order = _depth_first(after, before, lambda nodes: rng.permutation(nodes).tolist())
        yield np.array(_sources_late(order, after, before), np.int32)


def _depth_first(after: list[list[int]], before: list[list[int]], arranged: Callable[[list[int]], list[int]]) -> list[int]:
    """Return the reverse postorder of a depth-first search, which visits the consumers of an op as they are arranged."""
    seen, found = [False] * len(after), list[int]()
    for root in arranged([v for v, producers in enumerate(before) if not producers]):
        if seen[root]:
            continue
        seen[root] = True
        path = [(root, iter(arranged(after[root])))]
        while path:
            v, heads = path[-1]
            for head in heads:
                if not seen[head]:
                    seen[head] = True
                    path.append((head, iter(arranged(after[head]))))
                    break
            else:
                found.append(v)
                path.pop()
    return found[::-1]


def _sources_late(order: list[int], after: list[list[int]], before: list[list[int]]) -> list[int]:
    """Move ops without producers, such as weights, right before their first consumer."""
    position = {v: i for i, v in enumerate(order)}
    at = {v: float(i) for v, i in position.items()}
    for v, producers in enumerate(before):
        if not producers and after[v]:
            at[v] = min(position[w] for w in after[v]) - 0.5
    return sorted(order, key=lambda v: (at[v], position[v]))
