"""PEFT against the example of its paper and a slow oracle, and the best of the family of list schedulers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.problem import Problem
from placeit.placers.best_list import BestList
from placeit.placers.cpop import Cpop
from placeit.placers.heft import Heft
from placeit.placers.list_scheduling import optimistic_costs
from placeit.placers.local_search import starts
from placeit.placers.peft import Peft
from placeit.simulator.scheduler import EXECUTED_RULES, GIPH_RULES
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem

problems = st.builds(
    random_problem,
    st.integers(1, 16),
    st.integers(1, 4),
    st.integers(0, 2**20),
    everywhere=st.sampled_from([0.4, 0.8, 1.0]),
)
any_problems = st.builds(
    random_problem,
    st.integers(1, 16),
    st.integers(1, 4),
    st.integers(0, 2**20),
    everywhere=st.sampled_from([0.4, 1.0]),
    tight=st.booleans(),
    conflicts=st.sampled_from([0.0, 0.5]),
)


def of_the_paper():
    """The example of Arabnejad and Barbosa (2014), figure 1: 10 tasks on 3 processors."""
    compute = [
        [22, 21, 36], [22, 18, 18], [32, 27, 43], [7, 10, 4], [29, 27, 35],
        [26, 17, 24], [14, 25, 30], [29, 23, 36], [15, 21, 8], [13, 16, 33],
    ]  # fmt: skip
    edges = [
        (1, 2, 17), (1, 3, 31), (1, 4, 29), (1, 5, 13), (1, 6, 7), (2, 8, 3), (2, 9, 30), (3, 7, 16),
        (4, 8, 11), (4, 9, 7), (5, 9, 57), (6, 8, 5), (7, 10, 9), (8, 10, 42), (9, 10, 7),
    ]  # fmt: skip
    ends = [(src - 1, dst - 1) for src, dst, _ in edges]
    return Problem.from_arrays(compute, ends, [data for *_, data in edges], np.ones((3, 3)), np.zeros((3, 3)))


def test_the_example_has_the_costs_and_makespans_of_the_paper():
    table = [
        [64, 68, 86], [42, 39, 42], [27, 41, 43], [42, 39, 50], [28, 37, 28],
        [42, 39, 44], [13, 16, 22], [13, 16, 33], [13, 16, 20], [0, 0, 0],
    ]  # fmt: skip
    assert optimistic_costs(of_the_paper()).tolist() == table
    assert Peft().plan(of_the_paper()).makespan == 122
    assert Heft().plan(of_the_paper()).makespan == 133


def oracle(problem):
    """PEFT as the paper has it, slowly: the table, its means, and the placement."""
    ops, devices, able = len(problem), range(problem.devices), problem.feasible
    consumers = {v: [(int(w), e) for e, (u, w) in enumerate(problem.edges) if u == v] for v in range(ops)}
    producers = {v: [(int(u), e) for e, (u, w) in enumerate(problem.edges) if w == v] for v in range(ops)}

    def mean_transfer(v, w, e):
        apart = [problem.comm(e)[a, b] for a in devices for b in devices if a != b and able[v, a] and able[w, b]]
        return np.mean(apart) if apart else 0.0

    table = np.zeros((ops, problem.devices))
    for v in reversed(problem.order.tolist()):
        for d in devices:
            for w, e in consumers[v]:
                transfer = mean_transfer(v, w, e)
                ways = [problem.compute[w, to] + table[w, to] + (transfer if to != d else 0.0) for to in devices]
                table[v, d] = max(table[v, d], min(ways))
    rank = [np.mean(table[v, able[v]]) for v in range(ops)]
    place, finish, busy = {}, {}, {d: [] for d in devices}
    while len(place) < ops:
        ready = [v for v in problem.order.tolist() if v not in place and all(u in place for u, _ in producers[v])]
        v = max(ready, key=lambda v: rank[v])  # the first of equals
        ends = {}
        for d in np.flatnonzero(able[v]).tolist():
            arrived = max([finish[u] + problem.comm(e)[place[u], d] for u, e in producers[v]], default=0.0)
            starts_at = [arrived, *(end for _, end in busy[d] if end > arrived)]
            took = problem.compute[v, d]
            free = [at for at in starts_at if all(at + took <= begin or end <= at for begin, end in busy[d])]
            ends[d] = min(free) + took
        place[v] = min(ends, key=lambda d: ends[d] + table[v, d])
        finish[v] = ends[place[v]]
        busy[place[v]].append((finish[v] - problem.compute[v, place[v]], finish[v]))
    return table, [place[v] for v in range(ops)], max(finish.values())


@settings(max_examples=60)
@given(problem=problems)
def test_it_plans_as_the_slow_oracle_does(problem):
    table, placement, makespan = oracle(problem)
    np.testing.assert_allclose(optimistic_costs(problem), table, rtol=1e-12)
    plan = Peft().plan(problem)
    assert plan.placement.tolist() == placement
    assert plan.makespan == pytest.approx(makespan, rel=1e-12)


@settings(max_examples=30)
@given(problem=any_problems, rules=st.sampled_from([EXECUTED_RULES, GIPH_RULES]))
def test_the_best_of_the_family_is_no_worse_than_its_members_by_any_rules(problem, rules):
    cost = SimulatedCost(problem, rules=rules)
    members = np.stack([placer.plan(problem).placement for placer in (Heft(), Peft(), Cpop())])
    answer = problem.check(BestList().place(problem, cost, seed=0, evaluations=None))
    assert cost(answer[None])[0] <= cost(members).min()


def test_without_evaluations_the_family_answers_as_heft_does():
    problem = random_problem(30, 3)
    answer = BestList().place(problem, SimulatedCost(problem), seed=0, evaluations=0)
    assert answer.tolist() == Heft().plan(problem).placement.tolist()


def test_a_search_starts_from_peft_as_well():
    problem = of_the_paper()
    assert Peft().plan(problem).placement.tolist() in starts(problem).tolist()
