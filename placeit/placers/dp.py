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

_MAX_STATES = 512  # combinations of numbers of devices of each class
_MAX_STEPS = 1e8  # steps of the dynamic program over one order
_MAX_CUTS = 1024  # positions at which an order may be cut


@dataclass(frozen=True)
class Dp:
    """Best contiguous splits of several topological orders: each device gets one run of ops; the best placement by cost wins.

    Source: PipeDream (Narayanan et al., SOSP 2019), and DPL of Tarnawski et al., Efficient Algorithms for Device Placement of
    DNN Graph Operators (NeurIPS 2020), for devices of several classes, with memory and the cost of cut tensors. If the cost
    function is a bound of the throughput, a split minimises the seconds of its busiest device or link. Otherwise it minimises
    the seconds of one request: the sum over all devices and transfers.

    Differs from the papers: stages are not replicated; many orders of the graph are tried instead of one; orders of more than
    1,024 ops are cut only where few bytes cross; if there are many classes of devices, similar classes are merged; all links
    have the mean latency and bandwidth, and everything that enters a device counts as one link's load.
    """

    orders: int = option(40, "topological orders to split, unless the caller sets a limit", least=1, most=10**6)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best split by cost; HEFT's placement if the weights fit in no split that was found.

        Raises:
            InfeasibleError: no feasible placement is found.
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
    """Yield the best contiguous split of each of several topological orders, ``int32[V]``; skip orders without a feasible one.

    Args:
        problem: the problem.
        seed: seed of the random orders.
        orders: maximum number of orders to split.
        busiest: whether a split minimises the seconds of its busiest device, else the seconds of one request.
        deadline: time by :func:`placeit.core.clock.now` at which to stop; None for no limit.
    """
    kinds, states = _classes(problem)
    max_cuts = min(_MAX_CUTS, max(2, int((2 * _MAX_STEPS / (states * (kinds.max() + 1))) ** 0.5)))
    cost = _core.SplitCost.busiest if busiest else _core.SplitCost.sum
    tables = compiled(problem)
    for order in islice(_orders(problem, np.random.default_rng(seed)), orders):
        placement = np.empty(len(problem), np.int32)
        if np.isfinite(_core.contiguous_split(tables, order, _cuts(problem, order, max_cuts), kinds, cost, placement)):
            yield placement
        if is_over(deadline):
            return


def _classes(problem: Problem) -> tuple[NDArray[np.int32], int]:
    """Return the class of each device, ``int32[D]``, and the number of combinations of device counts per class.

    Devices of a class have equal costs. If there are too many combinations, the classes of the most similar speeds are merged.
    """
    usable = np.isfinite(problem.compute)
    work = np.where(usable, problem.compute, 0.0).sum(axis=0) + np.where(usable, 0.0, 1e9).sum(axis=0)
    alike: dict[bytes, list[int]] = {}
    for d in range(problem.devices):
        costs = (problem.compute[:, d], problem.cut[:, d], problem.memory[d : d + 1])
        alike.setdefault(b"".join(cost.tobytes() for cost in costs), []).append(d)
    classes = sorted(alike.values(), key=lambda devices: work[devices[0]])
    while (states := int(np.prod([len(devices) + 1.0 for devices in classes]))) > _MAX_STATES and len(classes) > 1:
        gaps = [work[after[0]] - work[before[0]] for before, after in pairwise(classes)]
        closest = int(np.argmin(gaps))
        classes[closest : closest + 2] = [classes[closest] + classes[closest + 1]]
    kinds = np.empty(problem.devices, np.int32)
    for k, devices in enumerate(sorted(classes, key=min)):
        kinds[devices] = k
    return kinds, states


def _cuts(problem: Problem, order: NDArray[np.int32], max_cuts: int) -> NDArray[np.int32]:
    """Return the positions at which an order may be cut, ascending, both ends included: where the fewest bytes cross."""
    ops = len(order)
    if ops < max_cuts:
        return np.arange(ops + 1, dtype=np.int32)
    position = np.argsort(order)
    crossing = np.zeros(ops + 1)
    np.add.at(crossing, position[problem.edges[:, 0]] + 1, problem.edge_bytes)
    np.subtract.at(crossing, position[problem.edges[:, 1]] + 1, problem.edge_bytes)
    crossing = crossing.cumsum()
    windows = pairwise(np.linspace(1, ops, max_cuts - 1, dtype=np.int64))
    inner = [low + int(crossing[low:high].argmin()) for low, high in windows if low < high]
    return np.array([0, *inner, ops], np.int32)


def _orders(problem: Problem, rng: np.random.Generator) -> Iterator[NDArray[np.int32]]:
    """Yield endless topological orders, ``int32[V]``: the problem's, depth-first ones, then random depth-first ones."""
    ops = len(problem)
    after: list[list[int]] = [[] for _ in range(ops)]
    before: list[list[int]] = [[] for _ in range(ops)]
    for tail, head in problem.edges.tolist():
        after[tail].append(head)
        before[head].append(tail)
    fixed: tuple[Callable[[list[int]], list[int]], ...] = (lambda nodes: nodes, lambda nodes: nodes[::-1])
    for order in (problem.order.tolist(), *(_depth_first(after, before, arrange) for arrange in fixed)):
        yield np.array(_sources_late(order, after, before), np.int32)
        yield np.array(order, np.int32)
    while True:
        order = _depth_first(after, before, lambda nodes: rng.permutation(nodes).tolist())
        yield np.array(_sources_late(order, after, before), np.int32)


def _depth_first(after: list[list[int]], before: list[list[int]], arrange: Callable[[list[int]], list[int]]) -> list[int]:
    """Return the reverse postorder of a depth-first search; ``arrange`` orders the consumers of an op."""
    seen, postorder = [False] * len(after), list[int]()
    for root in arrange([v for v, producers in enumerate(before) if not producers]):
        if seen[root]:
            continue
        seen[root] = True
        path = [(root, iter(arrange(after[root])))]
        while path:
            v, heads = path[-1]
            for head in heads:
                if not seen[head]:
                    seen[head] = True
                    path.append((head, iter(arrange(after[head]))))
                    break
            else:
                postorder.append(v)
                path.pop()
    return postorder[::-1]


def _sources_late(order: list[int], after: list[list[int]], before: list[list[int]]) -> list[int]:
    """Return the order with each op without producers, such as a weight, right before its first consumer."""
    position = {v: i for i, v in enumerate(order)}
    key = {v: float(i) for v, i in position.items()}
    for v, producers in enumerate(before):
        if not producers and after[v]:
            key[v] = min(position[w] for w in after[v]) - 0.5
    return sorted(order, key=lambda v: (key[v], position[v]))
