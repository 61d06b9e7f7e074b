"""Shared parts of the list schedulers: mean costs, ranks, and insertion-based earliest finish times.

A list scheduler is an order of the ops and a rule for devices. All of them here place one op after the other, in an order
that respects precedence, each on the device where it finishes first, in the earliest idle gap that holds it (Topcuoglu et
al., "Performance-effective and low-complexity task scheduling for heterogeneous computing", 2002, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.problem import Problem
from placeit.placers.feasibility import repair
from placeit.simulator.compiled import compiled

__all__ = [
    "ListSchedule",
    "downward_ranks",
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
    choices, can_receive = able.sum(axis=1), able[dst]
    # sums over pairs, of matrices that are zero on the diagonal: F[u] @ matrix @ F[v]
    latency = ((able @ problem.latency)[src] * can_receive).sum(axis=1)
    seconds_per_byte = ((able @ (1.0 / problem.bandwidth))[src] * can_receive).sum(axis=1)
    senders, receivers = choices[src], choices[dst]
    seconds = latency + problem.edge_bytes * seconds_per_byte
    if problem.cut.any():
        can_send = able[src]
        cut = problem.cut * (can_send * (receivers[:, None] - can_receive) + can_receive * (senders[:, None] - can_send))
        seconds += cut.sum(axis=1)
    mean: NDArray[np.float64] = seconds / (senders * receivers)
    return mean


def upward_ranks(problem: Problem) -> NDArray[np.float64]:
    """Rank of each op, seconds: mean length of the longest path from its start to an exit (Eq. 8 of HEFT)."""
    rank = np.empty(len(problem))
    _core.upward_ranks(compiled(problem), mean_compute(problem), mean_comm(problem)[problem.successors.edge], rank)
    return rank


def downward_ranks(problem: Problem) -> NDArray[np.float64]:
    """Rank of each op, seconds: mean length of the longest path from an entry to its start (Eq. 10 of CPOP)."""
    rank = np.empty(len(problem))
    _core.downward_ranks(compiled(problem), mean_compute(problem), mean_comm(problem)[problem.successors.edge], rank)
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
    order = np.empty(len(problem), np.int32)
    _core.ready_order(compiled(problem), np.lexsort((ties, -priority)).astype(np.int32), order)
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
    placement, start, finish = np.full(len(problem), -1, np.int32), np.zeros(len(problem)), np.zeros(len(problem))
    costs = np.ascontiguousarray(compute)
    fits = _core.insertion_schedule(compiled(problem), order, costs, memory, placement, start, finish)
    return placement, start, finish, fits
