"""Simulated annealing inside the compiled simulator."""

from __future__ import annotations

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
_SLICE, _SIZE = 5000, 256  # steps between two checks of the deadline, for up to _SIZE ops and edges; fewer for larger graphs


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
    left as a whole. Capacities (:class:`placeit.simulator.throughput_bound.ThroughputCost`) have no schedule: there each
    simulation values one move.

    The temperature falls with the number of evaluations, or with time if the deadline leaves no time for all of them.

    If the cost function is a simulator without noise, the whole search is compiled: about ten microseconds per evaluation for
    50 ops. With any other cost function this is ``local-search``, which values placements in batches.
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
        begin = starts(problem, links_of(cost), deadline)
        busiest = isinstance(cost, ThroughputCost)
        if busiest or not problem.single_devices:  # list schedules are for one request, and know little of full memories
            begin = np.stack([*begin, *splits(problem, seed, _SPLITS, busiest=busiest, deadline=deadline)])
        return self._from(begin, problem, cost, seed, budget, deadline)

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
        start = np.ascontiguousarray(found.placement, np.int32)
        ends: list[tuple[float, NDArray[np.int32]]] = []
        seeds = np.random.default_rng(seed).integers(2**63, size=max(1, self.restarts)).tolist()
        several = max(1, _SLICE * _SIZE // max(_SIZE, len(problem) + len(problem.edges)))
        for i in range(len(seeds)):
            if ends and is_over(deadline):
                break
            walk = _core.Annealing(model, start, scale, seeds[i])
            began = now = clock.now()
            until = None if deadline is None else now + (deadline - now) / (len(seeds) - i)
            first, last = 0, steps
            while first < last:  # Ctrl-C is handled between slices
                upto = 1 if first == 0 else min(first + several, last)
                walk.run(first, upto, last)
                now, first = clock.now(), upto
                if first == 1:
                    began = now  # the first step also values the start and allocates memory: too slow as a measure of speed
                elif until is not None:  # take as many steps as there is time for
                    last = min(steps, first + int(first * max(0.0, until - now) / (now - began)))
            best = np.empty(len(problem), np.int32)
            walk.best(best)
            ends.append((walk.seconds, best))
        return min(ends, key=lambda end: end[0])[1]
