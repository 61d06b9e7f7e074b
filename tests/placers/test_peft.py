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
from placeit.placers.list_scheduling import links_of, optimistic_costs
from placeit.placers.local_search import starts
from placeit.placers.peft import Peft
from placeit.simulator.scheduler import EXECUTED_RULES, GIPH_RULES, Rules
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


def first_gap(busy, ready, seconds):
    """The earliest time from a moment on at which nothing is busy for so long."""
    times = [ready, *(end for _, end in busy if end > ready)]
    return min(at for at in times if all(at + seconds <= begin or end <= at for begin, end in busy))


def oracle(problem, links):
    """PEFT as the paper has it, slowly: the table, the placement and its makespan; where links are channels, with these."""
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
    channels, sent = {(a, b): [] for a in devices for b in devices}, {}

    def fetch(v, d):
        """When the inputs of an op are on a device, and the transfers that this takes, by channel and tensor."""
        arrived, new = 0.0, []
        for u, e in producers[v]:
            tensor = int(problem.edge_tensor[e])
            if place[u] == d or links == "contention-free":
                arrived = max(arrived, finish[u] + problem.comm(e)[place[u], d])
            elif (tensor, d) not in sent:
                others = [span for channel, _, span in new if channel == (place[u], d)]
                begin = max([finish[u], *(end for _, end in others)])
                seconds = problem.comm(e)[place[u], d]
                at = first_gap(channels[place[u], d], begin, seconds)
                new.append(((place[u], d), tensor, (at, at + seconds)))
                arrived = max(arrived, at + seconds)
            else:
                arrived = max(arrived, sent[tensor, d])
        return arrived, new

    while len(place) < ops:
        ready = [v for v in problem.order.tolist() if v not in place and all(u in place for u, _ in producers[v])]
        v = max(ready, key=lambda v: rank[v])  # the first of equals
        ends = {}
        for d in np.flatnonzero(able[v]).tolist():
            ends[d] = first_gap(busy[d], fetch(v, d)[0], problem.compute[v, d]) + problem.compute[v, d]
        place[v] = min(ends, key=lambda d: ends[d] + table[v, d])
        for channel, tensor, span in fetch(v, place[v])[1]:
            channels[channel].append(span)
            sent[tensor, place[v]] = span[1]
        finish[v] = ends[place[v]]
        busy[place[v]].append((finish[v] - problem.compute[v, place[v]], finish[v]))
    return table, [place[v] for v in range(ops)], max(finish.values())


@settings(max_examples=60)
@given(problem=problems, links=st.sampled_from(["contention-free", "channel"]))
def test_it_plans_as_the_slow_oracle_does(problem, links):
    table, placement, makespan = oracle(problem, links)
    np.testing.assert_allclose(optimistic_costs(problem), table, rtol=1e-12)
    plan = Peft().plan(problem, links)
    assert plan.placement.tolist() == placement
    assert plan.makespan == pytest.approx(makespan, rel=1e-12)


def fan_out():
    """An op whose two tensors are read by two ops each: far away, where each of them takes a tenth."""
    compute = [[1.0, np.inf]] + [[20.0, 2.0]] * 4
    edges, links = [(0, 1), (0, 2), (0, 3), (0, 4)], (np.ones((2, 2)), np.zeros((2, 2)))
    return Problem.from_arrays(compute, edges, [3.0] * 4, *links, edge_tensor=[0, 0, 1, 1])


def test_transfers_wait_for_each_other_on_a_channel_and_a_tensor_crosses_once():
    assert Heft().plan(fan_out()).start.tolist() == [0, 4, 6, 8, 10]
    # without the second reader of each tensor it is the channel that the last op waits for
    apart = fan_out()
    apart = Problem.from_arrays(
        apart.compute, apart.edges, apart.edge_bytes, apart.bandwidth, apart.latency, edge_tensor=[0, 1, 2, 3]
    )
    assert Heft().plan(apart, "channel").start.tolist() == [0, 4, 7, 10, 13]
    assert Heft().plan(fan_out(), "channel").start.tolist() == [0, 4, 6, 8, 10]


@settings(max_examples=30)
@given(problem=any_problems)
def test_a_plan_over_channels_is_as_long_as_its_execution_without_waiting_at_least(problem):
    plan = Heft().plan(problem, "channel")
    for e, (u, v) in enumerate(problem.edges):
        assert plan.start[v] >= plan.finish[u] + problem.comm(e)[plan.placement[u], plan.placement[v]] - 1e-9
    for d in range(problem.devices):
        here = np.flatnonzero(plan.placement == d)
        here = here[np.lexsort((plan.finish[here], plan.start[here]))]
        assert (plan.start[here][1:] >= plan.finish[here][:-1]).all()


@settings(max_examples=30)
@given(problem=any_problems, rules=st.sampled_from([EXECUTED_RULES, GIPH_RULES]))
def test_the_best_of_the_family_is_no_worse_than_its_members_by_any_rules(problem, rules):
    cost = SimulatedCost(problem, rules=rules)
    family = [placer.plan(problem, links) for placer in (Heft(), Peft()) for links in (rules.links, "contention-free")]
    members = np.stack([plan.placement for plan in (*family, Cpop().plan(problem))])
    answer = problem.check(BestList().place(problem, cost, seed=0, evaluations=None))
    assert cost(answer[None])[0] <= cost(members).min()


def test_without_evaluations_the_family_answers_as_heft_does():
    problem = random_problem(30, 3)
    answer = BestList().place(problem, SimulatedCost(problem), seed=0, evaluations=0)
    assert answer.tolist() == Heft().plan(problem, "channel").placement.tolist()


def test_more_plans_are_never_worse_and_the_seed_decides_which():
    problem = random_problem(60, 4, seed=1)
    cost = SimulatedCost(problem)
    found = [BestList(plans).place(problem, cost, seed=0, evaluations=None) for plans in (1, 13, 40)]
    seconds = cost(np.stack(found))
    assert seconds[0] >= seconds[1] >= seconds[2]
    again = BestList(40).place(problem, cost, seed=0, evaluations=None)
    assert again.tolist() == found[2].tolist()


@pytest.mark.parametrize("links", ["contention-free", "channel"])
def test_searches_start_from_heft_and_peft_as_links_are(links):
    problem = of_the_paper()
    begun = starts(problem, links).tolist()
    assert begun[:2] == [placer.plan(problem, links).placement.tolist() for placer in (Heft(), Peft())]
    assert Heft().plan(problem).placement.tolist() in begun  # so that no search is worse
    assert links_of(SimulatedCost(problem, rules=Rules(links))) == links
    assert links_of(lambda placements: np.zeros(len(placements))) == "channel"  # as executors have it
