import itertools

import numpy as np
import pytest

from placeit.core.errors import UsageError
from placeit.learning.workloads.stream_graphs import draw_stream_graph
from placeit.placers.annealing import Annealing
from placeit.placers.exact import Exact
from placeit.placers.local_search import LocalSearch
from placeit.simulator.throughput_bound import ThroughputCost, min_seconds
from placeit.testing.problems import random_problem


def answer(placer, problem):
    cost = ThroughputCost(problem)
    return cost(placer.place(problem, cost, seed=0, evaluations=None))[0]


@pytest.mark.parametrize("seed", range(12))
def test_branch_and_bound_finds_the_placement_that_serves_most(seed):
    problem = random_problem(6, 3, seed, tight=seed % 3 == 0, conflicts=0.4 * (seed % 2))
    every = np.array(list(itertools.product(range(3), repeat=6)), np.int32)
    assert answer(Exact(), problem) == ThroughputCost(problem)(every).min() >= min_seconds(problem)


def test_branch_and_bound_uses_that_devices_are_alike():
    rng = np.random.default_rng(0)
    small = next(graph for graph in iter(lambda: draw_stream_graph(rng), None) if len(graph) == 8)
    problem = small.problem()
    # 8 operators on 5 alike devices: 5 ** 8 placements, 3,854 partitions
    assert answer(Exact(nodes=10_000), problem) <= answer(LocalSearch(evaluations=500), problem)
    with pytest.raises(UsageError, match="10 partial placements"):
        answer(Exact(nodes=10), problem)


def test_annealing_and_local_search_come_close_to_the_optimum():
    rng = np.random.default_rng(1)
    problems = [graph.problem() for graph in (draw_stream_graph(rng) for _ in range(40)) if len(graph) <= 10]
    best = np.array([answer(Exact(), problem) for problem in problems])
    annealed = np.array([answer(Annealing(evaluations=10_000), problem) for problem in problems])
    local = np.array([answer(LocalSearch(evaluations=5000), problem) for problem in problems])
    assert (annealed >= best).all()
    assert (annealed / best).mean() < 1.01
    assert (local / best).mean() < 1.05


@pytest.mark.parametrize("conflicts", [0.0, 0.5])
def test_annealing_heeds_memory_and_conflicts(conflicts):
    problem = random_problem(12, 4, 3, tight=True, conflicts=conflicts)
    cost = ThroughputCost(problem)
    place = Annealing(evaluations=5000).place(problem, cost, seed=0, evaluations=None)
    problem.check(place)
    assert cost(place) <= cost(LocalSearch(evaluations=2000).place(problem, cost, seed=0, evaluations=None)) * 1.05
