from __future__ import annotations

import numpy as np
import pytest
import torch

from placeit.core.errors import InfeasibleError, UsageError
from placeit.core.problem import Problem
from placeit.learning.agent import ProblemInstance
from placeit.learning.agents.hdp import HdpAgent
from placeit.learning.placers.hdp import Hdp
from placeit.learning.training.loop import Stage, train
from placeit.placers.feasibility import fits, random_placements
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem


def instance(problem):
    return ProblemInstance(problem, SimulatedCost(problem), problem.critical_path)


def problems():
    """Of several sizes, with ops that cannot run everywhere, memory that is short, and one problem twice."""
    several = [random_problem(9, 3, 1), random_problem(4, 2, 2, tight=True), random_problem(12, 4, 3, tight=True)]
    return [*several, several[1], random_problem(1, 4, 5)]


def fast_and_slow(ops=8, devices=3):
    """A problem whose best placements are plain: each device is some times slower than the one before."""
    like = random_problem(ops, devices, 3, everywhere=1.0)
    slower = like.compute.mean(axis=1, keepdims=True) * 6.0 ** np.arange(devices)
    return Problem.from_arrays(slower, like.edges, like.edge_bytes, like.bandwidth, like.latency)


def certain(agent):
    """Make an agent's decisions as good as certain, whatever is drawn."""
    with torch.no_grad():
        agent.network.logits.weight *= 1e5
    return agent


def scored(agent, trajectory):
    """Log-probability and entropy of each placement, ``[2, B]``."""
    out = np.full((2, trajectory.valid.shape[1]), np.nan)
    for steps, rows, log, entropy in agent.score(trajectory):
        assert not steps.any()
        assert np.isnan(out[:, rows]).all()
        out[:, rows] = log.detach().numpy(), entropy.detach().numpy()
    assert not np.isnan(out).any()
    return out


def sample(agent, problems, rng):
    return [visited[0] for visited in agent.rollout([instance(problem) for problem in problems], rng).visited]


def agent_for_all():
    torch.manual_seed(1)
    return HdpAgent(ops=12, devices=5, degree=6, types=12, hidden=16)


def test_features_tell_what_an_op_needs_and_where_its_outputs_go():
    problem = Problem.from_arrays(
        [[2.0, np.inf], [6.0, 2.0], [2.0, np.inf]],
        [(2, 1), (2, 0), (0, 1)],
        [30.0, 10.0, 20.0],
        np.ones((2, 2)),
        np.zeros((2, 2)),
    )
    agent = HdpAgent.for_problem(problem, 8, 0)
    assert problem.order.tolist() == [2, 0, 1]
    kinds, seconds, size, adjacent = np.split(agent.features(problem), [2, 3, 5], axis=1)
    assert kinds.sum(axis=1).tolist() == [1, 1, 1]
    assert np.array_equal(kinds[0], kinds[1])
    assert not np.array_equal(kinds[0], kinds[2])
    np.testing.assert_allclose(seconds[:, 0], [0.75, 0.75, 1.5])
    np.testing.assert_allclose(size, [[1.5, 0.5], [1.0, 0.0], [0.0, 0.0]])
    assert adjacent.tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]


def test_every_placement_fits_the_devices_and_their_memory():
    agent = agent_for_all()
    for seed in range(20):
        batch = problems()
        for problem, placement in zip(batch, sample(agent, batch, np.random.default_rng(seed)), strict=True):
            assert fits(problem, placement)


def test_an_episode_is_one_decision_that_costs_what_its_placement_costs():
    batch = [instance(problem) for problem in problems()]
    agent = agent_for_all()
    trajectory = agent.rollout(batch, np.random.default_rng(0))
    costs = [one.cost(visited) for one, visited in zip(batch, trajectory.visited, strict=True)]
    assert [len(visited) for visited in trajectory.visited] == [1] * 5
    assert trajectory.valid.tolist() == [[True] * 5]
    assert agent.rewards(trajectory, costs).tolist() == [[-path[0] for path in costs]]


def test_scores_are_of_the_distribution_that_placements_were_drawn_from():
    """The mean of 1 / p over what p draws is the number of placements; the mean of -log p is the entropy."""
    one = instance(random_problem(3, 2, everywhere=1.0))
    agent = agent_for_all()
    with torch.no_grad():
        agent.network.logits.weight *= 8
    trajectory = agent.rollout([one] * 4000, np.random.default_rng(0))
    log, entropy = scored(agent, trajectory)
    placements = [tuple(visited[0]) for visited in trajectory.visited]
    found = {placement: np.exp(p) for placement, p in zip(placements, log, strict=True)}
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-4)
    assert max(found.values()) > 0.2
    for placement, p in found.items():
        share = np.mean([other == placement for other in placements])
        assert share == pytest.approx(p, abs=0.03)
    assert entropy.mean() == pytest.approx(-log.mean(), abs=0.05)


def test_a_score_does_not_depend_on_how_it_is_cut_into_parts(monkeypatch):
    agent = agent_for_all()
    trajectory = agent.rollout([instance(problem) for problem in problems()], np.random.default_rng(0))
    whole = scored(agent, trajectory)
    monkeypatch.setattr("placeit.learning.agents.hdp._NUMBERS_AT_A_TIME", 1)
    assert len(list(agent.score(trajectory))) == 5
    np.testing.assert_allclose(scored(agent, trajectory), whole, atol=1e-5)


def test_a_score_has_gradients_for_every_weight():
    agent = agent_for_all()
    for _, _, log, entropy in agent.score(
        agent.rollout([instance(problem) for problem in problems()], np.random.default_rng(0))
    ):
        (log + entropy).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in agent.network.parameters())


def test_the_order_of_problems_in_a_batch_and_their_company_change_no_answer():
    agent, batch = certain(agent_for_all()), problems()
    rng = np.random.default_rng(0)
    together = sample(agent, batch, rng)
    turned = sample(agent, batch[::-1], rng)[::-1]
    alone = [sample(agent, [problem], rng)[0] for problem in batch]
    for one, two, three in zip(together, turned, alone, strict=True):
        assert np.array_equal(one, two)
        assert np.array_equal(one, three)


def test_training_on_a_problem_makes_its_placements_much_better_than_random_ones():
    problem = fast_and_slow()
    one = instance(problem)
    agent = HdpAgent.for_problem(problem, 32, 0)
    random = one.cost(random_placements(problem, 100, np.random.default_rng(0))).mean()

    def mean():
        return one.cost(np.stack(sample(agent, [problem] * 100, np.random.default_rng(1)))).mean()

    assert mean() > 0.7 * random
    stage = Stage(lambda rng, count, progress: [one] * count, updates=60, problems=1, episodes=4, learning_rate=3e-3)
    train(agent, [stage], evaluate_on=(), seed=0)
    assert mean() < 0.4 * random


def star(leaves):
    """One op whose output goes to all others."""
    edges = [(0, leaf) for leaf in range(1, leaves + 1)]
    return Problem.from_arrays(np.ones((9, 2)), edges, np.ones(leaves), np.ones((2, 2)), np.zeros((2, 2)))


@pytest.mark.parametrize(
    ("size", "problem"),
    [("ops=13", random_problem(13, 2)), ("devices=6", random_problem(3, 6, everywhere=1.0)), ("degree=7", star(7))],
)
def test_a_problem_larger_than_the_network_is_an_error_that_names_the_size(size, problem):
    with pytest.raises(UsageError, match=f"Make it with {size}"):
        sample(agent_for_all(), [problem], np.random.default_rng(0))


def test_impossible_sizes_are_an_error():
    with pytest.raises(UsageError, match="its width even"):
        HdpAgent(hidden=3)


def test_it_says_that_it_learns_by_reinforcement_only():
    with pytest.raises(UsageError, match="no training method 'imitation'"):
        agent_for_all().loss("imitation", [], np.random.default_rng(0))


def test_a_problem_without_room_is_infeasible():
    problem = Problem.from_arrays(
        np.ones((3, 2)), [], [], np.ones((2, 2)), np.zeros((2, 2)), param_bytes=[2, 2, 2], memory=[3, 3]
    )
    with pytest.raises(InfeasibleError):
        sample(agent_for_all(), [problem], np.random.default_rng(0))


def test_the_placer_stops_when_the_cost_is_no_longer_improved():
    problem = random_problem(5, 3)
    one, asked = instance(problem), []

    def cost(placements):
        asked.append(one.cost(placements).min())
        return one.cost(placements)

    Hdp(patience=5, updates=1000, hidden=8).place(problem, cost, seed=0, evaluations=None)
    assert len(asked) < 200
    assert min(asked[-5:]) >= min(asked)


@pytest.mark.parametrize("budget", [0, 1, 5, 30])
def test_the_placer_spends_its_evaluations_and_no_more(budget):
    problem = random_problem(6, 3)
    one, asked = instance(problem), []

    def cost(placements):
        asked.append(len(placements))
        return one.cost(placements)

    Hdp(hidden=8, patience=1000).place(problem, cost, seed=0, evaluations=budget)
    assert sum(asked) == budget


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_could_not_be_measured_do_not_end_the_search(value):
    problem = random_problem(6, 3)
    simulated = SimulatedCost(problem)

    def cost(placements):
        return np.where(placements.sum(axis=1) % 3 == 0, value, simulated(placements))

    found = Hdp(updates=20).place(problem, cost, seed=0, evaluations=None)
    assert np.isfinite(cost(found[None])[0])
