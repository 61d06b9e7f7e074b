from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit import _core
from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.placers.bound import lower_bound
from placeit.placers.cp_sat import CpSat
from placeit.placers.exact import Exact
from placeit.placers.heft import Heft
from placeit.placers.registry import get_placer
from placeit.simulator.scheduler import GIPH_RULES, Rules
from placeit.simulator.simulate import SimulatedCost, schedule
from placeit.simulator.tables import compiled
from placeit.simulator.throughput_bound import ThroughputCost
from placeit.testing.problems import random_problem


def best_of_all(problem, cost):
    """Least cost over every feasible placement, one by one."""
    every = np.array(list(itertools.product(range(problem.devices), repeat=len(problem))), np.int32)
    able = np.isfinite(problem.compute[np.arange(len(problem)), every]).all(axis=1)
    used = np.stack([(problem.param_bytes * (every == d)).sum(axis=1) for d in range(problem.devices)], axis=1)
    return cost(every[able & (used <= problem.memory).all(axis=1)]).min()


@st.composite
def alike_problems(draw):
    """Whole costs and devices that are often alike, so that swaps of devices can be left out; cuts; shared tensors."""
    ops, devices = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    column = st.lists(st.integers(0, 3), min_size=ops, max_size=ops)
    columns = draw(st.lists(column, min_size=1, max_size=2))
    compute = np.array([columns[d % len(columns)] for d in range(devices)], float).T
    pairs = st.tuples(st.integers(0, ops - 1), st.integers(0, ops - 1)).map(sorted).filter(lambda pair: pair[0] < pair[1])
    edges = draw(st.lists(pairs, max_size=8, unique_by=tuple)) if ops > 1 else []
    return Problem.from_arrays(
        compute,
        edges,
        [float(1 + src) for src, _ in edges],
        np.ones((devices, devices)),
        np.zeros((devices, devices)),
        edge_tensor=[src for src, _ in edges],
        cut=np.full((len(edges), devices), draw(st.integers(0, 1))),
        conflicts=_conflicts(draw(st.integers(0, 2**20)), devices) if draw(st.booleans()) else None,
    )


def _conflicts(seed, devices):
    upper = np.triu(np.random.default_rng(seed).random((devices, devices)) < 0.5, 1)
    return upper | upper.T


def small_problems(*conflicts):
    """Problems that enumeration solves; devices conflict with one of these probabilities, or never."""
    some = st.builds(
        random_problem,
        st.integers(1, 6),
        st.integers(1, 3),
        st.integers(0, 2**20),
        everywhere=st.sampled_from([0.5, 1.0]),
        tight=st.booleans(),
        conflicts=st.sampled_from([0.0, *conflicts]),
    )
    return st.one_of(some, alike_problems())


@settings(max_examples=60)
@given(
    problem=small_problems(0.4, 0.8),
    links=st.sampled_from(["contention-free", "channel"]),
    queue=st.sampled_from(["fifo", "priority"]),
)
def test_no_placement_at_all_is_better_and_none_beats_the_bound(problem, links, queue):
    cost = SimulatedCost(problem, rules=Rules(links, queue))
    answer = Exact().place(problem, cost, seed=0, evaluations=None)
    assert cost(answer[None])[0] == best_of_all(problem, cost)
    assert lower_bound(problem) <= cost(answer[None])[0] * (1 + 1e-9)


def test_it_is_exact_for_a_cost_function_that_is_not_a_simulator():
    problem = random_problem(7, 3, everywhere=0.8)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(7, 3))

    def cost(placements):
        return weights[np.arange(7), placements].sum(axis=1)

    answer = Exact().place(problem, cost, seed=0, evaluations=None)
    assert cost(answer[None])[0] == best_of_all(problem, cost)


def test_bounds_leave_most_placements_out():
    problem = random_problem(14, 3, everywhere=1.0)
    cost = SimulatedCost(problem)
    answer = Exact().place(problem, cost, seed=0, evaluations=3**14 // 50)
    assert cost(answer[None])[0] <= cost(Heft().plan(problem).placement[None])[0]


def test_what_is_too_large_is_an_error_and_not_a_guess():
    problem = random_problem(24, 4, everywhere=1.0)
    with pytest.raises(UsageError, match="best placement of 24 ops on 4 devices for certain within 10 evaluations"):
        Exact().place(problem, SimulatedCost(problem, rules=GIPH_RULES), seed=0, evaluations=10)
    with pytest.raises(UsageError, match="within 1000 partial placements"):
        Exact(nodes=1000).place(problem, SimulatedCost(problem), seed=0, evaluations=None)


def test_a_search_that_ends_with_its_last_node_has_an_answer():
    problem = random_problem(2, 2, everywhere=1.0)  # 2 nodes for the first op, and 2 below each of them

    def cost(placements):
        return placements.sum(axis=1).astype(float)

    assert Exact(nodes=6).place(problem, cost, seed=0, evaluations=None).tolist() == [0, 0]
    with pytest.raises(UsageError, match="within 5 partial placements"):
        Exact(nodes=5).place(problem, cost, seed=0, evaluations=None)


def test_a_measured_cost_is_not_asked_in_vain():
    problem = random_problem(10, 3, everywhere=1.0)

    def cost(placements):
        raise AssertionError("asked, though 3^10 placements cannot all be valued")

    with pytest.raises(UsageError, match="within 100 evaluations"):
        Exact().place(problem, cost, seed=0, evaluations=100)


@settings(max_examples=8)
@given(seed=st.integers(0, 2**20), conflicts=st.sampled_from([0.0, 0.6]))
def test_the_best_planned_order_is_at_least_as_short_as_the_best_first_in_first_out_run(seed, conflicts):
    problem = random_problem(6, 3, seed, everywhere=0.9, conflicts=conflicts)
    cost = SimulatedCost(problem)
    plan, bound = CpSat().plan(problem)
    best = cost(Exact().place(problem, cost, seed=0, evaluations=None)[None])[0]
    assert plan.makespan <= best * (1 + 1e-4)
    assert bound <= plan.makespan * (1 + 1e-9)
    executed = schedule(problem, plan.placement, rules=Rules("contention-free", "planned"), priority=plan.priority)
    assert executed.makespan == pytest.approx(plan.makespan, rel=1e-9)


@settings(max_examples=20)
@given(
    problem=small_problems(0.6),
)
def test_no_placement_at_all_keeps_its_busiest_device_or_link_less_busy_than_the_solver(problem):
    cost, best = ThroughputCost(problem), best_of_all(problem, ThroughputCost(problem))
    placement, bound = CpSat().balanced(problem)
    assert best <= cost(placement)[0] <= best * (1 + 1e-4)
    assert bound <= best * (1 + 1e-9)
    assert np.array_equal(placement, CpSat().place(problem, cost, seed=0, evaluations=None))


def on_two_cores(chains, seed=0):
    """A wide op, chains of ops that gain nothing from a second core, and a wide op; on both cores, or on either."""
    rng = np.random.default_rng(seed)
    wide, narrow = (6.0, 10.0, 10.0), (9.0, 10.0, 10.0)
    ops = [wide, *(narrow for _ in range(2 * chains)), wide]
    edges = []
    for chain in range(chains):
        edges += [(0, 1 + 2 * chain), (1 + 2 * chain, 2 + 2 * chain), (2 + 2 * chain, 1 + 2 * chains)]
    conflicts = np.array([[False, True, True], [True, False, False], [True, False, False]])
    return Problem.from_arrays(
        np.array(ops) * rng.uniform(0.99, 1.01, (len(ops), 1)),
        edges,
        np.ones(len(edges)),
        np.full((3, 3), 1e3),
        np.full((3, 3), 0.01),
        device_names=("CPU@0-1", "CPU@0", "CPU@1"),
        conflicts=conflicts,
    )


def test_wide_ops_run_on_all_cores_and_branches_on_one_each():
    problem = on_two_cores(chains=2)
    cost = SimulatedCost(problem)
    best = Exact().place(problem, cost, seed=0, evaluations=None)
    assert best[[0, 5]].tolist() == [0, 0]
    assert sorted((best[1:3].tolist(), best[3:5].tolist())) == [[1, 1], [2, 2]]
    alone = min(cost(np.full((1, 6), d, np.int32))[0] for d in range(3))
    apart = Problem.from_arrays(  # what the cores could do without the two together
        problem.compute[:, 1:], problem.edges, problem.edge_bytes, np.full((2, 2), 1e3), np.full((2, 2), 0.01)
    )
    cores = Exact().place(apart, SimulatedCost(apart), seed=0, evaluations=None)
    assert cost(best[None])[0] < 0.85 * min(alone, SimulatedCost(apart)(cores[None])[0])


CLASSIC = ("annealing", "cpop", "critical-path", "heft", "local-search", "metis", "random", "random-task-eft", "giph")


@pytest.mark.parametrize("name", CLASSIC)
def test_no_placer_beats_the_best_placement_where_devices_conflict(name):
    for seed in range(4):
        problem = random_problem(6, 3, seed, everywhere=0.8, conflicts=0.6) if seed else on_two_cores(chains=2)
        cost = SimulatedCost(problem, rules=Rules("contention-free", "priority" if seed % 2 else "fifo"))
        best = cost(Exact().place(problem, cost, seed=0, evaluations=None)[None])[0]
        found = get_placer(name).place(problem, cost, seed=0, evaluations=3000)
        assert cost(problem.check(found)[None])[0] >= best >= lower_bound(problem) * (1 - 1e-9)
        if name in ("annealing", "local-search"):
            assert cost(found[None])[0] == pytest.approx(best)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tables": None}, "incompatible function arguments"),
        ({"tail": np.zeros(3)}, "'tail' has 3 values; expected 4"),
        ({"tail": np.zeros(4, np.float32)}, "'tail' must be an array of float64"),
        ({"alike": np.zeros(2, np.int64)}, "'alike' must be an array of int32"),
        ({"cliques": np.zeros((1, 3), bool)}, "'cliques' has shape"),
        ({"share": np.zeros(4)[::2]}, "'share' must be contiguous"),
    ],
)
def test_a_search_of_bad_arrays_is_an_error_that_names_them(changed, message):
    problem = random_problem(4, 2, everywhere=1.0)
    good = {
        "tables": compiled(problem),
        "tail": np.zeros(4),
        "alike": np.zeros(2, np.int32),
        "cliques": np.zeros((0, 2), bool),
        "share": np.ones(2),
        "capacity": False,
    }
    with pytest.raises((TypeError, ValueError), match=message):
        _core.ExactSearch(**(good | changed))
    search = _core.ExactSearch(**good)
    with pytest.raises(ValueError, match="'placements' has shape"):
        search.next(np.empty((5, 3), np.int32), np.inf, 100)
    placements = np.empty((20, 4), np.int32)
    found, _ = search.next(placements, np.inf, 1000)
    assert found == 2**3  # of two devices that are alike the first op takes one
    assert search.over
    assert search.next(placements, np.inf, 1000) == (0, 0)
