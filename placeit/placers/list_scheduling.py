"""Shared parts of the list schedulers: mean costs, ranks, optimistic costs, and insertion-based earliest finish times.

A list scheduler consists of an order of the ops and a rule that selects a device. The schedulers here place one op after the
other, in topological order, in the earliest idle gap that is long enough (Topcuoglu et al., "Performance-effective and
low-complexity task scheduling for heterogeneous computing", 2002, section 4). They select the device where the op finishes
first, or where its finish time plus an estimate of the remaining time is lowest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.conflicts import cover
from placeit.core.problem import CostFunction, Problem
from placeit.placers.feasibility import fits, repair
from placeit.simulator.scheduler import EXECUTED_RULES, LinkModel, Rules
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.tables import compiled

__all__ = [
    "ListPlacer",
    "ListSchedule",
    "balanced_schedules",
    "downward_ranks",
    "fastest_devices",
    "levels",
    "links_of",
    "list_schedule",
    "mean_comm",
    "mean_compute",
    "mean_over_devices",
    "optimistic_costs",
    "pinned",
    "priority_order",
    "shortest_schedule",
    "upward_ranks",
]

_CORE_LIMITS = (1.9, 1.6, 1.35, 1.15, 1.0)
"""Limits of an op's core seconds where devices conflict, as multiples of its lowest core seconds on any device."""
_SAMPLE, _PRICE_STEPS = 2000, 100  # approximate number of ops from which device prices are computed; iterations for it
_MIN_WORK = 0.7  # minimum work, as a share of the makespan, for which balanced schedules are planned


@dataclass(frozen=True, eq=False)
class ListSchedule:
    """A placement with the schedule that a list scheduler planned for it.

    Attributes:
        placement: ``int32[V]``.
        start: ``float64[V]``, seconds.
        finish: ``float64[V]``, seconds.
        makespan: seconds.
        priority: ``float64[V]``; on each device, ops run in the order of falling priority.
    """

    placement: NDArray[np.int32]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    makespan: float
    priority: NDArray[np.float64]


class ListPlacer(ABC):
    """Base class of placers that return the placement of a planned schedule, without a cost function or random numbers."""

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the placement of :meth:`plan`, over links without contention; the cost function and the seed are not used."""
        return self.plan(problem).placement

    @abstractmethod
    def plan(self, problem: Problem, links: LinkModel = "contention-free") -> ListSchedule:
        """Return the planned schedule, with its placement.

        Args:
            problem: the problem.
            links: link model of the plan; with ``channel``, transfers between two devices wait for each other.

        Raises:
            InfeasibleError: no feasible placement is found.
        """


def links_of(cost: CostFunction) -> LinkModel:
    """Return the link model of a cost function if it is a simulator, else the link model of executors."""
    return cost.rules.links if isinstance(cost, SimulatedCost) else EXECUTED_RULES.links


def mean_over_devices(problem: Problem, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each op's mean of ``float64[V, D]`` values over the devices that can run it, ``float64[V]``."""
    feasible = problem.feasible
    mean: NDArray[np.float64] = np.where(feasible, values, 0.0).sum(axis=1) / feasible.sum(axis=1)
    return mean


def mean_compute(problem: Problem) -> NDArray[np.float64]:
    """Return the mean seconds of each op over the devices that can run it, ``float64[V]``."""
    return mean_over_devices(problem, problem.compute)


def fastest_devices(compute: NDArray[np.float64]) -> NDArray[np.int32]:
    """Sort devices by the number of ops in ``float64[V, D]`` that they cannot run, then by total seconds: ``int32[D]``."""
    unable = np.isinf(compute)
    return np.lexsort((np.where(unable, 0.0, compute).sum(axis=0), unable.sum(axis=0))).astype(np.int32)


def mean_comm(problem: Problem, *, apart: bool = False) -> NDArray[np.float64]:
    """Return the mean seconds to move each edge's tensor, ``float64[E]``.

    The mean is over all pairs of a device that can run the producer and a device that can run the consumer. Cut costs are part
    of a transfer, as in :meth:`Problem.comm`.

    Args:
        problem: the problem.
        apart: whether to leave out pairs of a device with itself, which otherwise count as zero seconds.
    """
    # many ops can run on the same set of devices: terms that depend on these sets alone are computed once per pair of sets
    _, first, kind = np.unique(np.packbits(problem.feasible, axis=1), axis=0, return_index=True, return_inverse=True)
    able = problem.feasible[first].astype(np.float64)
    ends = kind.reshape(-1)[problem.edges]
    pairs, pair = np.unique(ends @ [len(able), 1], return_inverse=True)
    src, dst = np.divmod(pairs, len(able))
    can_send, can_receive = able[src], able[dst]
    senders, receivers = can_send.sum(axis=1), can_receive.sum(axis=1)
    # sums over pairs of devices: able[u] @ matrix @ able[v], with matrices that are zero on the diagonal
    latency = ((able @ problem.latency)[src] * can_receive).sum(axis=1)
    seconds_per_byte = ((able @ (1.0 / problem.bandwidth))[src] * can_receive).sum(axis=1)
    counted = senders * receivers - ((can_send * can_receive).sum(axis=1) if apart else 0.0)
    seconds = latency[pair] + problem.edge_bytes * seconds_per_byte[pair]
    if problem.cut.any():
        often = can_send * (receivers[:, None] - can_receive) + can_receive * (senders[:, None] - can_send)
        seconds += (problem.cut * often[pair]).sum(axis=1)
    mean: NDArray[np.float64] = seconds / np.maximum(counted, 1.0)[pair]  # without a pair there is no transfer: zero
    return mean


def upward_ranks(problem: Problem) -> NDArray[np.float64]:
    """Return each op's upward rank in seconds: mean length of the longest path from its start to an exit (HEFT, Eq. 8)."""
    rank = np.empty(len(problem))
    _core.upward_ranks(compiled(problem), mean_compute(problem), mean_comm(problem)[problem.successors.edge], rank)
    return rank


def downward_ranks(problem: Problem) -> NDArray[np.float64]:
    """Return each op's downward rank in seconds: mean length of the longest path from an entry to it (CPOP, Eq. 10)."""
    rank = np.empty(len(problem))
    _core.downward_ranks(compiled(problem), mean_compute(problem), mean_comm(problem)[problem.successors.edge], rank)
    return rank


def levels(problem: Problem) -> NDArray[np.int64]:
    """Return the number of edges on the longest path from an entry to each op, ``int64[V]``."""
    level = np.empty(len(problem))
    _core.downward_ranks(compiled(problem), np.ones(len(problem)), np.zeros(len(problem.edges)), level)
    return level.astype(np.int64)


def optimistic_costs(problem: Problem) -> NDArray[np.float64]:
    """Return PEFT's optimistic cost table (Arabnejad and Barbosa 2014), in seconds, ``float64[V, D]``.

    An entry is the shortest time from the end of an op on a device to an exit if all devices were idle. It counts the longest
    path. Each op on this path is on the device that is best for the ops after it. Transfers between different devices take
    their mean time.
    """
    cost = np.empty((len(problem), problem.devices))
    _core.optimistic_costs(compiled(problem), mean_comm(problem, apart=True)[problem.successors.edge], cost)
    return cost


def priority_order(
    problem: Problem, priority: NDArray[np.float64], ties: NDArray[np.float64] | None = None
) -> NDArray[np.int32]:
    """Return the order in which ops leave a ready list with the highest priority first, ``int32[V]``.

    Args:
        problem: the problem.
        priority: ``float64[V]``.
        ties: ``float64[V]``; among ops of equal priority, the lowest value goes first. None for the problem's topological
            order.
    """
    if ties is None:
        ties = np.argsort(problem.order).astype(np.float64)
    order = np.empty(len(problem), np.int32)
    _core.ready_order(compiled(problem), np.lexsort((ties, -priority)).astype(np.int32), order)
    return order


def shortest_schedule(
    problem: Problem,
    order: NDArray[np.int32],
    onward: NDArray[np.float64] | None = None,
    compute: NDArray[np.float64] | None = None,
    links: LinkModel = "contention-free",
) -> ListSchedule:
    """Return the schedule of :func:`list_schedule`; if devices conflict, the shortest of several such schedules.

    Where devices conflict, an op often finishes first on a device that takes all cores for a small gain. The schedules differ
    in the core seconds that an op may take, compared with its lowest core seconds on any device.
    """
    compute = problem.compute if compute is None else compute
    if not problem.conflicts.any():
        return list_schedule(problem, order, compute, onward, links)
    core_seconds = compute * cover(problem.conflicts).sum(axis=0)
    lowest = core_seconds.min(axis=1, keepdims=True)
    limited = [compute, *(np.where(core_seconds <= limit * lowest, compute, np.inf) for limit in _CORE_LIMITS)]
    return min((list_schedule(problem, order, seconds, onward, links) for seconds in limited), key=lambda plan: plan.makespan)


def list_schedule(
    problem: Problem,
    order: NDArray[np.int32],
    compute: NDArray[np.float64] | None = None,
    onward: NDArray[np.float64] | None = None,
    links: LinkModel = "contention-free",
) -> ListSchedule:
    """Plan a schedule: place each op, in the given order, in the idle gap where it finishes first.

    Only devices with room for the op's weights are considered. With ``onward``, the op goes where its finish time plus
    ``onward`` is lowest. A device is idle while neither it nor a conflicting device runs an op. If memory runs out, devices
    are chosen as if memory were unlimited, the placement is repaired, and the schedule is planned again for it.

    Args:
        problem: the problem.
        order: ``int32[V]``, a topological order.
        compute: ``float64[V, D]``, seconds to use instead of the problem's; ``inf`` forbids a device. None for the problem's.
        onward: ``float64[V, D]``, estimated seconds from the end of an op on a device to the end of the run; None for zero.
        links: link model; with ``channel``, a transfer waits for an idle gap of its link that is long enough for it.

    Raises:
        InfeasibleError: no feasible placement is found.
    """
    compute = problem.compute if compute is None else compute
    onward = np.zeros(compute.shape) if onward is None else onward
    placement, start, finish, fitted = _schedule(problem, order, compute, onward, problem.memory, links)
    if not fitted or (problem.shared and not fits(problem, placement)):  # schedules do not count copies of shared weights
        unlimited = np.full(problem.devices, np.inf)
        placement, *_ = _schedule(problem, order, compute, onward, unlimited, links)
        repaired = pinned(problem, repair(problem, placement))
        placement, start, finish, _ = _schedule(problem, order, repaired, onward, unlimited, links)
    priority = np.empty(len(problem))
    # by start, then finish (an op of zero duration goes before another op that starts at the same time), then position
    priority[np.lexsort((np.argsort(order), finish, start))] = np.arange(len(problem), 0, -1)
    return ListSchedule(placement, start, finish, float(finish.max()), priority)


def balanced_schedules(problem: Problem, makespan: float, links: LinkModel = "contention-free") -> Iterator[ListSchedule]:
    """Yield schedules that prefer devices that are fast at an op, if the total work limits the makespan.

    A list scheduler assigns an op to the device where it finishes first, even to a slow device while the others are busy. Here
    each second of a device also has a price: its dual value in the linear program that divides the work optimally, in
    fractions, between the devices, times 2, 8 or 32. The program is solved by multiplicative weights.

    Args:
        problem: the problem. Nothing is yielded if devices conflict.
        makespan: seconds of a schedule. Nothing is yielded if the work alone takes less than 70 % of it.
        links: link model of the plans.
    """
    if problem.conflicts.any():
        return
    sample = problem.compute[:: max(1, len(problem) // _SAMPLE)]
    price = np.full(problem.devices, 1.0 / problem.devices)
    bound = 0.0  # lower bound of the makespan from the work alone, seconds
    for step in range(_PRICE_STEPS):
        priced = price * sample
        device = priced.argmin(axis=1)
        rows = np.arange(len(sample))
        bound = max(bound, float(priced[rows, device].sum()) * len(problem) / len(sample))
        load = np.bincount(device, sample[rows, device], minlength=problem.devices)
        if not load.any():
            return
        price = price * np.exp(0.5 / (1 + step / 20) * np.minimum(load / load.mean() - 1, 2.0))
        price /= price.sum()
    if bound < _MIN_WORK * makespan:
        return
    order = priority_order(problem, upward_ranks(problem))
    for factor in (2.0, 8.0, 32.0):
        yield list_schedule(problem, order, onward=factor * problem.devices * price * problem.compute, links=links)


def pinned(problem: Problem, placement: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the problem's ``compute``, ``float64[V, D]``, with ``inf`` except on each op's device in the placement."""
    compute = np.full_like(problem.compute, np.inf)
    rows = np.arange(len(problem))
    compute[rows, placement] = problem.compute[rows, placement]
    return compute


def _schedule(
    problem: Problem,
    order: NDArray[np.int32],
    compute: NDArray[np.float64],
    onward: NDArray[np.float64],
    memory: NDArray[np.float64],
    links: LinkModel,
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64], bool]:
    """Return placement, start and finish times of an insertion schedule, and whether the weights fit into ``memory``."""
    placement, start, finish = np.full(len(problem), -1, np.int32), np.zeros(len(problem)), np.zeros(len(problem))
    costs, remaining = np.ascontiguousarray(compute), np.ascontiguousarray(onward)
    model = Rules(links).compiled[0]
    fitted = _core.insertion_schedule(compiled(problem), order, costs, remaining, memory, model, placement, start, finish)
    return placement, start, finish, fitted
