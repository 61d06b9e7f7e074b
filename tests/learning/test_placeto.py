from __future__ import annotations

import numpy as np
import pytest
import torch

from placeit.core.errors import FileError, UsageError
from placeit.core.problem import Problem
from placeit.learning.agent import ProblemInstance
from placeit.learning.agents.placeto.agent import PlacetoAgent
from placeit.learning.agents.placeto.lessons import Lessons
from placeit.learning.checkpoint import save_agent
from placeit.learning.placers.placeto import Placeto
from placeit.learning.training.loop import Stage, train
from placeit.learning.training.sources import draw_from
from placeit.placers.feasibility import fits, random_placements
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem


def instance(problem):
    return ProblemInstance(problem, SimulatedCost(problem), problem.critical_path)


def problems():
    """Of several sizes, with ops that cannot run everywhere, memory that is short, and one problem twice."""
    several = [random_problem(9, 3, 1), random_problem(4, 2, 2, tight=True), random_problem(12, 4, 3, tight=True)]
    return [*several, several[1], random_problem(1, 4, 5)]


def rollout(agent, batch, seed=0):
    return agent.rollout([instance(problem) for problem in batch], np.random.default_rng(seed))


def scored(agent, trajectory):
    """Log-probabilities and entropies as arrays ``[T, B]``, NaN where there was no decision."""
    out = np.full((2, *trajectory.valid.shape), np.nan)
    for steps, rows, log, entropy in agent.score(trajectory):
        assert np.isnan(out[:, steps, rows]).all()
        out[:, steps, rows] = log.detach().numpy(), entropy.detach().numpy()
    assert np.array_equal(~np.isnan(out[0]), trajectory.valid)
    return out


def fast_and_slow(ops=8, devices=3):
    """A problem whose best placements are plain: each device is some times slower than the one before."""
    like = random_problem(ops, devices, 3, everywhere=1.0)
    slower = like.compute.mean(axis=1, keepdims=True) * 6.0 ** np.arange(devices)
    return Problem.from_arrays(slower, like.edges, like.edge_bytes, like.bandwidth, like.latency)


def test_an_episode_decides_each_op_once_in_topological_order():
    problem = random_problem(10, 3, everywhere=1.0)
    start = random_placements(problem, 1, np.random.default_rng(0))[0]
    [visited] = PlacetoAgent(3).search([problem], [start], np.random.default_rng(1))
    assert np.array_equal(visited[0], start)
    for step, op in enumerate(problem.order):
        assert np.array_equal(np.delete(visited[step + 1], op), np.delete(visited[step], op))


def test_a_search_goes_on_with_the_first_op_after_the_last():
    problem = random_problem(5, 4, everywhere=1.0)
    start = random_placements(problem, 1, np.random.default_rng(0))[0]
    [visited] = PlacetoAgent(4).search([problem], [start], np.random.default_rng(1), steps_per_op=2.0)
    assert visited.shape == (11, 5)
    for step in range(10):
        others = np.delete(np.arange(5), problem.order[step % 5])
        assert np.array_equal(visited[step + 1][others], visited[step][others])


def test_every_placement_of_a_search_fits_the_devices_and_their_memory():
    batch = problems()
    rng = np.random.default_rng(2)
    starts = [random_placements(problem, 1, rng)[0] for problem in batch]
    for problem, visited in zip(batch, PlacetoAgent(6).search(batch, starts, rng, steps_per_op=3.0), strict=True):
        assert all(fits(problem, placement) for placement in visited)


def test_rewards_are_what_each_step_saves():
    problem = random_problem(10, 3)
    agent, one = PlacetoAgent(3), instance(problem)
    trajectory = agent.rollout([one], np.random.default_rng(0))
    costs = one.cost(trajectory.visited[0]) / one.unit
    rewards = agent.rewards(trajectory, [costs])
    assert len(trajectory.visited[0]) == 11
    assert rewards.sum() == pytest.approx(costs[0] - costs[-1])
    same = (trajectory.visited[0][1:] == trajectory.visited[0][:-1]).all(axis=1)
    assert not rewards[same].any()


def test_scoring_sees_what_the_decisions_were_drawn_from():
    agent = PlacetoAgent(5)
    seen = []
    handle = agent.network.register_forward_hook(lambda network, inputs, logits: seen.append(logits.detach()))
    trajectory = rollout(agent, problems())
    drawn_from = torch.cat(seen)
    seen.clear()
    log, entropy = scored(agent, trajectory)
    handle.remove()
    torch.testing.assert_close(torch.cat(seen), drawn_from)
    valid = trajectory.valid
    assert (log[valid] <= 0).all()
    assert (entropy[valid] >= 0).all()


def test_a_score_does_not_depend_on_how_it_is_cut_into_parts(monkeypatch):
    agent = PlacetoAgent(5)
    trajectory = rollout(agent, problems())
    whole = scored(agent, trajectory)
    monkeypatch.setattr("placeit.learning.agents.placeto.agent._NODES_AT_A_TIME", 20)
    assert len(list(agent.score(trajectory))) > 5
    np.testing.assert_allclose(scored(agent, trajectory), whole, atol=1e-5)


def test_a_score_has_gradients_for_every_weight():
    agent = PlacetoAgent(5)
    for _, _, log, entropy in agent.score(rollout(agent, problems())):
        (log + entropy).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in agent.network.parameters())


def test_the_order_of_problems_in_a_batch_and_their_company_change_no_answer():
    agent = PlacetoAgent(5)
    with torch.no_grad():
        agent.network.policy[-1].weight *= 1e5  # as good as certain, whatever is drawn
    batch = problems()
    rng = np.random.default_rng(0)
    starts = [random_placements(problem, 1, rng)[0] for problem in batch]
    together = agent.search(batch, starts, rng)
    turned = agent.search(batch[::-1], starts[::-1], rng)[::-1]
    alone = [agent.search([problem], [start], rng)[0] for problem, start in zip(batch, starts, strict=True)]
    for one, two, three in zip(together, turned, alone, strict=True):
        assert np.array_equal(one, two)
        assert np.array_equal(one, three)


def test_the_same_generator_gives_the_same_episode():
    agent = PlacetoAgent(5)
    one, two = rollout(agent, problems(), 7), rollout(agent, problems(), 7)
    assert all(map(np.array_equal, one.visited, two.visited))


def test_ancestors_descendants_and_others_are_summed_up_apart():
    """With ops in a diamond, the first logits change when a direct or distant relative changes its device."""
    problem = random_problem(12, 3, 8, everywhere=1.0)
    agent = PlacetoAgent(3, rounds=0)  # without messages only the summaries tell of other ops
    agent_input = []
    agent.network.policy.register_forward_pre_hook(lambda layer, inputs: agent_input.append(inputs[0]))
    start = np.zeros(12, np.int32)
    agent.search([problem], [start], np.random.default_rng(0), steps_per_op=1 / 12)
    first = problem.order[0]
    reached = {int(first)}
    for v in problem.order:
        if any(int(u) in reached for u in problem.edges[problem.edges[:, 1] == v, 0]):
            reached.add(int(v))
    descendant, other = next(iter(reached - {int(first)})), next(iter(set(range(12)) - reached))
    for changed, block in ((first, 0), (descendant, 2), (other, 3)):
        moved = start.copy()
        moved[changed] = 2
        agent.search([problem], [moved], np.random.default_rng(0), steps_per_op=1 / 12)
        blocks = (agent_input[-1] - agent_input[0]).view(4, 10).abs().sum(dim=1).numpy() > 0
        assert np.array_equal(np.flatnonzero(blocks), [block])
    assert not agent_input[0].view(4, 10)[1].any()  # the first op has no ancestors


def test_training_on_a_problem_makes_its_placements_much_better_than_random_ones():
    problem = fast_and_slow()
    one = instance(problem)
    torch.manual_seed(0)
    agent = PlacetoAgent(3)
    starts = random_placements(problem, 50, np.random.default_rng(1))

    def mean_at_the_end():
        searches = agent.search([problem] * 50, list(starts), np.random.default_rng(2))
        return np.mean([one.cost(visited[-1:])[0] for visited in searches])

    random, before = one.cost(starts).mean(), mean_at_the_end()
    assert before > 0.7 * random
    stage = Stage(lambda rng, count, progress: [one] * count, updates=40, problems=8, learning_rate=1e-2)
    train(agent, [stage], evaluate_on=(), seed=0)
    assert mean_at_the_end() < 0.4 * random


def test_a_problem_with_more_devices_than_outputs_is_an_error_that_says_so():
    with pytest.raises(UsageError, match=r"at most 2 devices, and the problem has 3 .*devices=3, or use GiPH"):
        rollout(PlacetoAgent(2), [random_problem(5, 3)])


def test_an_imitator_comes_to_place_ops_where_its_teacher_would():
    """Ops in a row over slow links: each can start first where the one before it is, and that one on the first device."""
    edges = [(op, op + 1) for op in range(5)]
    problem = Problem.from_arrays(np.ones((6, 3)), edges, np.ones(5), np.full((3, 3), 0.01), np.zeros((3, 3)))
    torch.manual_seed(0)
    agent = PlacetoAgent(3)
    stage = Stage(draw_from([instance(problem)]), 60, "imitation", problems=8, learning_rate=0.01, teacher="heft")
    result = train(agent, [stage], evaluate_on=(), seed=0)
    assert result.history[-1].loss < 0.1 * result.history[0].loss
    ends = [visited[-1] for visited in agent.rollout([instance(problem)] * 40, np.random.default_rng(1)).visited]
    assert np.mean([not end.any() for end in ends]) > 0.9


def test_a_teacher_hears_of_what_the_policy_did_and_is_asked_about_one_op_alone():
    asked = []

    class Last:
        def decide(self, graph, state):
            asked.append((state.candidates.copy(), state.placement.copy()))
            return state.candidates.argmax(axis=1), np.full(len(state.placement), state.problem.devices - 1)

    several = [random_problem(4, 2, 2, everywhere=1.0), random_problem(6, 3, 1, everywhere=1.0)]
    lessons, batch = Lessons(Last(), [several[1], several[0], several[1]]), [several[1], several[0], several[1]]
    placed = [np.full(len(problem), -1) for problem in batch]
    for t in range(6):
        rows = np.array([b for b, problem in enumerate(batch) if t < len(problem)])
        ops, devices = np.array([batch[b].order[t] for b in rows]), np.array([b % 2 for b in rows])
        asked.clear()
        answers = lessons.step(rows, ops, devices)
        assert answers.tolist() == [batch[b].devices - 1 for b in rows]
        heard = {(int(c.argmax()), *p) for able, known in asked for c, p in zip(able, known, strict=True)}
        assert all(able.sum(axis=1).tolist() == [1] * len(able) for able, _ in asked)
        assert heard == {(int(op), *placed[b]) for b, op in zip(rows, ops, strict=True)}
        for b, op, device in zip(rows, ops, devices, strict=True):
            placed[b][op] = device


@pytest.mark.parametrize("learning", [True, False])
def test_exploring_takes_any_device_in_episodes_that_are_learned_from(learning):
    problem = random_problem(6, 3, 4, everywhere=1.0)
    agent = PlacetoAgent(3)
    with torch.no_grad():
        agent.network.policy[-1].weight *= 1e5  # as good as certain, whatever is drawn
    agent.explore = 1.0
    agent.network.train(learning)
    ends = np.stack([visited[-1] for visited in rollout(agent, [problem] * 200).visited])
    shares = np.stack([(ends == d).mean(axis=0) for d in range(3)])
    assert (np.abs(shares - 1 / 3).max() < 0.15) == learning


@pytest.mark.parametrize(("kind", "teacher"), [("osmosis", None), ("imitation", "socrates")])
def test_a_training_or_a_teacher_that_there_is_not_is_an_error(kind, teacher):
    with pytest.raises(UsageError, match=r"has reinforce and imitation|the teachers are critical-path, heft"):
        PlacetoAgent(2).loss(kind, [], np.random.default_rng(0), teacher)


def test_impossible_sizes_are_an_error():
    with pytest.raises(UsageError, match="at least 1 device"):
        PlacetoAgent(0)


def test_the_placer_searches_with_a_trained_policy_on_fewer_devices(tmp_path):
    problem = fast_and_slow()
    one = instance(problem)
    torch.manual_seed(0)
    agent = PlacetoAgent(5)
    stage = Stage(lambda rng, count, progress: [one] * count, updates=40, problems=8, learning_rate=1e-2)
    train(agent, [stage], evaluate_on=(), seed=0)
    save_agent(agent, tmp_path / "placeto.safetensors")
    placer = Placeto(weights=str(tmp_path / "placeto.safetensors"))
    found = placer.place(problem, one.cost, seed=0, evaluations=None)
    assert one.cost(found[None])[0] < 0.5 * one.cost(random_placements(problem, 50, np.random.default_rng(0))).mean()
    unvalued = placer.place(problem, one.cost, seed=0, evaluations=0)
    assert np.array_equal(unvalued, problem.check(unvalued))
    with pytest.raises(UsageError, match="at most 5 devices"):
        placer.place(random_problem(4, 6), one.cost, seed=0, evaluations=None)


def test_a_checkpoint_of_another_policy_is_an_error_that_names_it(tmp_path):
    from placeit.learning.agents.hdp import HdpAgent

    save_agent(HdpAgent(4, 2, 2, 2, 4), tmp_path / "other.safetensors")
    with pytest.raises(FileError, match="holds a policy of 'hdp', not of 'placeto'"):
        Placeto(weights=str(tmp_path / "other.safetensors")).place(
            random_problem(4, 2), SimulatedCost(random_problem(4, 2)), seed=0, evaluations=None
        )


@pytest.mark.parametrize("budget", [1, 5, 30, 100, 1000])
def test_the_placer_keeps_within_its_evaluations_and_learns_with_what_the_search_leaves(budget):
    problem = random_problem(6, 3)
    one, asked = instance(problem), []

    def cost(placements):
        asked.append(len(placements))
        return one.cost(placements)

    Placeto(updates=3, episodes=2).place(problem, cost, seed=0, evaluations=budget)
    assert sum(asked) <= budget
    assert (len(asked) > 1) == (budget >= 30)  # two episodes of seven placements at most, and a search of thirteen


@pytest.mark.parametrize("options", [{"steps_per_op": float("nan")}, {"steps_per_op": 0.0}, {"updates": 0}, {"episodes": -1}])
def test_options_out_of_their_range_are_an_error(options):
    problem = random_problem(4, 2)
    with pytest.raises(UsageError, match=f"'{next(iter(options))}'"):
        Placeto(**options).place(problem, SimulatedCost(problem), seed=0, evaluations=None)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_steps_that_could_not_be_measured_do_not_end_the_search(value):
    problem = random_problem(6, 3)
    simulated = SimulatedCost(problem)

    def cost(placements):
        return np.where(placements.sum(axis=1) % 3 == 0, value, simulated(placements))

    found = Placeto(updates=5).place(problem, cost, seed=0, evaluations=None)
    assert np.isfinite(cost(found[None])[0])
