"""What measured segments say about profiled costs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeit.core.cluster import Cluster, Device, Link
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.calibration import calibrated
from tests.small_models import random_model

GROUPING = Grouping.singletons(random_model(6, 14).graph)
GROUPS = len(GROUPING.groups)
NAMES = ("a", "b", "c")
CLUSTER = Cluster(
    tuple(Device(name, kind="described") for name in NAMES),
    {(x, y): Link(1e6, 1e-3, "described") for x in NAMES for y in NAMES if x != y},
)


def profiled(seed: int = 0) -> Costs:
    rng = np.random.default_rng(seed)
    return Costs(rng.uniform(1e-3, 2e-3, (GROUPS, 3)), rng.uniform(0, 1e-4, (GROUPS, 3)), rng.uniform(1e-5, 1e-4, 3), CLUSTER)


def predicted(plan: Plan) -> NDArray[np.float64]:
    return plan.problem.compute[np.arange(len(plan.segments)), plan.placement]


def plans(costs: Costs, count: int, devices: int = 3) -> list[Plan]:
    rng = np.random.default_rng(9)
    return [Segmenter(GROUPING, costs).plan(rng.integers(devices, size=GROUPS)) for _ in range(count)]


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(0, 4))
def test_what_took_as_long_as_predicted_changes_nothing(seed: int, count: int) -> None:
    costs = profiled(seed)
    found = calibrated(costs, [(plan, predicted(plan)) for plan in plans(costs, count)])
    np.testing.assert_allclose(found.core, costs.core, rtol=1e-12)
    np.testing.assert_allclose(found.cut, costs.cut, rtol=1e-12)
    np.testing.assert_array_equal(found.dispatch, costs.dispatch)
    assert found.cluster is costs.cluster


@settings(max_examples=20)
@given(st.integers(0, 1000), st.floats(0.2, 5.0))
def test_a_device_that_is_slower_throughout_gets_slower_and_no_other_does(seed: int, factor: float) -> None:
    costs = profiled(seed)
    runs = [(plan, predicted(plan) * np.where(plan.placement == 1, factor, 1.0)) for plan in plans(costs, 3)]
    found = calibrated(costs, runs)
    expected = np.array([1.0, factor, 1.0])
    np.testing.assert_allclose(found.core, costs.core * expected, rtol=1e-9)
    np.testing.assert_allclose(found.cut, costs.cut * expected, rtol=1e-9)


def test_a_device_that_no_plan_used_keeps_its_costs() -> None:
    costs = profiled()
    found = calibrated(costs, [(plan, 2 * predicted(plan)) for plan in plans(costs, 2, devices=2)])
    np.testing.assert_allclose(found.core, costs.core * [2.0, 2.0, 1.0])


def test_a_group_that_took_longer_every_time_gets_dearer_the_more_often_it_was_seen() -> None:
    costs = profiled()
    slow = 7
    factors = []
    for times in (1, 2, 8):
        plan = Segmenter(GROUPING, costs).plan(np.zeros(GROUPS, int), merge=False)
        took = predicted(plan)
        s = next(i for i, segment in enumerate(plan.segments) if segment.groups == (slow,))
        took[s] *= 3
        found = calibrated(costs, [(plan, took)] * times)
        others = np.delete(found.core[:, 0] / costs.core[:, 0], slow)
        factors.append(found.core[slow, 0] / costs.core[slow, 0])
        assert factors[-1] > others.max()
    assert 1 < factors[0] < factors[1] < factors[2] < 3


def test_plans_of_corrected_costs_say_the_same_when_they_are_priced_at_the_profiled_ones() -> None:
    costs = profiled()
    segmenter = Segmenter(GROUPING, costs)
    truth = np.array([1.5, 0.7, 1.0])
    first = plans(costs, 1)[0]
    runs = [(first, predicted(first) * truth[first.placement])]
    corrected = calibrated(costs, runs)
    second = Segmenter(GROUPING, corrected).plan(np.arange(GROUPS) % 3)
    repriced = segmenter.priced(second)
    assert repriced.segments == second.segments
    again = calibrated(costs, [*runs, (repriced, predicted(repriced) * truth[repriced.placement])])
    np.testing.assert_allclose(again.core, costs.core * truth, rtol=1e-9)


def test_segments_that_were_not_measured_or_cost_nothing_say_nothing() -> None:
    costs = profiled()
    plan = plans(costs, 1)[0]
    took = predicted(plan)
    took[::2] = 0.0
    np.testing.assert_allclose(calibrated(costs, [(plan, took)]).core, costs.core, rtol=1e-12)
    free = dataclasses.replace(costs, core=0 * costs.core, cut=0 * costs.cut, dispatch=0 * costs.dispatch)
    plan = Segmenter(GROUPING, free).plan(np.zeros(GROUPS, int))
    found = calibrated(free, [(plan, np.ones(len(plan.segments)))])
    assert found.core.tolist() == free.core.tolist()


def test_costs_that_are_infinite_stay_so() -> None:
    costs = profiled()
    costs.core[3, 2] = np.inf
    found = calibrated(costs, [(plan, 2 * predicted(plan)) for plan in plans(costs, 2, devices=2)])
    assert found.core[3, 2] == np.inf
    assert np.isfinite(np.delete(found.core.ravel(), 3 * 3 + 2)).all()
    assert found.core[0, 0] == pytest.approx(2 * costs.core[0, 0])
