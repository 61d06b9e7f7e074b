from __future__ import annotations

import dataclasses
import itertools
import sys

import numpy as np
import pytest
import torch

from placeit.core.errors import FileError, UsageError
from placeit.core.problem import Problem
from placeit.learning.agent import ProblemInstance
from placeit.learning.agents.hsdag.features import node_features
from placeit.learning.agents.placeto.agent import PlacetoAgent
from placeit.learning.checkpoint import save_agent, weights_of
from placeit.learning.registry import make_agent
from placeit.learning.testing import AgentConformance
from placeit.learning.training.loop import train
from placeit.placers.feasibility import fits
from placeit.placers.registry import parse_placer
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem

MODULE = "placeit.learning.agents.hsdag.agent"


def agent(**options):
    return make_agent("hsdag", seed=0, **{"devices": 3, "width": 8, "steps": 3, "min_groups": 2} | options)


class TestHsdag(AgentConformance):
    def make(self):
        return agent()


class TestHsdagDrawsEdges(AgentConformance):
    def make(self):
        return agent(sample_edges=True, max_groups=4, dropout=0.5)


class TestHsdagWithoutDirections(AgentConformance):
    def make(self):
        return agent(symmetric=True)


@pytest.mark.parametrize("symmetric", [True, False])
def test_edges_have_no_direction_only_if_the_graph_is_symmetric(symmetric):
    network, edges = agent(symmetric=symmetric).network.eval(), torch.tensor([[0, 1], [1, 2]])
    features = torch.from_numpy(node_features(chain(), []))

    def scored(edges):
        with torch.no_grad():
            embedding = network.encode(features, torch.zeros(3, 8), edges, torch.zeros(3, dtype=torch.int64))
            return network.log_scores(embedding, edges)

    assert torch.allclose(scored(edges), scored(edges.flip(1))) == symmetric


def instance(problem):
    return ProblemInstance(problem, SimulatedCost(problem), problem.critical_path)


def played(one, problem, times=1, seed=0):
    trajectory = one.rollout([instance(problem)] * times, np.random.default_rng(seed))
    return trajectory, trajectory.decisions[1]


def scores(one, trajectory):
    found = np.full(trajectory.valid.shape, np.nan)
    for steps, rows, log, _ in one.score(trajectory):
        found[steps, rows] = log.detach().numpy()
    return found


def chain():
    """Three ops in a row on two devices, which differ in everything."""
    return Problem.from_arrays(
        [[1.0, 2.0], [3.0, 1.0], [2.0, 2.5]],
        [(0, 1), (1, 2)],
        [1.0, 2.0],
        np.ones((2, 2)),
        np.zeros((2, 2)),
        kinds=["Convolution", "Relu", "mine"],
        output_shapes=[(1, 8), (9,), None],
    )


def test_an_episode_is_twenty_whole_placements_by_groups():
    problem = random_problem(30, 3, 1, everywhere=1.0)
    trajectory, steps = played(agent(steps=20, min_groups=5, max_groups=7), problem, 2)
    assert trajectory.valid.shape == (20, 2)
    assert trajectory.valid.all()
    assert [visited.shape for visited in trajectory.visited] == [(20, 30)] * 2
    for t, step in enumerate(steps):
        assert all(5 <= groups <= 7 for groups in np.bincount(step.owner))
        devices = np.concatenate([visited[t] for visited in trajectory.visited])
        assert np.array_equal(devices, step.chosen[step.parsing.group])
        assert set(step.owner[step.parsing.group[:30]].tolist()) == {0}


def test_all_groups_may_go_to_one_device():
    one = agent()
    with torch.no_grad():
        one.network.device[-1].bias[:] = torch.tensor([0.0, 50.0, 0.0])
    placements = one.greedy_placements(random_problem(30, 3, 1, everywhere=1.0))
    assert placements.shape == (3, 30)
    assert (placements == 1).all()


@pytest.mark.parametrize("sample_edges", [False, True])
def test_scores_are_the_probabilities_that_decisions_are_drawn_with(sample_edges):
    """Of three ops in a row on two devices, every decision there is, in each of two steps, as often as its score says."""
    one, times = agent(sample_edges=sample_edges, steps=2), 4000
    one.network.eval()
    if sample_edges:
        one.steps = 1  # what is added to embeddings depends on the edges drawn before
    trajectory, steps = played(one, chain(), times)
    chances = np.exp(scores(one, trajectory))
    for t, step in enumerate(steps):
        kept = step.parsing.kept.reshape(times, 3) - 2 * np.arange(times)[:, None]
        placements = np.stack([visited[t] for visited in trajectory.visited])
        kinds, first, counts = np.unique(np.hstack([kept, placements]), axis=0, return_index=True, return_counts=True)
        assert len(kinds) == (2 * 4 if sample_edges else 4)  # the op in the middle keeps one of two edges; two groups
        assert chances[t, first].sum() == pytest.approx(1.0, rel=1e-4)
        assert np.abs(counts / times - chances[t, first]).max() < 0.03


def test_scores_of_all_devices_add_up_to_one_whatever_edges_were_dropped():
    one = agent(dropout=0.5, devices=2)
    one.network.train()
    problem = random_problem(6, 2, 3, everywhere=1.0)
    trajectory, steps = played(one, problem)
    assert not all(step.present.all() for step in steps)
    batch = trajectory.decisions[0]
    for t, step in enumerate(steps):
        total = 0.0
        for devices in itertools.product(range(2), repeat=len(step.owner)):
            other = dataclasses.replace(step, chosen=np.array(devices))
            decisions = batch, [*steps[:t], other, *steps[t + 1 :]]
            total += np.exp(scores(one, dataclasses.replace(trajectory, decisions=decisions))[t, 0])
        assert total == pytest.approx(1.0, rel=1e-4)


def test_no_edge_is_dropped_where_nothing_is_learned():
    one = agent(dropout=1.0)
    problem = random_problem(10, 3, 1)
    one.network.train()
    assert not any(step.present.any() for step in played(one, problem)[1])
    one.network.eval()
    assert all(step.present.all() for step in played(one, problem)[1])


def test_placements_that_are_scored_part_by_part_score_the_same(monkeypatch):
    one = agent(sample_edges=True)
    batch = [instance(random_problem(9, 3, 1)), instance(random_problem(6, 2, 2)), instance(random_problem(1, 1, 3))] * 2
    trajectory = one.rollout(batch, np.random.default_rng(0))
    whole = scores(one, trajectory)
    monkeypatch.setattr(f"{MODULE}._OPS_AT_A_TIME", 40)
    np.testing.assert_allclose(scores(one, trajectory), whole, rtol=1e-4, atol=1e-5)


def test_problems_beside_each_other_do_not_matter_to_each_other():
    one, problems = agent(), [random_problem(9, 3, 1), random_problem(6, 2, 2)]
    one.network.eval()
    together = one.rollout([instance(problem) for problem in problems], np.random.default_rng(0)).decisions[1]
    for problem, ops in zip(problems, (slice(0, 9), slice(9, 15)), strict=True):
        for step, alone in zip(together, played(one, problem)[1], strict=True):
            group = step.parsing.group[ops]
            assert (group - group.min()).tolist() == alone.parsing.group.tolist()
            np.testing.assert_allclose(step.update[ops], alone.update, rtol=1e-4, atol=1e-5)


def test_the_reward_of_a_step_is_one_over_its_cost():
    one = agent()
    trajectory = one.rollout([instance(random_problem(5, 3, seed)) for seed in range(2)], np.random.default_rng(0))
    rewards = one.rewards(trajectory, [np.array([2.0, 4.0, np.nan]), np.array([0.5, 0.0, np.inf])])
    assert rewards[:2].tolist() == [[0.5, 2.0], [0.25, pytest.approx(1e9)]]
    assert np.isnan(rewards[2, 0])
    assert rewards[2, 1] == 0.0


def test_an_edge_scores_otherwise_than_its_reverse():
    embedding = torch.rand(2, 8, generator=torch.Generator().manual_seed(0))
    forward, back = agent().network.log_scores(embedding, torch.tensor([(0, 1), (1, 0)])).tolist()
    assert forward != pytest.approx(back, rel=1e-3)


def test_placements_fit_where_memory_is_short_and_groups_go_where_all_of_their_ops_can_run():
    for seed in range(6):
        problem = random_problem(10, 3, seed, tight=True)
        trajectory, steps = played(agent(), problem, 2, seed)
        assert all(fits(problem, placement) for visited in trajectory.visited for placement in visited)
        for step in steps:
            for g, row in enumerate(step.allowed):
                ops = np.flatnonzero(step.parsing.group == g) % 10
                able = problem.feasible[ops].all(axis=0) & (problem.param_bytes[ops].sum() <= problem.memory)
                assert row.tolist() == (able if able.any() else problem.feasible[ops].any(axis=0)).tolist()


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("output_shape", {"output shape"}),
        ("node_id", {"position"}),
        ("structure", {"in-degree", "out-degree", "fractal dimension"}),
    ],
)
def test_an_ablation_leaves_out_what_it_says_and_changes_no_weights(option, names, monkeypatch):
    asked = []

    def recording(problem, without):
        asked.append(set(without))
        return node_features(problem, without)

    monkeypatch.setattr(f"{MODULE}.node_features", recording)
    whole, less = agent(), agent(**{option: False})
    assert all(torch.equal(tensor, weights_of(less)[name]) for name, tensor in weights_of(whole).items())
    first, second = (scores(one, played(one, chain())[0]) for one in (whole, less))
    assert asked == [set(), names]
    assert not np.allclose(first, second)
    assert less.config[option] is False


def test_a_policy_without_output_shapes_does_not_depend_on_them():
    arrays = (chain().compute, chain().edges, chain().edge_bytes, chain().bandwidth, chain().latency)
    other = Problem.from_arrays(*arrays, kinds=chain().kinds, output_shapes=[(50,), (1, 60), (2,)])
    for sees in (True, False):
        one = agent(output_shape=sees)
        first, second = (scores(one, played(one, problem)[0]) for problem in (chain(), other))
        assert np.allclose(first, second) != sees


def branches():
    """Two branches of four ops each between two others: beside each other they take half the time."""
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 5), (5, 6), (6, 7), (7, 8), (4, 9), (8, 9)]
    compute = np.array([1.0, *[10.0] * 8, 1.0])[:, None] * [1.0, 1.25]
    return Problem.from_arrays(compute, edges, np.ones(10), np.full((2, 2), 10.0), np.zeros((2, 2)))


def trained(problem, updates):
    one = agent(devices=2, width=32, steps=20, min_groups=8)
    stages = one.default_stages(lambda *_: [instance(problem)])
    train(one, [dataclasses.replace(stage, updates=updates) for stage in stages], evaluate_on=(), seed=0)
    return one


def test_it_learns_to_use_the_fast_device():
    like = random_problem(8, 2, 3, everywhere=1.0)
    slower = like.compute.mean(axis=1, keepdims=True) * [8.0, 1.0]
    problem = Problem.from_arrays(slower, like.edges, like.edge_bytes, like.bandwidth, like.latency)
    before, after = (np.concatenate(played(trained(problem, n), problem, 5)[0].visited).mean() for n in (1, 15))
    assert before < 0.8
    assert after > 0.95


@pytest.mark.slow
def test_training_comes_to_the_optimum():
    problem = branches()
    cost = SimulatedCost(problem)
    best = cost(np.array(list(itertools.product(range(2), repeat=10)), np.int32)).min()
    before, after = (np.median(cost(played(trained(problem, n), problem)[0].visited[0])) for n in (1, 60))
    assert before > 1.2 * best
    assert after <= 1.02 * best
    assert cost(np.zeros((1, 10), np.int32))[0] > 1.5 * best


def test_the_placer_trains_on_the_problem_itself_or_takes_weights(tmp_path):
    problem = branches()
    cost = SimulatedCost(problem)
    best = cost(np.array([[0, 0, 0, 0, 0, 1, 1, 1, 1, 0]], np.int32))[0]
    found = parse_placer("hsdag:updates=4").place(problem, cost, seed=0, evaluations=None)
    assert cost(found[None])[0] <= 1.1 * best
    one = agent()
    save_agent(one, tmp_path / "hsdag.safetensors")
    placer = parse_placer(f"hsdag:weights={tmp_path / 'hsdag.safetensors'}")
    assert np.array_equal(placer.place(problem, cost, seed=0, evaluations=1), one.greedy_placement(problem))
    values = [cost(placer.place(problem, cost, seed=0, evaluations=budget)[None])[0] for budget in (1, 3, None)]
    assert values == sorted(values, reverse=True)
    save_agent(PlacetoAgent(3), tmp_path / "placeto.safetensors")
    with pytest.raises(FileError, match="holds a policy of 'placeto', not of 'hsdag'"):
        parse_placer(f"hsdag:weights={tmp_path / 'placeto.safetensors'}").place(problem, cost, seed=0, evaluations=1)


def test_a_problem_with_more_devices_than_outputs_is_refused():
    with pytest.raises(UsageError, match="at most 3 devices, and the problem has 4"):
        agent().greedy_placements(random_problem(5, 4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": 0}, "devices"),
        ({"dropout": 1.5}, "dropout"),
        ({"steps": 0}, "steps"),
        ({"min_groups": 9, "max_groups": 8}, "at least 9 and at most 8 groups"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        agent(**options)


def test_without_pytorch_geometric_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    with pytest.raises(UsageError, match=r"pip install \'placeit\[learn\]\'"):
        agent()
