"""Local search, for any cost function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.graph import distinct_rows
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, Measured, is_over, option
from placeit.placers.feasibility import fits, has_room
from placeit.placers.heft import Heft
from placeit.placers.list_scheduling import balanced_schedules, links_of
from placeit.placers.peft import Peft
from placeit.simulator.scheduler import EXECUTED_RULES, LinkModel

__all__ = ["LocalSearch", "neighbours", "starts"]


@dataclass(frozen=True)
class LocalSearch:
    """Move one op at a time to a better device until no move helps; then perturb the best placement and continue.

    Placements are valued in batches, which suits cost functions that are fast in bulk or that interleave measurements. The best
    neighbour of a batch is accepted if it is better. The search starts from the best of HEFT, PEFT and the single devices.
    """

    evaluations: int = option(20_000, "placements to evaluate, unless the caller sets a limit", least=0, most=10**12)
    batch: int = option(64, "neighbours evaluated in one call", least=1, most=10**5)
    kick: float = option(0.05, "share of the ops that are moved at random to leave a local optimum", least=0, most=1)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best evaluated placement; HEFT's if none may be evaluated. Raises InfeasibleError."""
        limit = self.evaluations if evaluations is None else evaluations
        return self.improve(
            starts(problem, links_of(cost), deadline), problem, cost, seed=seed, evaluations=limit, deadline=deadline
        )

    def refine(
        self, problem: Problem, cost: CostFunction, measured: Measured, *, seed: int, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Search from the best measured placement."""
        first = measured.placements[:1]
        return self.improve(first, problem, cost, seed=seed, evaluations=self.evaluations, deadline=deadline)

    def improve(
        self,
        first: NDArray[np.int32],
        problem: Problem,
        cost: CostFunction,
        *,
        seed: int,
        evaluations: int,
        deadline: float | None,
    ) -> NDArray[np.int32]:
        """Search from the best of the ``int32[B, V]`` placements in ``first``, and return the best placement found."""
        found = Incumbent(cost, evaluations, deadline)
        found.offer(first)
        current, current_cost = found.placement, found.cost
        rng = np.random.default_rng(seed)
        while not found.over:
            improved = False
            batch = None
            for batch in neighbours(problem, current, rng, self.batch):
                costs = found.offer(batch)
                lowest = int(np.argmin(costs))
                improved = bool(costs[lowest] < current_cost)
                if improved:
                    current, current_cost = batch[lowest], float(costs[lowest])
                if improved or found.over:
                    break
            if batch is None:
                break  # no op can be moved alone
            if not improved and not found.over:
                current = _kick(problem, found.placement, rng, max(2, round(self.kick * len(problem))))
                current_cost = float(found.offer(current[None])[0])
        return found.placement


def starts(problem: Problem, links: LinkModel = EXECUTED_RULES.links, deadline: float | None = None) -> NDArray[np.int32]:
    """Return distinct placements to start a search from, ``int32[B, V]``.

    They are HEFT's placement, each single device that can hold the whole graph, and, until the deadline, PEFT's placement and
    list schedules that balance work. If links are channels, HEFT's placement without contention is added, so that no search is
    worse than HEFT.

    Args:
        problem: the problem.
        links: link model of the list schedules.
        deadline: time by :func:`placeit.core.clock.now` at which to stop planning; None for no limit.
    """
    plans = [Heft().plan(problem, links), *([Heft().plan(problem)] if links == "channel" else [])]
    if not is_over(deadline):
        plans.insert(1, Peft().plan(problem, links))
    found = [plan.placement for plan in plans]
    found += [np.full(len(problem), device, np.int32) for device in problem.single_devices]
    if not is_over(deadline):
        for balanced in balanced_schedules(problem, min(plan.makespan for plan in plans), links):
            found.append(balanced.placement)
            if is_over(deadline):
                break
    return distinct_rows(np.stack(found))[0]


def neighbours(
    problem: Problem, placement: NDArray[np.int32], rng: np.random.Generator, batch: int
) -> Iterator[NDArray[np.int32]]:
    """Yield batches of all feasible placements that differ from ``placement`` in one op, in random order."""
    able = problem.feasible & has_room(problem, placement)
    able[np.arange(len(problem)), placement] = False
    moves = rng.permutation(np.flatnonzero(able))
    for first in range(0, len(moves), batch):
        ops, devices = np.divmod(moves[first : first + batch], problem.devices)
        moved = np.repeat(placement[None], len(ops), axis=0)
        moved[np.arange(len(ops)), ops] = devices
        yield moved


def _kick(problem: Problem, placement: NDArray[np.int32], rng: np.random.Generator, moves: int) -> NDArray[np.int32]:
    """Return a copy of a placement with random ops moved to random devices; a move that does not fit is undone."""
    placement = placement.copy()
    for op in rng.integers(len(problem), size=moves).tolist():
        before = placement[op]
        placement[op] = rng.choice(np.flatnonzero(problem.feasible[op]))
        if not fits(problem, placement):
            placement[op] = before
    return placement
