from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.placers.cp_sat import CpSat
from placeit.placers.exact import Exact
from placeit.placers.heft import Heft
from placeit.simulator.simulate import SimulatedCost
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
    )


@settings(max_examples=60, deadline=None)
@given(
    problem=st.one_of(
        st.builds(
            random_problem,
            st.integers(1, 6),
            st.integers(1, 3),
            st.integers(0, 2**20),
            everywhere=st.sampled_from([0.5, 1.0]),
            tight=st.booleans(),
        ),
        alike_problems(),
    ),
    links=st.sampled_from(["contention-free", "channel"]),
    queue=st.sampled_from(["fifo", "priority"]),
)
def test_no_placement_at_all_is_better(problem, links, queue):
    cost = SimulatedCost(problem, links=links, queue=queue)
    answer = Exact().place(problem, cost, seed=0, evaluations=None)
    assert cost(answer[None])[0] == best_of_all(problem, cost)


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
    problem = random_problem(60, 4, everywhere=1.0)
    with pytest.raises(UsageError, match="best placement of 60 ops on 4 devices for certain within 10 evaluations"):
        Exact().place(problem, SimulatedCost(problem), seed=0, evaluations=10)
    with pytest.raises(UsageError, match="within 1000 partial placements"):
        Exact(nodes=1000).place(problem, SimulatedCost(problem), seed=0, evaluations=None)


def test_a_measured_cost_is_not_asked_in_vain():
    problem = random_problem(10, 3, everywhere=1.0)

    def cost(placements):
        raise AssertionError("asked, though 3^10 placements cannot all be valued")

    with pytest.raises(UsageError, match="within 100 evaluations"):
        Exact().place(problem, cost, seed=0, evaluations=100)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_the_best_planned_order_is_at_least_as_short_as_the_best_first_in_first_out_run(seed):
    problem = random_problem(7, 2, seed, everywhere=0.9)
    cost = SimulatedCost(problem)
    plan, bound = CpSat().plan(problem)
    best = cost(Exact().place(problem, cost, seed=0, evaluations=None)[None])[0]
    assert plan.makespan <= best * (1 + 1e-4)
    assert bound <= plan.makespan * (1 + 1e-9)
