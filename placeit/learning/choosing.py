"""Decides which placements are worth measuring next, by what was measured so far."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.learning.surrogate import Surrogate, expected_gain, features, worked
from placeit.placers.feasibility import fits
from placeit.planning.segments import Plan, Segmenter
from placeit.simulator.objectives import Objective

__all__ = ["Tried", "worth_measuring"]

_STARTS = 4  # placements whose neighbours are looked at
_RUNS = 60  # neighbours of each in which several groups in a row move
_DRAWN, _STEPS = 4, 400  # searches with costs drawn around the calibrated ones, and plans that each tries
_UNSURE = 0.05  # standard deviation of the logarithm of a drawn cost
_LOOKED_AT = 80  # placements, the best by simulation, that the surrogate values
_ENOUGH = 0.002  # expected gain, as a share of the best value, below which nothing is worth measuring


class Tried(NamedTuple):
    """A measured plan, and its value in the unit of the objective."""

    plan: Plan
    value: float


def worth_measuring(
    segmenter: Segmenter,
    problem: Problem,
    objective: Objective,
    tried: Sequence[Tried],
    proposed: Iterable[NDArray[np.int32]] = (),
    barred: Iterable[Plan] = (),
    *,
    count: int,
    seed: int,
) -> list[NDArray[np.int32]]:
    """Return the placements from which most is expected, best first: ``int32[G]`` each; none if nothing is worth a measurement.

    Args:
        segmenter: with costs that are calibrated by what was tried.
        problem: says what is feasible.
        objective: what is valued.
        tried: what was measured, one at least.
        proposed: placements that were not measured, ``int32[G]``.
        barred: plans that are not to be measured (again), beside those that were tried.
        count: most of them.
        seed: of what is drawn.
    """
    seen = {_key(plan) for plan in itertools.chain((one.plan for one in tried), barred)}
    best_first = sorted(tried, key=lambda one: one.value)
    starts = [one.plan.group_devices for one in best_first[:_STARTS]]
    pool = [*proposed, *_drawn(segmenter, problem, objective, starts, seed)]
    pool += [row for start in [*starts, *pool[-_DRAWN:]] for row in _neighbours(start, segmenter, problem, seed)]
    rows = np.unique(np.array([row for row in pool if fits(problem, row)], np.int32).reshape(-1, len(problem)), axis=0)
    simulated = objective.of_plans(segmenter, rows)
    plans: list[tuple[Plan, float]] = []
    for i in np.argsort(simulated, kind="stable").tolist():
        if len(plans) == _LOOKED_AT or not np.isfinite(simulated[i]):
            break
        plan = segmenter.plan(rows[i])
        if (key := _key(plan)) not in seen:
            seen.add(key)
            plans.append((plan, float(simulated[i])))
    if not plans:
        return []
    again = [segmenter.priced(one.plan) for one in tried]
    said = np.log([objective.of_plan(plan) for plan in again])
    about, work = _described(segmenter, again)
    surrogate = Surrogate.fitted(about, work, np.log([one.value for one in tried]) - said)
    best = float((said + surrogate.predict(about, work)[0]).min())
    about, work = _described(segmenter, [plan for plan, _ in plans])
    expected = np.log([value for _, value in plans])
    chosen: list[int] = []
    while len(chosen) < min(count, len(plans)):
        mean, deviation = surrogate.predict(about, work)
        gain = expected_gain(expected + mean, deviation, best)
        gain[chosen] = 0.0
        first = int(gain.argmax())
        if gain[first] < _ENOUGH:
            break
        chosen.append(first)  # and the next one is chosen as if this one took what is expected of it
        surrogate = surrogate.and_one(about[first], work[first], float(mean[first]))
        best = min(best, float(expected[first] + mean[first]))
    return [plans[i][0].group_devices for i in chosen]


def _drawn(
    segmenter: Segmenter, problem: Problem, objective: Objective, starts: Sequence[NDArray[np.int32]], seed: int
) -> list[NDArray[np.int32]]:
    """Search among plans by the costs as they are, and by costs drawn around them."""
    rng, costs, found = np.random.default_rng([seed, 1]), segmenter.costs, []
    for i in range(_DRAWN):
        drawn = segmenter
        if i > 0:
            factor = np.exp(rng.normal(0, _UNSURE, costs.core.shape))
            drawn = Segmenter(
                segmenter.grouping, replace(costs, core=costs.core * factor, cut=costs.cut * factor), steady=objective.steady
            )
        found.append(drawn.search(starts[i % len(starts)], problem, steps=_STEPS, seed=seed + i))
    return found


def _neighbours(start: NDArray[np.int32], segmenter: Segmenter, problem: Problem, seed: int) -> Iterable[NDArray[np.int32]]:
    """Return placements in which one group, or several in a row, are on another device."""
    rng, able = np.random.default_rng([seed, 2]), problem.feasible
    computing = np.flatnonzero(segmenter.computes)
    spans = [(i, i + 1) for i in range(len(computing))]
    spans += [
        tuple(sorted(rng.choice(len(computing) + 1, 2, replace=False))) for _ in range(_RUNS if len(computing) > 1 else 0)
    ]
    for low, high in spans:
        these = computing[low:high]
        for device in np.flatnonzero(able[these].all(axis=0)).tolist():
            row = start.copy()
            row[these] = device
            if (row != start).any():
                yield row


def _described(segmenter: Segmenter, plans: Sequence[Plan]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.stack([features(segmenter, plan) for plan in plans]), worked(segmenter, [plan.group_devices for plan in plans])


def _key(plan: Plan) -> frozenset[tuple[int, tuple[int, ...]]]:
    """What tells plans apart: where programs run."""
    return frozenset((segment.device, segment.groups) for segment in plan.programs)
