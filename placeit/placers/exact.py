"""The optimal placement, for small problems."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.conflicts import cliques, cover
from placeit.core.errors import UsageError
from placeit.core.kernels import jit
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, is_over, option
from placeit.placers.list_scheduling import last_arrival
from placeit.placers.local_search import starts
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.tables import Tables, tables
from placeit.simulator.throughput import ThroughputCost, busy_kernel

__all__ = ["Exact", "alike"]

_CHUNK = 4096
_NO_TIME = "the time that it has"
_AT_ONCE = 200_000  # partial placements between two looks at the clock


@dataclass(frozen=True)
class Exact:
    """Branch and bound over all placements: the answer is optimal by the given cost function.

    Ops are placed in topological order. If the cost function is a simulator without noise, or the bound of the throughput,
    partial placements that cannot beat the best so far are cut off: by the work of each device and of those that conflict with
    it, by the mean work of all, by their critical path or, for the throughput, by what crosses each link. So are placements
    that differ from another by a swap of devices that are alike in everything. Any other cost function is asked about every
    feasible placement.

    The optimum is over placements, under the simulator's own queues; an order planned by hand may be shorter still (see the
    placer ``cp-sat``).
    """

    nodes: int = option(5_000_000, "partial placements to examine before giving up", least=0, most=10**15)

    def place(
        self,
        problem: Problem,
        cost: CostFunction,
        *,
        seed: int,  # noqa: ARG002
        evaluations: int | None,
        deadline: float | None = None,
    ) -> NDArray[np.int32]:
        """Return the optimal placement.

        Raises:
            UsageError: no proof within the limits, or before the deadline; beyond the limits, a cost function without bounds is
                not asked at all.
            InfeasibleError: the weights fit in no way that was found.
        """
        found = Incumbent(cost, evaluations)  # only all of them are an answer, so it has no deadline of its own
        capacity = isinstance(cost, ThroughputCost)
        bounded = capacity or (isinstance(cost, SimulatedCost) and cost.kernel_arguments is not None)
        search = _Search(problem, bounded, capacity, self.nodes, deadline)
        if bounded:
            found.offer(starts(problem))
            chunk = 32  # small at first: the bound improves soon
            while len(leaves := search.next(found.cost, chunk)):
                if len(leaves) > found.left:
                    raise _too_large(problem, f"{evaluations} evaluations")
                found.offer(leaves)
                chunk = min(2 * chunk, _CHUNK)
            return found.placement
        every: list[NDArray[np.int32]] = []
        while len(leaves := search.next(np.inf, _CHUNK)):
            every.append(leaves)
            if len(every) * _CHUNK - (_CHUNK - len(leaves)) > found.left:
                raise _too_large(problem, f"{evaluations} evaluations")
        for leaves in every:
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
    """The feasible placements of a problem, depth first, a chunk at a time."""

    def __init__(self, problem: Problem, bounded: bool, capacity: bool, nodes: int, deadline: float | None) -> None:
        self._problem = problem
        self._bounded = bounded
        self._alike = alike(problem) if bounded else np.arange(problem.devices)
        self._least = _least_tail(problem)
        self._tables, self._capacity = tables(problem), capacity
        self._cliques = cliques(problem.conflicts)
        covering = cover(problem.conflicts)
        self._share = covering.sum(axis=0) / len(covering)
        self._place = np.full(len(problem), -1, np.int32)
        self._finish = np.zeros(len(problem))
        self._limit, self._left, self._deadline = nodes, nodes, deadline
        self._depth_and_nodes = np.array([0, 0], np.int64)

    def next(self, bound: float, chunk: int) -> NDArray[np.int32]:
        """Return the next placements, ``int32[<= chunk, V]``, whose lower bound is below ``bound``; none if there are no more.

        Raises:
            UsageError: too many partial placements, or no time left.
        """
        problem = self._problem
        leaves = np.empty((chunk, len(problem)), np.int32)
        while True:
            if is_over(self._deadline):
                raise _too_large(problem, _NO_TIME)
            allowed = min(self._left, _AT_ONCE)
            self._depth_and_nodes[1] = allowed
            count = _descend(
                leaves,
                self._depth_and_nodes,
                self._tables,
                self._capacity,
                self._place,
                self._finish,
                bound if self._bounded else np.inf,
                self._least,
                self._alike,
                self._cliques,
                self._share,
                problem.order,
                problem.predecessors.ptr,
                problem.predecessors.edge,
                problem.edges,
                problem.edge_bytes,
                problem.compute,
                problem.bandwidth,
                problem.latency,
                problem.cut,
                problem.param_bytes,
                problem.memory,
            )
            self._left -= allowed - int(self._depth_and_nodes[1])
            if self._left <= 0:
                raise _too_large(problem, f"{self._limit} partial placements")
            if count or self._depth_and_nodes[0] < 0:
                return leaves[:count]


def _least_tail(problem: Problem) -> NDArray[np.float64]:
    """Least seconds from each op's end to the end of the graph, all transfers free: ``float64[V]``."""
    least = problem.compute.min(axis=1)
    tail = np.zeros(len(problem))
    for v in problem.order[::-1]:
        for e in problem.predecessors.edge[problem.predecessors.ptr[v] : problem.predecessors.ptr[v + 1]]:
            u = problem.edges[e, 0]
            tail[u] = max(tail[u], least[v] + tail[v])
    return tail


def alike(problem: Problem) -> NDArray[np.int64]:
    """Number of the first device that each device can be swapped with and nothing changes: ``int64[D]``."""
    first = np.arange(problem.devices)
    for b in range(problem.devices):
        for a in range(b):
            swap = np.arange(problem.devices)
            swap[[a, b]] = b, a
            if (
                np.array_equal(problem.compute[:, swap], problem.compute)
                and np.array_equal(problem.cut[:, swap], problem.cut)
                and np.array_equal(problem.memory[swap], problem.memory)
                and np.array_equal(problem.bandwidth[np.ix_(swap, swap)], problem.bandwidth)
                and np.array_equal(problem.latency[np.ix_(swap, swap)], problem.latency)
                and np.array_equal(problem.conflicts[np.ix_(swap, swap)], problem.conflicts)
            ):
                first[b] = first[a]
                break
    return first


@jit
def _descend(
    leaves: NDArray[np.int32],
    depth_and_nodes: NDArray[np.int64],
    tables: Tables,
    capacity: bool,
    place: NDArray[np.int32],
    finish: NDArray[np.float64],
    bound: float,
    tail: NDArray[np.float64],
    alike: NDArray[np.int64],
    cliques: NDArray[np.bool_],
    share: NDArray[np.float64],
    order: NDArray[np.int32],
    ptr: NDArray[np.int32],
    in_edges: NDArray[np.int32],
    edges: NDArray[np.int32],
    edge_bytes: NDArray[np.float64],
    compute: NDArray[np.float64],
    bandwidth: NDArray[np.float64],
    latency: NDArray[np.float64],
    cut: NDArray[np.float64],
    param_bytes: NDArray[np.float64],
    memory: NDArray[np.float64],
) -> int:
    # place[order[:depth]] is the partial placement; place[order[depth]] is the device tried last there, -1 for none. The
    # search stops when the chunk is full and goes on from the same state at the next call.
    ops, devices = compute.shape
    busy = np.empty(devices + len(tables.clique) + devices * devices)
    load = np.zeros(devices)
    used = np.zeros(devices)
    members = np.zeros(devices, np.int64)
    # no placement takes less than the mean of the loads of all cliques; share is that of one second on each device
    rest = np.zeros(ops + 1)  # least part in that of the ops from a depth on
    for i in range(ops - 1, -1, -1):
        least = np.inf
        for d in range(devices):
            least = min(least, compute[order[i], d] * share[d])
        rest[i] = rest[i + 1] + least
    depth = depth_and_nodes[0]
    for i in range(max(0, depth)):
        v = order[i]
        load[place[v]] += compute[v, place[v]]
        used[place[v]] += param_bytes[v]
        members[place[v]] += 1
    count = 0
    while depth >= 0 and count < len(leaves) and depth_and_nodes[1] > 0:
        if depth == ops:
            leaves[count] = place
            count += 1
            depth -= 1
            d = place[order[depth]]
            load[d] -= compute[order[depth], d]
            used[d] -= param_bytes[order[depth]]
            members[d] -= 1
            continue
        v = order[depth]
        moved = False
        for d in range(place[v] + 1, devices):
            if compute[v, d] == np.inf or used[d] + param_bytes[v] > memory[d]:
                continue
            if members[d] == 0:
                first = True  # of the empty devices that are alike only the first is worth trying
                for other in range(d):
                    if alike[other] == alike[d] and members[other] == 0:
                        first = False
                if not first:
                    continue
            ready = last_arrival(v, d, 0.0, place, finish, ptr, in_edges, edges, edge_bytes, bandwidth, latency, cut)
            finish[v] = ready + compute[v, d]
            work = compute[v, d] * share[d] + rest[depth + 1]
            for other in range(devices):
                work += load[other] * share[other]
            longest = work
            if capacity:  # what is placed keeps devices and links busy, wherever the rest goes
                before, place[v] = place[v], d
                longest = max(longest, busy_kernel(tables, place, busy))
                place[v] = before
            else:
                longest = max(longest, finish[v] + tail[v])
            for k in range(len(cliques)):
                if cliques[k, d]:
                    together = compute[v, d]
                    for other in range(devices):
                        if cliques[k, other]:
                            together += load[other]
                    longest = max(longest, together)
            depth_and_nodes[1] -= 1
            if longest * (1.0 - 1e-9) >= bound:
                continue  # rounding must not cut off the optimum
            place[v] = d
            load[d] += compute[v, d]
            used[d] += param_bytes[v]
            members[d] += 1
            moved = True
            break
        if moved:
            depth += 1
            if depth < ops:
                place[order[depth]] = -1
        else:
            place[v] = -1
            depth -= 1
            if depth >= 0:
                d = place[order[depth]]
                load[d] -= compute[order[depth], d]
                used[d] -= param_bytes[order[depth]]
                members[d] -= 1
    depth_and_nodes[0] = depth
    return count
