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

_SPLITS = 8  # orders whose contiguous splits are among the start placements
_START_SHARE = 0.25  # share of the time for making start placements
_TEMPERATURES = (0.3, 10.0, 1.0, 0.1, 0.03, 0.01)  # of the walks of a search for throughput, in turn
_WALK_STEPS = 128  # evaluations of such a walk per op
_FIRST_STEPS, _SLICE_S = 32, 2e-3  # steps before the first check of the deadline; minimum seconds between two checks
_MAX_STEPS = 4096  # between two checks of the deadline


@dataclass(frozen=True)
class Annealing:
    """Simulated annealing (Kirkpatrick et al. 1983) in the compiled simulator, from the best list schedule, split or device.

    Contiguous splits (``dp``) are among the start placements if the cost function is a bound of the throughput, or if no device
    can hold all ops.

    Half of the moves are of an op on the critical path of the current schedule, which a move of another op alone can hardly
    shorten. Some moves take an op to the device of one of its neighbours. Half of the moves also take most of the op's
    neighbours on its device, and their neighbours there: if transfers are slow, a move of the op alone makes any placement
    worse.

    If there are fewer than 25 evaluations per op, one simulation values up to hundreds of moves that are far apart in the
    schedule. Most of them are of ops with hardly any slack. Such an op goes to the device where the longest path through it is
    estimated to be shortest, by the earliest and latest times of the current schedule. A move is kept if the ops that start
    after it finish earlier, relative to the ops that start before it. The kept moves are then simulated together, and accepted
    or rejected as a whole.

    A bound of the throughput (:class:`placeit.simulator.throughput_bound.ThroughputCost`) has no schedule. Each evaluation is
    one move, and its time is proportional to the number of neighbours of the moved ops. Half of the moves shift the boundary
    between two devices in the order of the problem. The search consists of walks of 128 evaluations per op. Each walk starts
    from the best placement so far, at another temperature.

    The temperature falls with the number of evaluations, or with time if the deadline is too early for all of them.

    If the cost function is a simulator without noise, the whole search is compiled: for 50 ops, an evaluation takes about ten
    microseconds, or one microsecond for a bound of the throughput. With any other cost function this is ``local-search``, which
    values placements in batches.
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
        """Return the best evaluated placement; HEFT's if none may be evaluated. Raises InfeasibleError."""
        budget = self.evaluations if evaluations is None else evaluations
        start_deadline = None if deadline is None else (now := clock.now()) + _START_SHARE * (deadline - now)
        first, busiest = list[NDArray[np.int32]](), isinstance(cost, ThroughputCost)
        if busiest or not problem.single_devices:  # list schedules are for one request, and poor if memory is scarce
            first += splits(problem, seed, _SPLITS, busiest=busiest, deadline=start_deadline)
        first += [*starts(problem, links_of(cost), start_deadline)]
        return self._anneal(np.stack(first), problem, cost, seed, budget, deadline)

    def refine(
        self, problem: Problem, cost: CostFunction, measured: Measured, *, seed: int, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Anneal from the best measured placement."""
        return self._anneal(measured.placements[:1], problem, cost, seed, self.evaluations, deadline)

    def _anneal(
        self,
        first: NDArray[np.int32],
        problem: Problem,
        cost: CostFunction,
        seed: int,
        budget: int,
        deadline: float | None,
    ) -> NDArray[np.int32]:
        """Anneal from the best of the ``int32[B, V]`` placements in ``first``."""
        model = cost.model if isinstance(cost, SimulatedCost | ThroughputCost) else None
        if model is None:
            search = LocalSearch(evaluations=budget)
            return search.improve(first, problem, cost, seed=seed, evaluations=budget, deadline=deadline)
        found = Incumbent(cost, budget, deadline)
        found.offer(first)
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
                walk_deadline = None if deadline is None else (now := clock.now()) + (deadline - now) / (self.restarts - i)
                result, _ = _walk(model, start[1], scale, int(rng.integers(2**63)), steps, walk_deadline)
                best = min(best, result, key=lambda pair: pair[0])
                if is_over(deadline):
                    break
            return best[1]
        left, temperatures = int(found.left), itertools.cycle(_TEMPERATURES)
        while left > 0 and not is_over(deadline):
            steps = min(left, _WALK_STEPS * len(problem))
            result, done = _walk(model, best[1], scale * next(temperatures), int(rng.integers(2**63)), steps, deadline)
            best = min(best, result, key=lambda pair: pair[0])
            left -= done
        return best[1]


def _walk(
    model: _core.CostModel, start: NDArray[np.int32], scale: float, seed: int, steps: int, deadline: float | None
) -> tuple[tuple[float, NDArray[np.int32]], int]:
    """Anneal once, as many steps as the deadline allows; return the best cost and its placement, and the number of steps."""
    walk = _core.Annealing(model, start, scale, seed)
    walk.run(0, 1, steps)  # also values the start and allocates memory: too slow as a measure of speed
    started = now = clock.now()
    done, last, slice_steps = 1, steps, _FIRST_STEPS
    while done < last:  # Ctrl-C is handled between slices
        end = min(done + slice_steps, last)
        walk.run(done, end, last)
        before, now, done = now, clock.now(), end
        slice_steps = min(2 * slice_steps, _MAX_STEPS) if now - before < _SLICE_S else slice_steps
        if deadline is not None:
            last = min(steps, done + int(done * max(0.0, deadline - now) / max(now - started, 1e-9)))
    placement = np.empty_like(start)
    walk.best(placement)
    return (walk.seconds, placement), done
