"""Search for the Pareto front of two values: Pareto local search after searches by weighted sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import is_over
from placeit.placers.feasibility import fits
from placeit.placers.local_search import LocalSearch, neighbours

__all__ = ["TwoValues", "explore", "non_dominated", "spread"]

TwoValues: TypeAlias = Callable[[NDArray[np.int32]], NDArray[np.float64]]
"""Function that values placements, ``int32[B, V] -> float64[B, 2]``; less is better in both values."""

_WEIGHTS = (0.0, 1.0, 0.5, 0.25, 0.75)  # weights of the first value, one for each search by a weighted sum
_SUMS_SHARE = 0.5  # share of the evaluations that these searches may use
_BATCH = 64  # placements that are valued at once


def non_dominated(values: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return indices of the points, ``float64[N, 2]``, that no other dominates, by first value; of equal points, the first.

    A point dominates another if it is no worse in both values and better in one.
    """
    order = np.lexsort((values[:, 1], values[:, 0]))
    second = values[order, 1]
    before = np.concatenate([[np.inf], np.minimum.accumulate(second)[:-1]]) if len(order) else second
    indices: NDArray[np.intp] = order[second < before]
    return indices


def spread(values: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Choose up to ``count`` points of a front, ``float64[N, 2]``, that are far apart: return their indices.

    The ends of the front come first, then repeatedly the point farthest from the chosen ones.
    """
    size = np.ptp(values, axis=0) if len(values) else np.ones(2)
    scaled = values / np.where(size > 0, size, 1.0)
    chosen = list(dict.fromkeys([0, len(values) - 1]))[: len(values)]
    while len(chosen) < min(count, len(values)):
        gaps = np.linalg.norm(scaled[:, None] - scaled[chosen], axis=2).min(axis=1)
        chosen.append(int(np.argmax(gaps)))
    return np.array(chosen[:count], np.intp)


class _Archive:
    """The non-dominated placements found so far, and the number of evaluations that are left."""

    def __init__(self, values_of: TwoValues, evaluations: int, deadline: float | None) -> None:
        self._values_of, self.left, self._deadline = values_of, evaluations, deadline
        self.rows, self.values = np.empty((0, 0), np.int32), np.empty((0, 2))

    def over(self) -> bool:
        return self.left <= 0 or is_over(self._deadline)

    def offer(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Value placements, keep the non-dominated ones, and return all values."""
        found = self._values_of(rows)
        self.left -= len(rows)
        rows = np.concatenate([self.rows.reshape(-1, rows.shape[1]), rows])
        values = np.concatenate([self.values, found])
        indices = non_dominated(values)
        indices = indices[np.isfinite(values[indices]).all(axis=1)]
        self.rows, self.values = rows[indices], values[indices]
        return found

    def weighted(self, weights: NDArray[np.float64]) -> CostFunction:
        """Return a cost function that offers its placements to the archive and returns weighted sums of their values."""
        return lambda rows: self.offer(rows) @ weights


def explore(
    problem: Problem, values_of: TwoValues, starts: NDArray[np.int32], *, seed: int, evaluations: int, deadline: float | None
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Find non-dominated placements, sorted by their first value.

    If there are no more placements than evaluations, all are valued. Otherwise, local searches minimise weighted sums of the
    two values. Then all moves of one op are tried from each placement of the front, until the front has no untried placement
    (two-phase Pareto local search: J. Dubois-Lacoste, M. Lopez-Ibanez, T. Stuetzle, "Improving the anytime behavior of
    two-phase local search", Annals of Mathematics and Artificial Intelligence 61, 2011). Any valued placement can enter the
    front.

    Args:
        problem: defines the feasible devices of each op, and the memory of devices.
        values_of: values placements.
        starts: feasible placements to start from, ``int32[B, V]``, at least one.
        seed: seed of the order of moves.
        evaluations: approximate maximum number of placements to value.
        deadline: when to stop, by :func:`placeit.core.clock.now`; the starts are valued in any case.

    Returns:
        The placements, ``int32[K, V]``, and their values, ``float64[K, 2]``.
    """
    front, rng = _Archive(values_of, evaluations, deadline), np.random.default_rng(seed)
    front.offer(starts)
    choices = [np.flatnonzero(row) for row in problem.feasible]
    if math.prod(map(len, choices)) <= evaluations:
        rows_of_all = (np.array(row, np.int32) for row in itertools.product(*choices))
        feasible_rows = (row for row in rows_of_all if fits(problem, row))
        while (batch := list(itertools.islice(feasible_rows, _BATCH))) and not is_over(deadline):
            front.offer(np.stack(batch))
        return front.rows, front.values
    scale = np.maximum(front.values.min(axis=0), np.finfo(float).tiny)
    each = int(front.left * _SUMS_SHARE) // len(_WEIGHTS)
    for i, weight in enumerate(_WEIGHTS):
        if front.over():
            break
        cost = front.weighted(np.array([weight, 1.0 - weight]) / scale)
        search = LocalSearch(evaluations=each, batch=_BATCH)
        search.improve(front.rows, problem, cost, seed=seed + i, evaluations=each, deadline=deadline)
    tried: set[bytes] = set()
    while not front.over() and len(fresh := [row for row in front.rows if row.tobytes() not in tried]):
        row = fresh[int(rng.integers(len(fresh)))]
        tried.add(row.tobytes())
        for rows in neighbours(problem, row, rng, _BATCH):
            front.offer(rows)
            if front.over():
                break
    return front.rows, front.values
