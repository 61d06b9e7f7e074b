"""Shared parts of the list schedulers: mean costs, ranks, and insertion-based earliest finish times, compiled.

A list scheduler is an order of the ops and a rule for devices. All of them here place one op after the other, in an order
that respects precedence, each on the device where it finishes first, in the earliest idle gap that holds it (Topcuoglu et
al., "Performance-effective and low-complexity task scheduling for heterogeneous computing", 2002, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit
from placeit.core.problem import Problem
from placeit.placers.feasibility import repair
from placeit.simulator.queues import inline
from placeit.simulator.tables import conflict_table

__all__ = [
    "ListSchedule",
    "downward_ranks",
    "last_arrival",
    "list_schedule",
    "mean_comm",
    "mean_compute",
    "pinned",
    "priority_order",
    "upward_ranks",
]


@dataclass(frozen=True, eq=False)
class ListSchedule:
    """A placement with the schedule that a list scheduler planned for it.

    Attributes:
        placement: ``int32[V]``.
        start: ``float64[V]``, seconds.
        finish: ``float64[V]``, seconds.
        makespan: seconds.
        priority: ``float64[V]``, larger runs earlier; the ops of each device in falling priority are in planned order.
    """

    placement: NDArray[np.int32]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    makespan: float
    priority: NDArray[np.float64]


def mean_compute(problem: Problem) -> NDArray[np.float64]:
    """Mean seconds of each op over the devices that can run it: ``float64[V]``."""
    feasible = problem.feasible
    mean: NDArray[np.float64] = np.where(feasible, problem.compute, 0.0).sum(axis=1) / feasible.sum(axis=1)
    return mean


def mean_comm(problem: Problem) -> NDArray[np.float64]:
    """Mean seconds to move each edge's tensor between the devices where its ends can run: ``float64[E]``.

    The mean is over all pairs of a device that can run the producer and one that can run the consumer; a pair of equal
    devices counts, with zero. Cut costs are part of a transfer, as in :meth:`Problem.comm`.
    """
    src, dst = problem.edges[:, 0], problem.edges[:, 1]
    able = problem.feasible.astype(np.float64)
    can_send, can_receive = able[src], able[dst]
    # sums over pairs, of matrices that are zero on the diagonal: F[u] @ matrix @ F[v]
    latency = ((able @ problem.latency)[src] * can_receive).sum(axis=1)
    seconds_per_byte = ((able @ (1.0 / problem.bandwidth))[src] * can_receive).sum(axis=1)
    senders, receivers = can_send.sum(axis=1), can_receive.sum(axis=1)
    cut = problem.cut * (can_send * (receivers[:, None] - can_receive) + can_receive * (senders[:, None] - can_send))
    mean: NDArray[np.float64] = (latency + problem.edge_bytes * seconds_per_byte + cut.sum(axis=1)) / (senders * receivers)
    return mean


def upward_ranks(problem: Problem) -> NDArray[np.float64]:
    """Rank of each op, seconds: mean length of the longest path from its start to an exit (Eq. 8 of HEFT)."""
    successors = problem.successors
    rank, edges = np.empty(len(problem)), problem.edges
    _upward(rank, problem.order, successors.ptr, successors.edge, edges, mean_compute(problem), mean_comm(problem))
    return rank


def downward_ranks(problem: Problem) -> NDArray[np.float64]:
    """Rank of each op, seconds: mean length of the longest path from an entry to its start (Eq. 10 of CPOP)."""
    predecessors = problem.predecessors
    rank, edges = np.empty(len(problem)), problem.edges
    _downward(rank, problem.order, predecessors.ptr, predecessors.edge, edges, mean_compute(problem), mean_comm(problem))
    return rank


def priority_order(
    problem: Problem, priority: NDArray[np.float64], ties: NDArray[np.float64] | None = None
) -> NDArray[np.int32]:
    """Order in which ops leave a ready list by highest priority first: ``int32[V]``.

    Args:
        problem: the problem.
        priority: ``float64[V]``.
        ties: ``float64[V]``, the smaller goes first among equal priorities; the problem's topological order if None.
    """
    if ties is None:
        ties = np.empty(len(problem))
        ties[problem.order] = np.arange(len(problem))
    by_priority = np.lexsort((ties, -priority)).astype(np.int32)
    waiting = np.bincount(problem.edges[:, 1], minlength=len(problem)).astype(np.int32)
    successors = problem.successors
    order = np.empty(len(problem), np.int32)
    _ready_list(order, by_priority, waiting, successors.ptr, successors.edge, problem.edges)
    return order


def list_schedule(problem: Problem, order: NDArray[np.int32], compute: NDArray[np.float64] | None = None) -> ListSchedule:
    """Place ops one by one where each finishes first, inserting into idle gaps, within memory.

    A device is idle while neither it nor one that conflicts with it runs anything. Links are without contention. Where weights
    run out of room the devices are chosen as if memory were unbounded, the placement is repaired, and the schedule is planned
    again for it.

    Args:
        problem: the problem.
        order: ``int32[V]``, respects precedence.
        compute: ``float64[V, D]`` to use in place of the problem's, with more ``inf`` to forbid devices.

    Raises:
        InfeasibleError: the weights fit in no way that was found.
    """
    compute = problem.compute if compute is None else compute
    placement, start, finish, fits = _schedule(problem, order, compute, problem.memory)
    if not fits:
        unbounded = np.full(problem.devices, np.inf)
        placement, *_ = _schedule(problem, order, compute, unbounded)
        placement, start, finish, _ = _schedule(problem, order, pinned(problem, repair(problem, placement)), unbounded)
    turn = np.empty(len(problem))
    turn[order] = np.arange(len(problem))
    priority = np.empty(len(problem))
    # by start, then finish (an op of no duration goes before the one that starts with it), then order of planning
    priority[np.lexsort((turn, finish, start))] = np.arange(len(problem), 0, -1)
    return ListSchedule(placement, start, finish, float(finish.max()), priority)


def pinned(problem: Problem, placement: NDArray[np.int32]) -> NDArray[np.float64]:
    """The problem's ``compute`` with only one device left for each op: ``float64[V, D]``."""
    compute = np.full_like(problem.compute, np.inf)
    rows = np.arange(len(problem))
    compute[rows, placement] = problem.compute[rows, placement]
    return compute


def _schedule(
    problem: Problem, order: NDArray[np.int32], compute: NDArray[np.float64], memory: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64], bool]:
    predecessors = problem.predecessors
    placement, start, finish = np.full(len(problem), -1, np.int32), np.zeros(len(problem)), np.zeros(len(problem))
    fits = _insertion_schedule(
        placement,
        start,
        finish,
        order,
        compute.copy(),  # writable: to numba a read-only array is another type, to be compiled for again
        predecessors.ptr,
        predecessors.edge,
        problem.edges,
        problem.edge_bytes,
        problem.bandwidth,
        problem.latency,
        problem.cut,
        problem.param_bytes,
        memory.copy(),
        conflict_table(problem.conflicts),
    )
    return placement, start, finish, fits


@jit
def _upward(
    rank: NDArray[np.float64],
    order: NDArray[np.int32],
    ptr: NDArray[np.int32],
    out_edges: NDArray[np.int32],
    edges: NDArray[np.int32],
    work: NDArray[np.float64],
    comm: NDArray[np.float64],
) -> None:
    for i in range(len(order) - 1, -1, -1):
        v = order[i]
        longest = 0.0
        for k in range(ptr[v], ptr[v + 1]):
            e = out_edges[k]
            longest = max(longest, comm[e] + rank[edges[e, 1]])
        rank[v] = work[v] + longest


@jit
def _downward(
    rank: NDArray[np.float64],
    order: NDArray[np.int32],
    ptr: NDArray[np.int32],
    in_edges: NDArray[np.int32],
    edges: NDArray[np.int32],
    work: NDArray[np.float64],
    comm: NDArray[np.float64],
) -> None:
    rank[:] = 0.0
    for v in order:
        for k in range(ptr[v], ptr[v + 1]):
            e = in_edges[k]
            u = edges[e, 0]
            rank[v] = max(rank[v], rank[u] + work[u] + comm[e])


@jit
def _ready_list(
    order: NDArray[np.int32],
    by_priority: NDArray[np.int32],
    waiting: NDArray[np.int32],
    ptr: NDArray[np.int32],
    out_edges: NDArray[np.int32],
    edges: NDArray[np.int32],
) -> None:
    # a binary heap of places in by_priority: the smallest place is the highest priority
    ops = len(by_priority)
    place = np.empty(ops, np.int32)
    for i in range(ops):
        place[by_priority[i]] = i
    heap = np.empty(ops, np.int32)
    size = 0
    for v in by_priority:
        if waiting[v] == 0:
            heap[size] = place[v]  # appended in rising order, which is a heap
            size += 1
    for i in range(ops):
        v = by_priority[heap[0]]
        order[i] = v
        size -= 1
        last = heap[size]
        hole = 0
        while 2 * hole + 1 < size:
            child = 2 * hole + 1
            if child + 1 < size and heap[child + 1] < heap[child]:
                child += 1
            if heap[child] >= last:
                break
            heap[hole] = heap[child]
            hole = child
        heap[hole] = last
        for k in range(ptr[v], ptr[v + 1]):
            w = edges[out_edges[k], 1]
            waiting[w] -= 1
            if waiting[w] == 0:
                hole = size
                size += 1
                while hole > 0 and heap[(hole - 1) // 2] > place[w]:
                    heap[hole] = heap[(hole - 1) // 2]
                    hole = (hole - 1) // 2
                heap[hole] = place[w]


@jit
def _earliest_start(
    begin: NDArray[np.float64], end: NDArray[np.float64], count: int, ready: float, duration: float
) -> tuple[float, int]:
    """Earliest time from ``ready`` on at which ``duration`` fits between sorted busy slots, and the slot it comes before."""
    low, high = 0, count
    while low < high:  # the first slot that ends after the op is ready: gaps before it are of no use
        middle = (low + high) // 2
        if end[middle] > ready:
            high = middle
        else:
            low = middle + 1
    at = ready
    for slot in range(low, count):
        if at + duration <= begin[slot]:
            return at, slot
        at = max(at, end[slot])
    return at, count


@inline
def last_arrival(
    v: int,
    d: int,
    ready: float,
    placement: NDArray[np.int32],
    finish: NDArray[np.float64],
    ptr: NDArray[np.int32],
    in_edges: NDArray[np.int32],
    edges: NDArray[np.int32],
    edge_bytes: NDArray[np.float64],
    bandwidth: NDArray[np.float64],
    latency: NDArray[np.float64],
    cut: NDArray[np.float64],
) -> float:
    """When all inputs of op ``v`` are on device ``d``, over links without contention; not before ``ready``."""
    for k in range(ptr[v], ptr[v + 1]):
        e = in_edges[k]
        u = edges[e, 0]
        s = placement[u]
        arrival = finish[u]
        if s != d:
            arrival += latency[s, d] + edge_bytes[e] / bandwidth[s, d] + cut[e, s] + cut[e, d]
        ready = max(ready, arrival)
    return ready


@jit
def _insertion_schedule(
    placement: NDArray[np.int32],
    start: NDArray[np.float64],
    finish: NDArray[np.float64],
    order: NDArray[np.int32],
    compute: NDArray[np.float64],
    ptr: NDArray[np.int32],
    in_edges: NDArray[np.int32],
    edges: NDArray[np.int32],
    edge_bytes: NDArray[np.float64],
    bandwidth: NDArray[np.float64],
    latency: NDArray[np.float64],
    cut: NDArray[np.float64],
    param_bytes: NDArray[np.float64],
    memory: NDArray[np.float64],
    conflict: NDArray[np.bool_],
) -> bool:
    devices = compute.shape[1]
    # busy slots of each device, sorted, those of devices that conflict with it included; rows grow as needed, so that memory
    # stays near the number of ops
    begin = np.empty((devices, 16))
    end = np.empty((devices, 16))
    count = np.zeros(devices, np.int64)
    used = np.zeros(devices)
    for v in order:
        best, best_start, best_finish, best_slot = -1, 0.0, np.inf, 0
        for d in range(devices):
            duration = compute[v, d]
            if duration == np.inf or used[d] + param_bytes[v] > memory[d]:
                continue
            ready = last_arrival(v, d, 0.0, placement, finish, ptr, in_edges, edges, edge_bytes, bandwidth, latency, cut)
            at, slot = _earliest_start(begin[d], end[d], count[d], ready, duration)
            if at + duration < best_finish:
                best, best_start, best_finish, best_slot = d, at, at + duration, slot
        if best < 0:
            return False
        placement[v], start[v], finish[v] = best, best_start, best_finish
        used[best] += param_bytes[v]
        if count.max() == begin.shape[1]:
            wider = np.empty((devices, 2 * begin.shape[1]))
            wider[:, : begin.shape[1]] = begin
            begin = wider
            wider = np.empty((devices, 2 * end.shape[1]))
            wider[:, : end.shape[1]] = end
            end = wider
        for slot in range(count[best], best_slot, -1):
            begin[best, slot], end[best, slot] = begin[best, slot - 1], end[best, slot - 1]
        begin[best, best_slot], end[best, best_slot] = best_start, best_finish
        count[best] += 1
        if len(conflict):
            for d in range(devices):
                if conflict[best * devices + d]:
                    count[d] = _take(begin[d], end[d], count[d], best_start, best_finish)
    return True


@jit
def _take(begin: NDArray[np.float64], end: NDArray[np.float64], count: int, first: float, last: float) -> int:
    """Add a time to busy slots, united with those that it overlaps; return how many slots there are then."""
    slot = 0
    while slot < count and (end[slot] < first or (end[slot] == first and begin[slot] <= first)):
        slot += 1
    # slots from here to behind overlap it
    behind = slot
    while behind < count and begin[behind] < last and end[behind] > first:
        first, last = min(first, begin[behind]), max(last, end[behind])
        behind += 1
    if behind == slot:
        for i in range(count, slot, -1):
            begin[i], end[i] = begin[i - 1], end[i - 1]
    else:
        for i in range(behind, count):
            begin[slot + 1 + i - behind], end[slot + 1 + i - behind] = begin[i], end[i]
    begin[slot], end[slot] = first, last
    return count + 1 - (behind - slot)
