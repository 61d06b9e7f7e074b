import dataclasses

import numpy as np
import pytest
import torch

from placeit.bench.streams import RATE
from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.learning.agent import ProblemInstance
from placeit.learning.agents.stream_allocation.agent import StreamAllocationAgent
from placeit.learning.checkpoint import load_policy
from placeit.learning.placers.stream_allocation import StreamAllocation
from placeit.learning.registry import make_agent
from placeit.learning.training.loop import evaluate, train
from placeit.learning.training.sources import draw_from, find_source, served
from placeit.learning.workloads.stream_graphs import draw_stream_graph
from placeit.placers.metis import partition
from placeit.simulator.throughput_bound import ThroughputCost, relative_throughput
from placeit.testing.problems import random_problem


def problems(count, seed=0):
    rng = np.random.default_rng([seed, 7])
    return [draw_stream_graph(rng).problem() for _ in range(count)]


def agent(**options) -> StreamAllocationAgent:
    made = make_agent("stream-allocation", seed=0, **{"width": 16} | options)
    assert isinstance(made, StreamAllocationAgent)
    return made


def in_order_of_first_use(problem, placement):
    """Devices in the order in which breadth-first placement first uses them."""
    depth = np.zeros(len(problem), int)
    for v in problem.order:
        for u, w in problem.edges:
            if w == v:
                depth[v] = max(depth[v], depth[u] + 1)
    used = placement[np.argsort(depth, kind="stable")]
    return used[np.sort(np.unique(used, return_index=True)[1])].tolist()


@pytest.mark.parametrize("options", [{}, {"encoder": "lstm"}, {"upstream": False}, {"encoder": "lstm", "upstream": False}])
def test_a_decision_scores_as_it_was_drawn(options):
    """The probabilities of all placements of a small problem add up to one."""
    rng = np.random.default_rng(0)
    problem = Problem.from_arrays(rng.uniform(1, 2, (3, 2)), [[0, 1], [0, 2]], [1, 2], np.ones((2, 2)), np.zeros((2, 2)))
    one = agent(devices=2, **options)
    drawn = one.rollout([served(problem)] * 400, rng)
    ((_, _, log, _),) = one.score(drawn)
    probability = {tuple(v[0].tolist()): p for v, p in zip(drawn.visited, log.exp().tolist(), strict=True)}
    assert len(probability) == 8
    assert sum(probability.values()) == pytest.approx(1, abs=1e-5)


def test_padding_changes_no_decision():
    small, large = sorted(problems(8), key=len)[::7]
    one = agent()
    for options in (one, agent(encoder="lstm")):
        ((_, _, alone, _),) = options.score(options.rollout([served(small)], np.random.default_rng(0)))
        trajectory = options.rollout([served(small)], np.random.default_rng(0))
        decisions = dataclasses.replace(
            trajectory.decisions,
            problems=[small, large],
            chosen=np.stack([np.pad(row, (0, len(large) - len(small))) for row in trajectory.decisions.chosen] * 2),
            allowed=np.ones((2, len(large), 5), bool),
        )
        decisions.allowed[0, : len(small)] = trajectory.decisions.allowed[0]
        trajectory.decisions = decisions
        ((_, _, beside, _),) = options.score(trajectory)
        assert beside[0].item() == pytest.approx(alone.item(), abs=1e-4)


def test_devices_that_are_alike_are_used_in_their_order():
    cases = problems(10)
    episodes = agent().rollout([served(problem) for problem in cases], np.random.default_rng(0)).visited
    for problem, visited in zip(cases, episodes, strict=True):
        used = in_order_of_first_use(problem, visited[0])
        assert used == list(range(len(used)))


def test_devices_that_differ_may_be_used_in_any_order():
    problem = random_problem(6, 3, 1, everywhere=1.0)
    visited = agent(devices=3).rollout([served(problem)] * 50, np.random.default_rng(0)).visited
    assert {in_order_of_first_use(problem, row[0])[0] for row in visited} == {0, 1, 2}


def test_of_more_devices_than_outputs_the_fastest_are_used():
    compute = np.ones((8, 4)) * [3.0, 1.0, 4.0, 2.0]
    edges = [(v, v + 1) for v in range(7)]
    problem = Problem.from_arrays(compute, edges, np.ones(7), np.ones((4, 4)), np.zeros((4, 4)))
    visited = agent(devices=2).rollout([served(problem)] * 20, np.random.default_rng(0)).visited
    assert set(np.concatenate(visited).ravel().tolist()) == {1, 3}


def test_good_placements_are_remembered_once_and_repeated_in_training():
    one, instance = agent(), served(problems(1)[0])
    trajectory = one.rollout([instance] * 12, np.random.default_rng(0))
    one.rewards(trajectory, [np.array([1.0 / 0.81 if row == 3 else 2.0]) for row in range(12)])
    one.rewards(trajectory, [np.array([1.0 / 0.81 if row == 3 else 2.0]) for row in range(12)])
    assert [len(kept) for name, kept in one.memory().items() if name.endswith("reward")] == [1]
    renamed = np.roll(np.arange(5), 2).astype(np.int32)[trajectory.visited[3]]
    one.meet(instance.problem, renamed, np.array([1.0 / 0.81]))  # the same but for names of devices that are alike
    assert [len(kept) for name, kept in one.memory().items() if name.endswith("reward")] == [1]
    again = agent()
    again.recall(one.memory())
    for who in (one, again):
        who.network.train()
        repeated = who.rollout([instance] * 4, np.random.default_rng(1)).visited
        assert np.array_equal(repeated[-1], trajectory.visited[3])
        who.network.eval()
        assert not np.array_equal(who.rollout([instance] * 4, np.random.default_rng(1)).visited[-1], trajectory.visited[3])


def test_exploring_draws_at_random():
    one, instance = agent(), served(problems(1)[0])
    with torch.no_grad():
        one.network.logits.bias[0] = 50.0  # all on the first device
    one.network.train()
    assert {tuple(row[0]) for row in one.rollout([instance] * 10, np.random.default_rng(0)).visited} == {
        (0,) * len(instance.problem)
    }
    one.explore = 1.0
    assert len({tuple(row[0]) for row in one.rollout([instance] * 10, np.random.default_rng(0)).visited}) > 5


@pytest.mark.parametrize("kind", ["imitation", "reinforce"])
def test_it_learns(kind):
    one, instances = agent(), [served(problem) for problem in problems(4)]
    draw = draw_from(instances)
    (stage,) = one.default_stages(draw) if kind == "imitation" else [one.reinforce(draw)]
    before = evaluate(one, instances)
    train(
        one,
        [dataclasses.replace(stage, updates=60, problems=4, learning_rate=1e-2, evaluate_every=60)],
        evaluate_on=instances,
        seed=0,
    )
    assert evaluate(one, instances) < 0.9 * before


def test_strange_options_are_refused():
    for options, said in (({"encoder": "gru"}, "graph, lstm"), ({"width": 7}, "even"), ({"devices": 0}, "devices")):
        with pytest.raises(UsageError, match=said):
            agent(**options)


def test_stream_graphs_are_a_source_of_training_problems():
    source = find_source("streams", held_out=2)
    assert (source.size, source.unit) == (2518, "least seconds per request")
    for instance in source.held_out:
        assert (instance.cost(np.zeros(len(instance.problem), np.int32)) >= instance.unit).all()


def test_the_shipped_policy_places_better_than_metis():
    tests = problems(60, seed=5)
    placer = StreamAllocation()
    ours, metis = [], []
    for problem in tests:
        cost = ThroughputCost(problem)
        ours.append(cost(placer.place(problem, cost, seed=0, evaluations=None))[0])
        metis.append(cost(partition(problem, 5))[0])
    assert relative_throughput(ours, RATE).mean() > 1.1 * relative_throughput(metis, RATE).mean()


def test_the_shipped_policy_is_small():
    assert sum(weight.numel() for weight in load_policy("", StreamAllocationAgent).network.parameters()) * 2 < 1_000_000
    assert not load_policy("", StreamAllocationAgent).network.training


def test_what_the_policy_likes_best_comes_first():
    problem = problems(1)[0]
    cost = ThroughputCost(problem)
    first = StreamAllocation().place(problem, cost, seed=0, evaluations=1)
    assert np.array_equal(first, load_policy("", StreamAllocationAgent).greedy_placement(problem))
    assert np.array_equal(StreamAllocation(samples=0).place(problem, cost, seed=3, evaluations=None), first)
    instance = ProblemInstance(problem, cost, 1.0)
    assert len(load_policy("", StreamAllocationAgent).rollout([instance], np.random.default_rng(0)).visited) == 1
