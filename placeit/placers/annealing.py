"""Simulated annealing inside the compiled simulator."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, Measured, is_over, option
from placeit.placers.local_search import LocalSearch, starts
from placeit.simulator.events import uniform
from placeit.simulator.kernel import makespan_kernel
from placeit.simulator.queues import Records
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.tables import Tables
from placeit.simulator.throughput import CAPACITY, ThroughputCost, busiest_ops, busy_kernel
from placeit.simulator.workspace import make_workspace

__all__ = ["Annealing"]

# Shares of moves, and of edges along which a move spreads; the temperature at the start as a share of an op's mean share of the
# makespan, and at the end as a share of the makespan. Found on problems of the GiPH generator, on random layered graphs of 8 to
# 200 ops, and on DOPPLER's published cost graphs, where chains of dear tensors have to move as one.
_CRITICAL = 0.5
_FOLLOW = 0.4
_TOGETHER = 0.5
_SPREAD = 0.9
_HOT, _COLD = 1.0, 0.0002
_SLICE, _SIZE = 5000, 256  # steps between two looks at the clock, in graphs of so many ops and edges; fewer in larger ones


@dataclass(frozen=True)
class Annealing:
    """Simulated annealing (Kirkpatrick et al. 1983) in the compiled simulator, from HEFT's or the best single-device placement.

    Half of the moves are of an op on the critical chain of the current schedule, the ops and waits that the makespan consists
    of, as no move of another op alone can shorten it much. A part of the moves takes an op to where one of its neighbours is,
    and half take along most of the neighbours that it has on its device, and theirs: where transfers cost much, an op that
    leaves them alone makes any placement worse.

    The temperature falls with the evaluations; if there is a deadline before which not all of them can be made, with the time.

    If the cost function is a simulator without noise the whole search is compiled, about ten microseconds an evaluation for
    50 ops. With any other cost function it is that of ``local-search``, which asks in batches.
    """

    evaluations: int = option(25_000, "placements to evaluate, unless the caller sets a limit", least=0, most=10**12)
    restarts: int = option(
        1, "searches that share the evaluations, all from the same start; the best result wins", least=1, most=10**6
    )

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best evaluated placement; HEFT's if none may be evaluated.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        budget = self.evaluations if evaluations is None else evaluations
        return self._from(starts(problem), problem, cost, seed, budget, deadline)

    def refine(
        self, problem: Problem, cost: CostFunction, measured: Measured, *, seed: int, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Anneal from the best measured placement."""
        return self._from(measured.placements[:1], problem, cost, seed, self.evaluations, deadline)

    def _from(
        self,
        begin: NDArray[np.int32],
        problem: Problem,
        cost: CostFunction,
        seed: int,
        budget: int,
        deadline: float | None,
    ) -> NDArray[np.int32]:
        """Anneal from the best of some placements."""
        simulated = cost.kernel_arguments if isinstance(cost, SimulatedCost | ThroughputCost) else None
        if simulated is None:
            search = LocalSearch(evaluations=budget)
            return search.improve(begin, problem, cost, seed=seed, evaluations=budget, deadline=deadline)
        found = Incumbent(cost, budget, deadline)
        found.offer(begin)
        choices = problem.feasible.sum(axis=1).astype(np.int32)
        movable = np.flatnonzero(choices > 1).astype(np.int32)
        steps = int(found.left) // max(1, self.restarts)
        if not len(movable) or steps < 1:
            return found.placement
        options = np.argsort(~problem.feasible, axis=1, kind="stable").astype(np.int32)  # each row: feasible devices first
        scale = found.cost if np.isfinite(found.cost) else problem.compute.min(axis=1).sum()
        if scale == 0:
            return found.placement
        ends: list[tuple[float, NDArray[np.int32]]] = []
        seeds = np.random.default_rng(seed).integers(2**63, size=max(1, self.restarts)).astype(np.uint64)
        several = max(1, _SLICE * _SIZE // max(_SIZE, len(problem) + len(problem.edges)))
        for i in range(len(seeds)):
            if ends and is_over(deadline):
                break
            place, best, seconds = found.placement.copy(), found.placement.copy(), np.full(2, np.inf)
            state = seeds[i : i + 1]
            began = now = time.perf_counter()
            until = None if deadline is None else now + (deadline - now) / (len(seeds) - i)
            first, last = 0, steps
            while first < last:  # between slices Ctrl-C is heard
                part = (scale, first, 1 if first == 0 else min(first + several, last), last)
                _anneal(*simulated, options, choices, movable, place, best, seconds, state, *part)
                now, first = time.perf_counter(), part[2]
                if first == 1:
                    began = now  # it may have been compiling, and says nothing of the speed
                elif until is not None:  # as many steps as there is time for
                    last = min(steps, first + int(first * max(0.0, until - now) / (now - began)))
            ends.append((float(seconds[1]), best))
        return min(ends, key=lambda end: end[0])[1]


@jit
def _critical_chain(tables: Tables, node: Records, place: NDArray[np.int32], chain: NDArray[np.int32]) -> int:
    """Write the ops that the makespan is made of, last first, and return how many they are.

    An op follows the one that kept its device busy until it started, or one that conflicts with it, or else the input that
    arrived last. Contention on links is left out: the chain is a guide, not a bound.
    """
    devices, conflict = len(tables.memory), tables.conflict
    v = 0
    for u in range(len(place)):
        if node[u].finish > node[v].finish:
            v = u
    length = 0
    while v >= 0 and length < len(place):
        chain[length] = v
        length += 1
        start = node[v].start
        before, latest = -1, -1.0
        for u in range(len(place)):
            same = place[u] == place[v] or (len(conflict) > 0 and conflict[place[u] * devices + place[v]])
            if same and node[u].finish == start and node[u].start < start:
                before = u
                break
        if before < 0 and start > 0:
            for i in range(tables.op[v].in_first, tables.op[v + 1].in_first):
                p = tables.edge[i].into
                u = tables.edge[p].tail
                arrival = node[u].finish
                if place[u] != place[v]:
                    link = tables.link[place[u], place[v]]
                    arrival += link.latency + tables.edge[p].size / link.bandwidth
                if arrival > latest:
                    before, latest = u, arrival
        v = before
    return length


@jit
def _target(
    tables: Tables,
    place: NDArray[np.int32],
    v: int,
    options: NDArray[np.int32],
    choices: NDArray[np.int32],
    state: NDArray[np.uint64],
) -> int:
    """Draw another device for an op that has a choice: a neighbour's, or any."""
    first, in_first = tables.op[v].first, tables.op[v].in_first
    outputs, inputs = tables.op[v + 1].first - first, tables.op[v + 1].in_first - in_first
    if outputs + inputs > 0 and uniform(state) < _FOLLOW:
        k = int(uniform(state) * (outputs + inputs))
        if k < outputs:
            neighbour = tables.edge[first + k].head
        else:
            neighbour = tables.edge[tables.edge[in_first + k - outputs].into].tail
        device = int(place[neighbour])
        if device != place[v] and tables.compute[v, device] < np.inf:
            return device
    device = int(options[v, int(uniform(state) * (choices[v] - 1))])
    if device == place[v]:
        device = int(options[v, choices[v] - 1])
    return device


@jit
def _take_along(
    tables: Tables, place: NDArray[np.int32], before: int, moved: NDArray[np.int32], state: NDArray[np.uint64]
) -> int:
    """Move most neighbours that the op ``moved[0]`` had on device ``before`` after it, and theirs; the number of ops moved."""
    to, size, at = place[moved[0]], 1, 0
    while at < size:
        first, in_first = tables.op[moved[at]].first, tables.op[moved[at]].in_first
        outputs, inputs = tables.op[moved[at] + 1].first - first, tables.op[moved[at] + 1].in_first - in_first
        at += 1
        for k in range(outputs + inputs):
            if k < outputs:
                w = tables.edge[first + k].head
            else:
                w = tables.edge[tables.edge[in_first + k - outputs].into].tail
            if place[w] == before and tables.compute[w, to] < np.inf and uniform(state) < _SPREAD:
                place[w] = to
                moved[size] = w
                size += 1
    return size


@jit
def _anneal(
    tables: Tables,
    priority: NDArray[np.float64],
    links: int,
    queue: int,
    memory: int,
    options: NDArray[np.int32],
    choices: NDArray[np.int32],
    movable: NDArray[np.int32],
    place: NDArray[np.int32],
    best: NDArray[np.int32],
    seconds: NDArray[np.float64],
    state: NDArray[np.uint64],
    scale: float,
    first: int,
    last: int,
    steps: int,
) -> None:
    """Do steps ``first`` to ``last`` of ``steps``; updates placements, their costs (current, best) and the random state."""
    workspace = make_workspace(tables, 1)
    busy = np.empty(len(tables.memory) * (len(tables.memory) + 1) + len(tables.clique))
    chain = np.empty(len(place), np.int32)
    moved = np.empty(len(place), np.int32)
    length, renewed = 0, 0
    hot, cold = _HOT * scale / len(place), _COLD * scale
    cooling = min(1.0, cold / hot) ** (1.0 / steps)
    temperature = hot * cooling**first
    for step in range(first, last):
        v = movable[int(uniform(state) * len(movable))]
        if length > 0 and uniform(state) < _CRITICAL:
            w = chain[int(uniform(state) * length)]
            if choices[w] > 1:
                v = w
        before = place[v]
        moved[0], size = v, 1
        if step > 0:  # the first step values the start itself; one call of the kernel keeps compilation short
            place[v] = _target(tables, place, v, options, choices, state)
            if uniform(state) < _TOGETHER:
                size = _take_along(tables, place, before, moved, state)
        if queue == CAPACITY:
            makespan = busy_kernel(tables, place, busy)
        else:
            makespan = makespan_kernel(tables, place, priority, links, queue, 0.0, np.uint64(0), memory, workspace)
        # infinite (no room for the weights) is never accepted; log(0) accepts anything finite
        if makespan < np.inf and makespan <= seconds[0] - temperature * np.log(uniform(state)):
            seconds[0] = makespan
            if queue == CAPACITY:
                length = busiest_ops(tables, place, busy, chain)
            elif length == 0 or step - renewed >= len(place) // 64:  # its search is quadratic: rarer in large graphs
                length = _critical_chain(tables, workspace.node, place, chain)
                renewed = step
            if makespan < seconds[1]:
                seconds[1] = makespan
                best[:] = place
        else:
            place[moved[:size]] = before
        temperature *= cooling
