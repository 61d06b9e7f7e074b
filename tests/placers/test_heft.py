from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.problem import Problem
from placeit.placers.cp_sat import CpSat
from placeit.placers.cpop import Cpop
from placeit.placers.heft import Heft
from placeit.placers.list_scheduling import list_schedule, pinned
from placeit.placers.peft import Peft
from placeit.simulator.scheduler import Rules
from placeit.simulator.simulate import schedule
from placeit.testing.problems import random_problem

problems = st.builds(
    random_problem,
    st.integers(1, 24),
    st.integers(1, 4),
    st.integers(0, 2**20),
    everywhere=st.sampled_from([0.4, 0.8, 1.0]),
    tight=st.booleans(),
    conflicts=st.sampled_from([0.0, 0.5]),
)


@st.composite
def lumpy_problems(draw):
    """Small whole costs, many of them zero, so that starts, ranks and finish times tie; parallel edges and cut costs."""
    ops, devices = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    costs = st.integers(0, 3)
    compute = draw(st.lists(st.lists(costs, min_size=devices, max_size=devices), min_size=ops, max_size=ops))
    pairs = st.tuples(st.integers(0, ops - 1), st.integers(0, ops - 1)).map(sorted).filter(lambda pair: pair[0] < pair[1])
    edges = draw(st.lists(pairs, max_size=14)) if ops > 1 else []
    sizes = draw(st.lists(costs, min_size=len(edges), max_size=len(edges)))
    return Problem.from_arrays(
        compute,
        edges,
        sizes,
        np.ones((devices, devices)),
        np.full((devices, devices), draw(st.integers(0, 1))),
        cut=np.full((len(edges), devices), draw(st.integers(0, 1))),
        conflicts=np.full((devices, devices), draw(st.booleans())) & ~np.eye(devices, dtype=bool),
    )


def textbook():
    """The example of Topcuoglu et al. (2002), figures 2 to 4: 10 tasks on 3 processors."""
    compute = [
        [14, 16, 9], [13, 19, 18], [11, 13, 19], [13, 8, 17], [12, 13, 10],
        [13, 16, 9], [7, 15, 11], [5, 11, 14], [18, 12, 20], [21, 7, 16],
    ]  # fmt: skip
    edges = [
        (1, 2, 18), (1, 3, 12), (1, 4, 9), (1, 5, 11), (1, 6, 14), (2, 8, 19), (2, 9, 16), (3, 7, 23),
        (4, 8, 27), (4, 9, 23), (5, 9, 13), (6, 8, 15), (7, 10, 17), (8, 10, 11), (9, 10, 13),
    ]  # fmt: skip
    ends = [(src - 1, dst - 1) for src, dst, _ in edges]
    return Problem.from_arrays(compute, ends, [data for *_, data in edges], np.ones((3, 3)), np.zeros((3, 3)))


def test_the_textbook_example_gives_the_makespans_of_the_paper():
    assert Heft().plan(textbook()).makespan == 80
    assert Cpop().plan(textbook()).makespan == 86
    plan, bound = CpSat().plan(textbook())
    assert plan.makespan == 73  # optimal
    assert bound == pytest.approx(73, rel=1e-4)


def assert_valid(problem, plan):
    """No two ops overlap on a device or on two that conflict, and every op waits for its inputs to arrive."""
    problem.check(plan.placement)
    rows = np.arange(len(problem))
    np.testing.assert_allclose(plan.finish - plan.start, problem.compute[rows, plan.placement], rtol=1e-9, atol=1e-12)
    for e, (u, v) in enumerate(problem.edges):
        assert plan.start[v] >= plan.finish[u] + problem.comm(e)[plan.placement[u], plan.placement[v]] - 1e-12
    for d in range(problem.devices):
        here = np.flatnonzero(plan.placement == d)
        here = here[np.argsort(-plan.priority[here])]
        assert (plan.start[here][1:] >= plan.finish[here][:-1]).all()
    for u, v in np.argwhere(problem.conflicts[np.ix_(plan.placement, plan.placement)]):
        assert plan.finish[u] <= plan.start[v] or plan.finish[v] <= plan.start[u]
    assert plan.makespan == plan.finish.max()


@pytest.mark.parametrize("placer", [Heft(), Peft(), Cpop()])
@settings(max_examples=60)
@given(problem=st.one_of(problems, lumpy_problems()))
def test_a_plan_keeps_precedence_and_runs_one_op_at_a_time_on_each_device(placer, problem):
    assert_valid(problem, placer.plan(problem))


@settings(max_examples=60)
@given(problem=problems)
def test_the_plan_executed_in_planned_order_takes_as_long_as_planned(problem):
    plan = Heft().plan(problem)
    executed = schedule(problem, plan.placement, rules=Rules("contention-free", "planned"), priority=plan.priority)
    assert executed.makespan == pytest.approx(plan.makespan, rel=1e-12)
    np.testing.assert_allclose(executed.start[: len(problem)], plan.start, rtol=1e-9)


@settings(max_examples=40)
@given(problem=lumpy_problems())
def test_a_plan_with_ties_and_cuts_can_be_executed_in_planned_order(problem):
    plan = Heft().plan(problem)
    executed = schedule(problem, plan.placement, rules=Rules("contention-free", "planned"), priority=plan.priority)
    if not problem.cut.any():  # cuts keep devices busy, which plans treat as part of the transfer
        assert executed.makespan <= plan.makespan + 1e-9
    assert np.isfinite(executed.makespan)


def test_an_op_is_inserted_into_an_idle_gap_before_ops_that_were_planned_earlier():
    # op 1 waits long for op 0's output on device 1; op 2 is less urgent and fits before it there
    problem = Problem.from_arrays(
        [[4.0, np.inf], [np.inf, 4.0], [np.inf, 1.0]], [(0, 1)], [1.0], np.ones((2, 2)), np.zeros((2, 2))
    )
    plan = Heft().plan(problem)
    assert plan.start.tolist() == [0.0, 5.0, 0.0]
    assert plan.priority[2] > plan.priority[1]


def test_ops_move_to_other_devices_when_the_best_one_has_no_room():
    compute = [[1.0, 9.0]] * 4
    problem = Problem.from_arrays(compute, [], [], np.ones((2, 2)), np.zeros((2, 2)), param_bytes=[1.0] * 4, memory=[1.0, 10.0])
    plan = Heft().plan(problem)
    assert np.bincount(plan.placement).tolist() == [1, 3]
    assert_valid(problem, plan)


def test_the_choice_of_devices_is_repaired_when_it_leaves_no_room_for_the_last_op():
    # op 0 prefers device 0; op 1, which is less urgent, can run nowhere else and needs all of it
    problem = Problem.from_arrays(
        [[1.0, 2.0], [1.0, np.inf]], [(0, 1)], [0.0], np.ones((2, 2)), np.zeros((2, 2)), param_bytes=[1, 2], memory=[2, 2]
    )
    plan = Heft().plan(problem)
    assert plan.placement.tolist() == [1, 0]
    assert_valid(problem, plan)


@settings(max_examples=30)
@given(problem=problems, seed=st.integers(0, 100))
def test_a_schedule_for_a_given_placement_keeps_it(problem, seed):
    placement = Heft().plan(problem).placement
    turn = np.random.default_rng(seed)
    order = problem.order if turn.random() < 0.5 else np.argsort(Heft().plan(problem).start, kind="stable").astype(np.int32)
    plan = list_schedule(problem, order, pinned(problem, placement))
    assert plan.placement.tolist() == placement.tolist()
    assert_valid(problem, plan)


def test_a_plan_gives_wide_devices_to_ops_that_gain_by_them_only():
    # ops 1 and 2 are a tenth faster on both cores than on one, ops 0 and 3 twice as fast
    problem = Problem.from_arrays(
        [[5.0, 10.0, 10.0], [9.0, 10.0, 10.0], [9.0, 10.0, 10.0], [5.0, 10.0, 10.0]],
        [(0, 1), (0, 2), (1, 3), (2, 3)],
        np.zeros(4),
        np.ones((3, 3)),
        np.zeros((3, 3)),
        conflicts=[[False, True, True], [True, False, False], [True, False, False]],
    )
    plan = Heft().plan(problem)
    assert plan.makespan == 20
    assert plan.placement[[0, 3]].tolist() == [0, 0]
    assert sorted(plan.placement[[1, 2]].tolist()) == [1, 2]
