"""Simulated annealing inside the compiled simulator."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core import clock
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, Measured, is_over, option
from placeit.placers.dp import splits
from placeit.placers.list_scheduling import links_of
from placeit.placers.local_search import LocalSearch, starts
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.throughput_bound import ThroughputCost

__all__ = ["Annealing"]

_SPLITS = 8  # orders whose contiguous splits are among the starts
_STARTING = 0.25  # share of the time after which no more starts are made
_HEATS = (0.3, 10.0, 1.0, 0.1, 0.03, 0.01)  # temperatures of the walks of a search for throughput, in turn
_LENGTH = 128  # evaluations of such a walk for each op
_FIRST, _SLICE_S = 32, 2e-3  # steps before the first check of the deadline; least seconds between two checks
_MOST = 4096  # steps between two checks, however short they take


@dataclass(frozen=True)
class Annealing:
    """Simulated annealing (Kirkpatrick et al. 1983) in the compiled simulator, from the best list schedule, split or device.

    Contiguous splits (``dp``) are among the starts if throughput is bounded, or no device can hold all ops.

    Half of the moves are of an op on the critical path of the current schedule, which no move of another op alone can shorten
    much. Some moves take an op to the device of one of its neighbours. Half take along most of its neighbours on its device,
    and their neighbours there: where transfers are slow, an op that moves without them makes any placement worse.

    Where there are fewer than 25 evaluations for each op, one simulation values up to hundreds of moves that are far apart in
    the schedule. Most of them are of ops with hardly any slack, and go to the device where the longest path through the op is
    estimated to be shortest, by the earliest and latest times of the current schedule. A move stays if the ops that start
    after it finish earlier, compared with those that start before it. The remaining moves are simulated together, and taken or
    left as a whole.

    Capacities (:class:`placeit.simulator.throughput_bound.ThroughputCost`) have no schedule: each evaluation is one move, and
    takes as long as the moved ops have neighbours. Half of the moves shift a border of two devices in the order of the problem.
    There, a search is a row of walks of 128 evaluations an op: each starts at the best placement so far, and at another
    temperature.

    The temperature falls with the number of evaluations, or with time if the deadline leaves no time for all of them.

    If the cost function is a simulator without noise, the whole search is compiled: about ten microseconds per evaluation for
    50 ops, and one with capacities. With any other cost function this is ``local-search``, which values placements in batches.
    """

    evaluations: int = option(25_000, "placements to evaluate, unless the caller sets a limit", least=0, most=10**12)
    restarts: int = option(
        1,
        "searches that share the evaluations, all from the same start; the best result wins; for latency",
        least=1,
        most=10**6,
    )

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best evaluated placement; HEFT's if none may be evaluated.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        budget = self.evaluations if evaluations is None else evaluations
        soon = None if deadline is None else (now := clock.now()) + _STARTING * (deadline - now)
        begin, busiest = list[NDArray[np.int32]](), isinstance(cost, ThroughputCost)
        if busiest or not problem.single_devices:  # list schedules are for one request, and know little of full memories
            begin += splits(problem, seed, _SPLITS, busiest=busiest, deadline=soon)
        begin += [*starts(problem, links_of(cost), soon)]
        return self._from(np.stack(begin), problem, cost, seed, budget, deadline)

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
        """Anneal from the best of some placements, ``int32[B, V]``."""
        model = cost.model if isinstance(cost, SimulatedCost | ThroughputCost) else None
        if model is None:
            search = LocalSearch(evaluations=budget)
            return search.improve(begin, problem, cost, seed=seed, evaluations=budget, deadline=deadline)
        found = Incumbent(cost, budget, deadline)
        found.offer(begin)
        steps = int(found.left) // max(1, self.restarts)
        if steps < 1 or not (problem.feasible.sum(axis=1) > 1).any():
            return found.placement
        scale = found.cost if np.isfinite(found.cost) else float(problem.compute.min(axis=1).sum())
        if scale == 0:
            return found.placement
        best = (found.cost, np.ascontiguousarray(found.placement, np.int32))
        start, rng = best, np.random.default_rng(seed)
        if isinstance(cost, SimulatedCost):
            for i in range(self.restarts):
                until = None if deadline is None else (now := clock.now()) + (deadline - now) / (self.restarts - i)
                ended, _ = _walk(model, start[1], scale, int(rng.integers(2**63)), steps, until)
                best = min(best, ended, key=lambda end: end[0])
                if is_over(deadline):
                    break
            return best[1]
        left, heats = int(found.left), itertools.cycle(_HEATS)
        while left > 0 and not is_over(deadline):
            steps = min(left, _LENGTH * len(problem))
            ended, done = _walk(model, best[1], scale * next(heats), int(rng.integers(2**63)), steps, deadline)
            best = min(best, ended, key=lambda end: end[0])
            left -= done
        return best[1]


def _walk(
    model: _core.CostModel, start: NDArray[np.int32], scale: float, seed: int, steps: int, deadline: float | None
) -> tuple[tuple[float, NDArray[np.int32]], int]:
    """Anneal once, in as many steps as there is time for; return the best cost and its placement, and the number of steps."""
    walk = _core.Annealing(model, start, scale, seed)
    walk.run(0, 1, steps)  # also values the start and allocates memory: too slow as a measure of speed
    began = now = clock.now()
    first, last, several = 1, steps, _FIRST
    while first < last:  # Ctrl-C is handled between slices
        upto = min(first + several, last)
        walk.run(first, upto, last)
        before, now, first = now, clock.now(), upto
        several = min(2 * several, _MOST) if now - before < _SLICE_S else several
        if deadline is not None:
            last = min(steps, first + int(first * max(0.0, deadline - now) / max(now - began, 1e-9)))
    placement = np.empty_like(start)
    walk.best(placement)
    return (walk.seconds, placement), first
