"""Plans for many requests in flight: what they are valued by, what merging may do, and what devices cost each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.conflicts import shares_beside
from placeit.planning.segments import Segmenter
from placeit.simulator.objectives.throughput import Throughput
from placeit.simulator.simulate import simulate
from placeit.simulator.throughput_bound import ThroughputCost, bottleneck
from tests.planning.test_segments import cases, feasible_placement


def steady(like: Segmenter, outside: np.ndarray | None = None) -> Segmenter:
    return Segmenter(like.grouping, like.costs, steady=True, outside=outside)


@settings(max_examples=100)
@given(cases, st.integers(0, 10**6))
def test_a_placement_is_valued_by_what_its_plan_keeps_busy(like: Segmenter, seed: int) -> None:
    placement, segmenter = feasible_placement(like, seed), steady(like)
    plan = segmenter.plan(placement)
    bound = ThroughputCost(plan.problem)(plan.placement)[0]
    assert segmenter.seconds(placement)[0] == pytest.approx(bound)
    assert Throughput().of_plan(plan) >= bound * (1 - 1e-9)
    assert Throughput().of_plans(segmenter, np.stack([placement, placement])) == pytest.approx([bound, bound])
    assert segmenter.priced(plan).problem.compute == pytest.approx(plan.problem.compute)
    assert simulate(plan.problem, [plan.placement], requests=8)[0] / 8 >= bound * (1 - 1e-9)


@settings(max_examples=60)
@given(cases, st.integers(0, 10**6))
def test_merging_goes_as_far_as_the_busiest_resource_allows(like: Segmenter, seed: int) -> None:
    placement, segmenter = feasible_placement(like, seed), steady(like)
    apart, merged = segmenter.plan(placement, merge=False), segmenter.plan(placement)
    bounds = [ThroughputCost(plan.problem)(plan.placement)[0] for plan in (merged, apart)]
    assert bounds[0] <= bounds[1] * (1 + 1e-6)
    assert len(merged.segments) <= len(apart.segments)


@settings(max_examples=60)
@given(cases, st.integers(0, 10**6), st.sampled_from([1, 2, 5]))
def test_with_few_requests_in_flight_a_plan_is_valued_by_its_makespan_as_well(like: Segmenter, seed: int, few: int) -> None:
    placement = feasible_placement(like, seed)
    segmenter = Segmenter(like.grouping, like.costs, steady=True, in_flight=few)
    plan, value = segmenter.plan(placement), segmenter.seconds(placement)[0]
    makespan = simulate(replace(plan.problem, host=np.zeros_like(plan.problem.host)), [plan.placement])[0]
    assert value == pytest.approx(max(ThroughputCost(plan.problem)(plan.placement)[0], makespan / few))
    assert Throughput(few).of_plan(plan) >= value * (1 - 1e-9)


@settings(max_examples=60)
@given(cases, st.integers(0, 10**6))
def test_devices_slow_each_other_down_for_the_share_of_time_in_which_they_are_busy(like: Segmenter, seed: int) -> None:
    placement, segmenter, costs = feasible_placement(like, seed), steady(like), like.costs
    plan = segmenter.plan(placement)
    without = Segmenter(like.grouping, replace(costs, load=np.zeros((1, 1))), steady=True).priced(plan)
    width, at = len(costs.cluster), plan.placement
    alone = without.problem.compute[np.arange(len(at)), at]
    busy = np.bincount(at, alone, width)
    limit = bottleneck(without.problem, at).seconds
    share = busy / limit if limit > 0 else busy
    beside = shares_beside(costs.conflicts)
    for s, segment in enumerate(plan.segments):
        more = costs.load[list(segment.groups), at[s]].sum() * (beside[at[s]] @ share) if alone[s] > 0 else 0.0
        assert plan.problem.compute[s, at[s]] == pytest.approx(alone[s] + more)
    outside = np.arange(1.0, width + 1) / 4
    for s, segment in enumerate(steady(like, outside).priced(plan).segments):
        more = costs.load[list(segment.groups), at[s]].sum() * (beside[at[s]] @ outside) if alone[s] > 0 else 0.0
        slowed = steady(like, outside).priced(plan).problem.compute[s, at[s]]
        assert slowed == pytest.approx(plan.problem.compute[s, at[s]] + more)
