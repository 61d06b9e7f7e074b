"""Decides which placements are worth measuring next, given the measurements so far."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.learning.surrogate_model import Surrogate, expected_gain, features, worked
from placeit.placers.feasibility import fits
from placeit.planning.segments import Plan, Segmenter
from placeit.simulator.objectives.base import Objective

__all__ = ["Tried", "worth_measuring"]

_STARTS = 4  # number of measured placements whose neighbours are considered
_WORK = 40_000  # groups of all neighbours together: a placement of 100 groups takes about a millisecond to simulate
_DRAWN, _STEPS = 4, 400  # number of searches with costs drawn around the calibrated ones; plans that each of them tries
_UNSURE = 0.05  # standard deviation of the logarithm of a drawn cost
_LOOKED_AT = 80  # number of placements, the best by simulation, that the surrogate values
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
    """Return the placements with the greatest expected gain, best first: ``int32[G]`` each; empty if none is worth measuring.

    Args:
        segmenter: plans placements, with costs that are calibrated on the measurements.
        problem: tells which placements are feasible.
        objective: values plans.
        tried: the measurements, at least one.
        proposed: placements to consider beside the ones found here, ``int32[G]``.
        barred: further plans that are not to be measured (again).
        count: the most placements to return.
        seed: seed of all random draws.
    """
    seen = {_key(plan) for plan in itertools.chain((one.plan for one in tried), barred)}
    starts = [one.plan.group_devices for one in sorted(tried, key=lambda one: one.value)[:_STARTS]]
    pool = [*proposed, *_searched(segmenter, problem, objective, starts, seed)]
    pool += _neighbours([*starts, *pool[-_DRAWN:]], segmenter, problem, seed)
    rows = np.unique(np.array([row for row in pool if fits(problem, row)], np.int32).reshape(-1, len(problem)), axis=0)
    simulated = objective.of_plans(segmenter, rows)
    plans: list[tuple[Plan, float]] = []
    for i in np.argsort(simulated, kind="stable").tolist():
        if len(plans) == _LOOKED_AT or not np.isfinite(simulated[i]):
            break
        plan = segmenter.plan(rows[i])
        if simulated[i] > 0 and (key := _key(plan)) not in seen:
            seen.add(key)
            plans.append((plan, float(simulated[i])))
    again = [(plan, one.value, value) for one in tried if (value := objective.of_plan(plan := segmenter.priced(one.plan))) > 0]
    if not plans or not again:
        return []
    said = np.log([value for *_, value in again])
    about, work = _described(segmenter, [plan for plan, *_ in again])
    surrogate = Surrogate.fitted(about, work, np.log([value for _, value, _ in again]) - said)
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
        chosen.append(first)  # the next one is chosen as if this one had its expected value
        surrogate = surrogate.and_one(about[first], work[first], float(mean[first]))
        best = min(best, float(expected[first] + mean[first]))
    return [plans[i][0].group_devices for i in chosen]


def _searched(
    segmenter: Segmenter, problem: Problem, objective: Objective, starts: Sequence[NDArray[np.int32]], seed: int
) -> list[NDArray[np.int32]]:
    """Search among plans by the calibrated costs, then by costs drawn around them."""
    rng, costs, found = np.random.default_rng([seed, 1]), segmenter.costs, []
    for i in range(_DRAWN):
        factor = np.exp(rng.normal(0, _UNSURE if i else 0.0, costs.core.shape))
        drawn = replace(costs, core=costs.core * factor, cut=costs.cut * factor)
        planner = Segmenter(segmenter.grouping, drawn, steady=objective.steady)
        found.append(planner.search(starts[i % len(starts)], problem, steps=_STEPS, seed=seed + i))
    return found


def _neighbours(
    starts: Sequence[NDArray[np.int32]], segmenter: Segmenter, problem: Problem, seed: int
) -> Iterator[NDArray[np.int32]]:
    """Draw neighbours: placements that move one group, or a run of consecutive groups, to another device."""
    rng, computing = np.random.default_rng([seed, 2]), np.flatnonzero(segmenter.computes)
    for _ in range(max(len(starts), _WORK // max(1, len(problem))) if len(computing) else 0):
        row, low = starts[int(rng.integers(len(starts)))].copy(), int(rng.integers(len(computing)))
        high = low + 1 if rng.random() < 0.5 else int(rng.integers(low, len(computing))) + 1
        able = np.flatnonzero(problem.feasible[computing[low:high]].all(axis=0))
        if len(able):
            row[computing[low:high]] = rng.choice(able)
            yield row


def _described(segmenter: Segmenter, plans: Sequence[Plan]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.stack([features(segmenter, plan) for plan in plans]), worked(segmenter, [plan.group_devices for plan in plans])


def _key(plan: Plan) -> frozenset[tuple[int, tuple[int, ...]]]:
    """Return what identifies a plan: the device and the groups of each program."""
    return frozenset((segment.device, segment.groups) for segment in plan.programs)
