"""Select the placements that are worth measuring next, given the measurements so far."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.learning.surrogate_model import Surrogate, expected_gain, features, work_shares
from placeit.placers.feasibility import fits
from placeit.planning.segments import Plan, Segmenter
from placeit.simulator.objectives.base import Objective

__all__ = ["Measurement", "worth_measuring"]

_STARTS = 4  # measured placements whose neighbours are considered
_NEIGHBOUR_GROUPS = 40_000  # groups of all neighbours together: simulating a placement of 100 groups takes a millisecond
_SEARCHES, _SEARCH_STEPS = 4, 400  # searches with costs drawn around the calibrated ones; plans that each of them tries
_COST_DEVIATION = 0.05  # standard deviation of the logarithm of a drawn cost
_MAX_CANDIDATES = 80  # placements, the best by simulation, that the surrogate values
_MIN_GAIN = 0.002  # expected gain, as a share of the best value, below which a placement is not worth measuring


class Measurement(NamedTuple):
    """A measured plan, and its value in the unit of the objective."""

    plan: Plan
    value: float


def worth_measuring(
    segmenter: Segmenter,
    problem: Problem,
    objective: Objective,
    measurements: Sequence[Measurement],
    proposed: Iterable[NDArray[np.int32]] = (),
    excluded: Iterable[Plan] = (),
    *,
    count: int,
    seed: int,
) -> list[NDArray[np.int32]]:
    """Return the placements with the greatest expected gain, best first: ``int32[G]`` each; empty if none is worth measuring.

    Args:
        segmenter: plans placements, with costs that are calibrated on the measurements.
        problem: decides which placements are feasible.
        objective: values plans.
        measurements: the measurements so far, at least one.
        proposed: placements to consider in addition to the ones found here, ``int32[G]`` each.
        excluded: plans that must not be measured (again), in addition to the measured ones.
        count: maximum number of placements to return.
        seed: seed of all random draws.
    """
    seen = {_key(plan) for plan in itertools.chain((one.plan for one in measurements), excluded)}
    starts = [one.plan.group_devices for one in sorted(measurements, key=lambda one: one.value)[:_STARTS]]
    pool = [*proposed, *_search(segmenter, problem, objective, starts, seed)]
    pool += _neighbours([*starts, *pool[-_SEARCHES:]], segmenter, problem, seed)
    rows = np.unique(np.array([row for row in pool if fits(problem, row)], np.int32).reshape(-1, len(problem)), axis=0)
    simulated = objective.of_plans(segmenter, rows)
    candidates: list[tuple[Plan, float]] = []
    for i in np.argsort(simulated, kind="stable").tolist():
        if len(candidates) == _MAX_CANDIDATES or not np.isfinite(simulated[i]):
            break
        plan = segmenter.plan(rows[i])
        if simulated[i] > 0 and (key := _key(plan)) not in seen:
            seen.add(key)
            candidates.append((plan, float(simulated[i])))
    training = [
        (plan, one.value, value) for one in measurements if (value := objective.of_plan(plan := segmenter.priced(one.plan))) > 0
    ]
    if not candidates or not training:
        return []
    predicted = np.log([value for *_, value in training])
    inputs, work = _described(segmenter, [plan for plan, *_ in training])
    surrogate = Surrogate.fit(inputs, work, np.log([value for _, value, _ in training]) - predicted)
    best = float((predicted + surrogate.predict(inputs, work)[0]).min())
    inputs, work = _described(segmenter, [plan for plan, _ in candidates])
    predicted = np.log([value for _, value in candidates])
    chosen: list[int] = []
    while len(chosen) < min(count, len(candidates)):
        mean, deviation = surrogate.predict(inputs, work)
        gain = expected_gain(predicted + mean, deviation, best)
        gain[chosen] = 0.0
        first = int(gain.argmax())
        if gain[first] < _MIN_GAIN:
            break
        chosen.append(first)  # the next candidate is chosen as if this one had its expected value
        surrogate = surrogate.with_measurement(inputs[first], work[first], float(mean[first]))
        best = min(best, float(predicted[first] + mean[first]))
    return [candidates[i][0].group_devices for i in chosen]


def _search(
    segmenter: Segmenter, problem: Problem, objective: Objective, starts: Sequence[NDArray[np.int32]], seed: int
) -> list[NDArray[np.int32]]:
    """Return a placement for each of several searches: by the calibrated costs, then by costs drawn around them."""
    rng, costs, found = np.random.default_rng([seed, 1]), segmenter.costs, []
    for i in range(_SEARCHES):
        factor = np.exp(rng.normal(0, _COST_DEVIATION if i else 0.0, costs.core.shape))
        drawn = replace(costs, core=costs.core * factor, cut=costs.cut * factor)
        planner = Segmenter(segmenter.grouping, drawn, steady=objective.steady)
        found.append(planner.search(starts[i % len(starts)], problem, steps=_SEARCH_STEPS, seed=seed + i))
    return found


def _neighbours(
    starts: Sequence[NDArray[np.int32]], segmenter: Segmenter, problem: Problem, seed: int
) -> Iterator[NDArray[np.int32]]:
    """Draw random placements that move one group, or a run of consecutive groups, of a start to another device."""
    rng, computing = np.random.default_rng([seed, 2]), np.flatnonzero(segmenter.computes)
    for _ in range(max(len(starts), _NEIGHBOUR_GROUPS // max(1, len(problem))) if len(computing) else 0):
        row, low = starts[int(rng.integers(len(starts)))].copy(), int(rng.integers(len(computing)))
        high = low + 1 if rng.random() < 0.5 else int(rng.integers(low, len(computing))) + 1
        able = np.flatnonzero(problem.feasible[computing[low:high]].all(axis=0))
        if len(able):
            row[computing[low:high]] = rng.choice(able)
            yield row


def _described(segmenter: Segmenter, plans: Sequence[Plan]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the features and the work shares of plans, as a :class:`Surrogate` reads them."""
    work = work_shares(segmenter, [plan.group_devices for plan in plans])
    return np.stack([features(segmenter, plan) for plan in plans]), work


def _key(plan: Plan) -> frozenset[tuple[int, tuple[int, ...]]]:
    """Return the identity of a plan: the device and the groups of each program."""
    return frozenset((segment.device, segment.groups) for segment in plan.programs)
