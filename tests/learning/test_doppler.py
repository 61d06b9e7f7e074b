from __future__ import annotations

import numpy as np
import pytest
import torch

from placeit.core.errors import FileError, UsageError
from placeit.core.problem import Problem
from placeit.learning.agent import ProblemInstance
from placeit.learning.agents.doppler.agent import DopplerAgent
from placeit.learning.agents.doppler.features import EpisodeState
from placeit.learning.agents.doppler.graph import Graph, allowed
from placeit.learning.agents.doppler.teachers import find_teacher, teacher_names
from placeit.learning.agents.placeto.agent import PlacetoAgent
from placeit.learning.checkpoint import load_agent, save_agent
from placeit.learning.testing import AgentConformance
from placeit.learning.training.loop import Stage, train
from placeit.placers.feasibility import fits
from placeit.placers.registry import parse_placer
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem


class TestDoppler(AgentConformance):
    ways = ("imitation",)

    def make(self):
        torch.manual_seed(0)
        return DopplerAgent(width=8)


class TestDopplerSelectsByCriticalPath(AgentConformance):
    def make(self):
        torch.manual_seed(0)
        return DopplerAgent(width=8, select="critical-path")


class TestDopplerPlacesByEarliestStart(AgentConformance):
    def make(self):
        torch.manual_seed(0)
        return DopplerAgent(width=8, place="earliest-start", rounds=1)


class TestDopplerPassesMessagesAtEachStep(AgentConformance):
    ways = ("imitation",)

    def make(self):
        torch.manual_seed(0)
        return DopplerAgent(width=8, passing="step")


def instance(problem):
    return ProblemInstance(problem, SimulatedCost(problem), problem.critical_path)


def agent(**options):
    torch.manual_seed(1)
    return DopplerAgent(width=8, **options)


def test_an_op_can_be_placed_once_its_predecessors_are():
    problem = random_problem(10, 3, 2)
    trajectory = agent().rollout([instance(problem)] * 3, np.random.default_rng(0))
    [played] = trajectory.decisions
    for r in range(3):
        placed = set()
        for t in range(10):
            ready = {v for v in range(10) if v not in placed and all(u in placed for u, w in problem.edges if w == v)}
            assert set(np.flatnonzero((played.record.ready[r] <= t) & (played.record.at[r] >= t)).tolist()) == ready
            assert played.decisions.ops[r, t] in ready
            placed.add(int(played.decisions.ops[r, t]))
        assert trajectory.visited[r][0, played.decisions.ops[r]].tolist() == played.decisions.devices[r].tolist()


@pytest.mark.parametrize("passing", ["episode", "step"])
def test_scores_are_the_probabilities_that_decisions_are_drawn_with(passing):
    """Of a problem of three ops in any order on two devices, every episode there is, as often as its score says."""
    problem = Problem.from_arrays([[1.0, 2.0], [3.0, 1.0], [2.0, 2.0]], [(0, 2)], [1.0], np.ones((2, 2)), np.zeros((2, 2)))
    one = agent(passing=passing)
    for parameter in one.network.parameters():
        parameter.data *= 2  # so that chances are far from equal
    trajectory = one.rollout([instance(problem)] * 20_000, np.random.default_rng(0))
    [played] = trajectory.decisions
    total = np.zeros(trajectory.valid.shape[1])
    for _, rows, log, _ in one.score(trajectory):
        np.add.at(total, rows, log.detach().numpy())
    episodes = np.concatenate([played.decisions.ops, played.decisions.devices], axis=1)
    kinds, first, counts = np.unique(episodes, axis=0, return_index=True, return_counts=True)
    assert len(kinds) == 3 * 8  # orders that keep 0 before 2, times places
    chances = np.exp(total[first])
    assert chances.sum() == pytest.approx(1.0, rel=1e-4)
    assert chances.max() > 2 * chances.min()
    assert np.abs(counts / 20_000 - chances).max() < 0.015


def test_steps_that_are_scored_part_by_part_score_the_same(monkeypatch):
    batch = [instance(random_problem(9, 3, 1)), instance(random_problem(6, 2, 2))] * 2
    trajectory = agent().rollout(batch, np.random.default_rng(0))

    def scores():
        found = np.full((2, *trajectory.valid.shape), np.nan)
        for steps, rows, log, entropy in agent().score(trajectory):
            found[:, steps, rows] = log.detach().numpy(), entropy.detach().numpy()
        return found

    whole = scores()
    monkeypatch.setattr("placeit.learning.agents.doppler.agent._NUMBERS_AT_A_TIME", 1500)
    np.testing.assert_allclose(scores(), whole, rtol=1e-4, atol=1e-5)


def test_the_reward_is_minus_the_cost_at_the_end():
    batch = [instance(random_problem(9, 3, 1)), instance(random_problem(6, 2, 2))]
    one = agent()
    trajectory = one.rollout(batch, np.random.default_rng(0))
    assert trajectory.valid.sum(axis=0).tolist() == [9, 6]
    rewards = one.rewards(trajectory, [np.array([3.0]), np.array([5.0])])
    expected = np.zeros((9, 2))
    expected[8, 0], expected[5, 1] = -3.0, -5.0
    assert np.array_equal(rewards, expected)


@pytest.mark.parametrize("explore", [0.0, 1.0])
def test_exploring_takes_any_answer_and_greed_the_likeliest(explore):
    problem = random_problem(8, 3, 4, everywhere=1.0)
    one = agent(greedy=True)
    one.explore = explore
    one.network.train()
    placements = np.concatenate(one.rollout([instance(problem)] * 200, np.random.default_rng(0)).visited)
    if explore == 0.0:
        assert (placements == one.greedy_placement(problem)).all()
    else:
        shares = np.stack([(placements == d).mean(axis=0) for d in range(3)])
        assert np.abs(shares - 1 / 3).max() < 0.12
    one.network.eval()  # drawn from the policy, whatever it does in training
    assert len(np.unique(np.concatenate(one.rollout([instance(problem)] * 50, np.random.default_rng(0)).visited), axis=0)) > 1


@pytest.mark.parametrize("teacher", teacher_names())
def test_a_teacher_answers_as_a_list_scheduler_in_states_that_are_not_its_own(teacher):
    problem = random_problem(10, 3, 6)
    graph, state = Graph.of(problem), EpisodeState(problem, 4)
    rng = np.random.default_rng(0)
    for _ in range(10):
        ops, devices = find_teacher(teacher).decide(graph, state)
        for r in range(4):
            ready = np.flatnonzero(state.candidates[r])
            assert ops[r] == ready[np.argmax(graph.seconds_to_exit[ready])]
            seconds = state.features(ops)[r, :, 4] + (problem.compute[ops[r]] if teacher == "heft" else 0.0)
            seconds[~problem.feasible[ops[r]]] = np.inf
            assert devices[r] == np.argmin(seconds)
        taken = np.array([rng.choice(np.flatnonzero(row)) for row in state.candidates])
        state.place(taken, np.array([rng.choice(np.flatnonzero(row)) for row in allowed(state, taken)]))


@pytest.mark.parametrize("fixed", [{}, {"select": "critical-path"}, {"place": "earliest-start"}])
def test_an_imitator_comes_to_decide_as_its_teacher(fixed):
    problem = random_problem(12, 3, 8, everywhere=1.0)
    one, teacher = DopplerAgent(width=16, **fixed), "critical-path" if "place" in fixed else "heft"
    state = EpisodeState(problem, 1)
    graph = Graph.of(problem)
    for _ in range(12):
        state.place(*find_teacher(teacher).decide(graph, state))
    stage = Stage(lambda *_: [instance(problem)] * 8, 150, "imitation", learning_rate=0.01, teacher=teacher)
    result = train(one, [stage], evaluate_on=(), seed=0)
    assert result.history[-1].loss < 0.5 * result.history[0].loss
    assert np.array_equal(one.greedy_placement(problem), state.placement[0])


def test_it_learns_to_use_the_fast_device():
    like = random_problem(8, 3, 3, everywhere=1.0)
    slower = like.compute.mean(axis=1, keepdims=True) * 6.0 ** np.arange(3)
    problem = Problem.from_arrays(slower, like.edges, like.edge_bytes, like.bandwidth, like.latency)
    one = agent()
    before = SimulatedCost(problem)(one.greedy_placement(problem)[None])[0]
    stage = Stage(lambda *_: [instance(problem)] * 16, 60, learning_rate=0.01, gamma=1.0)
    train(one, [stage], evaluate_on=(), seed=0)
    after = SimulatedCost(problem)(one.greedy_placement(problem)[None])[0]
    fastest = SimulatedCost(problem)(np.zeros((1, 8), np.int32))[0]
    assert after <= min(before, 1.3 * fastest)


def test_placements_fit_where_memory_is_short():
    for seed in range(6):
        problem = random_problem(10, 3, seed, tight=True)
        for placement in np.concatenate(agent().rollout([instance(problem)] * 4, np.random.default_rng(seed)).visited):
            assert fits(problem, placement)


def test_weights_serve_another_graph_and_other_devices(tmp_path):
    one = agent()
    save_agent(one, tmp_path / "doppler.safetensors")
    again = load_agent(tmp_path / "doppler.safetensors")
    for problem in (random_problem(20, 5, 1), random_problem(3, 2, 2), random_problem(1, 1, 3)):
        assert np.array_equal(again.greedy_placement(problem), one.greedy_placement(problem))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"select": "luck"}, "'select' of the agent 'doppler' is 'luck'"),
        ({"place": "luck"}, "'place' of the agent 'doppler' is 'luck'"),
        ({"select": "critical-path", "place": "earliest-start"}, "nothing to learn"),
        ({"width": 0}, "width"),
        ({"passing": "luck"}, "'passing' of the agent 'doppler' is 'luck'"),
        ({"neighbourhood": 1.5}, r"'neighbourhood' of the agent 'doppler' is 1.5"),
    ],
)
def test_options_out_of_range_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        DopplerAgent(**options)


def test_the_teacher_of_a_stage_is_whom_it_imitates():
    instances, one = [instance(random_problem(9, 3, 6, everywhere=1.0))] * 8, agent()
    losses = [one.loss("imitation", instances, np.random.default_rng(0), name).item() for name in (None, *teacher_names())]
    assert losses[0] == losses[1] != losses[2]  # the first is the default


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"kind": "imitation", "teacher": "socrates"},
            "'socrates'.*its teachers are: for imitation, critical-path, heft, best",
        ),
        ({"teacher": "heft"}, r"Stage 1 \(reinforce\) names the teacher 'heft'.*for imitation, critical-path, heft, best"),
    ],
)
def test_a_teacher_that_there_is_not_is_an_error_that_lists_those_that_are(options, words):
    with pytest.raises(UsageError, match=words):
        train(agent(), [Stage(lambda *_: [], **options)], evaluate_on=(), seed=0)
    with pytest.raises(UsageError, match="the teachers are critical-path, heft"):
        agent().loss("imitation", [], np.random.default_rng(0), "socrates")


def met(one, problem, rng):
    """An agent that has met a placement, as it does in training."""
    one.network.train()
    first = one.rollout([instance(problem)] * 4, rng)
    one.rewards(first, [SimulatedCost(problem)(placements) for placements in first.visited])
    costs = [SimulatedCost(problem)(placements)[0] for placements in first.visited]
    return first.visited[int(np.argmin(costs))][0]


def test_neighbouring_episodes_keep_the_best_placement_but_for_a_part_that_is_connected():
    problem, rng = random_problem(30, 3, 2, everywhere=1.0), np.random.default_rng(0)
    one = agent(neighbourhood=1.0)
    best = met(one, problem, rng)
    trajectory = one.rollout([instance(problem)] * 200, rng)
    [played] = trajectory.decisions
    assert trajectory.valid.sum(axis=0).tolist() == played.learned.sum(axis=1).tolist()
    together = 0
    for r in range(200):
        free = played.record.order[r][played.learned[r]]
        changed = np.flatnonzero(trajectory.visited[r][0] != best)
        if len(free) == 0:  # all of the part was moved to one device, and nothing is learned from that
            together += 1
            assert len(set(trajectory.visited[r][0, changed])) <= 1
            continue
        assert set(changed.tolist()) <= set(free.tolist())
        assert len(free) <= 30 / 4
        reached, ends = {int(free[0])}, problem.edges[np.isin(problem.edges, free).all(axis=1)]
        for _ in free:
            reached |= {int(v) for edge in ends if reached & set(edge.tolist()) for v in edge}
        assert reached == set(free.tolist())
    assert 30 < together < 90
    assert len({v for r in range(200) for v in played.record.order[r][played.learned[r]].tolist()}) == 30
    one.network.eval()
    assert one.rollout([instance(problem)], rng).valid.all()  # nothing but training has neighbours


def test_what_was_met_is_forgotten_where_costs_do_not_compare(tmp_path):
    problem = random_problem(8, 2, 1, everywhere=1.0)
    remembered = []

    def draw(*_):
        remembered.append(len(one.memory()))
        return [instance(problem)] * 4

    def dearer(instance):
        return lambda placements: 10.0 * instance.cost(placements)

    one = agent()
    stages = [Stage(draw, updates=2), Stage(draw, 2, "imitation", teacher="best"), Stage(draw, updates=2, cost=dearer)]
    train(one, stages, evaluate_on=(), seed=0)
    assert [bool(count) for count in remembered] == [False, True, True, True, False, True]
    result = train(one, [stages[0], stages[2]], evaluate_on=[instance(problem)], seed=0)
    first, second = (stage.found[0] for stage in result.stages)
    assert second.cost <= 10.0 * first.cost * (1 + 1e-12)  # what the first has met was valued again, by the other cost
    assert remembered[-2:] == [1 + 1, 1 + 1]
    again = agent()
    again.recall(one.memory())
    assert {name: row.tolist() for name, row in again.memory().items()} == {n: row.tolist() for n, row in one.memory().items()}


def test_imitating_the_best_that_was_met_makes_it_the_choice():
    problem = random_problem(12, 3, 8, everywhere=1.0)
    one = DopplerAgent(width=16, select="critical-path")
    best = met(one, problem, np.random.default_rng(1))
    draw = lambda *_: [instance(problem)]  # noqa: E731
    train(one, [Stage(draw, 200, "imitation", learning_rate=0.01, teacher="best")], evaluate_on=(), seed=0)
    cost = SimulatedCost(problem)
    assert cost(one.greedy_placement(problem)[None])[0] == pytest.approx(cost(best[None])[0])
    with pytest.raises(UsageError, match="No placement of the problem has been met"):
        agent().loss("imitation", draw(), np.random.default_rng(0), "best")


def test_neighbouring_episodes_find_what_whole_ones_do_not():
    found = {0.0: 0.0, 0.8: 0.0}
    for seed in (3, 4):
        problem = random_problem(60, 4, seed, everywhere=1.0)
        batch = [instance(problem)] * 16
        stage = Stage(lambda *_, batch=batch: batch, updates=40, learning_rate=3e-3, gamma=1.0)
        for neighbourhood in found:
            result = train(agent(neighbourhood=neighbourhood), [stage], evaluate_on=(), seed=0)
            found[neighbourhood] += result.stages[0].found[0].cost
    assert found[0.8] < 0.98 * found[0.0]


def test_two_policies_of_one_kind_have_no_say_where_they_are_fixed():
    problem = random_problem(9, 3, 5, everywhere=1.0)
    graph = Graph.of(problem)
    by_path = agent(select="critical-path").rollout([instance(problem)], np.random.default_rng(0)).decisions[0]
    ranks = [graph.seconds_to_exit[v] for v in by_path.decisions.ops[0]]
    record = by_path.record
    for t, rank in enumerate(ranks):
        assert rank == max(graph.seconds_to_exit[v] for v in np.flatnonzero((record.ready[0] <= t) & (record.at[0] >= t)))
    by_start = agent(place="earliest-start").rollout([instance(problem)], np.random.default_rng(0)).decisions[0]
    for t in range(9):
        starts = by_start.decisions.inputs[0, t, :, 4]
        assert starts[by_start.decisions.devices[0, t]] == starts.min()


def test_the_placer_trains_on_the_problem_itself_or_takes_weights(tmp_path):
    like = random_problem(8, 3, 3, everywhere=1.0)
    slower = like.compute.mean(axis=1, keepdims=True) * 6.0 ** np.arange(3)
    problem = Problem.from_arrays(slower, like.edges, like.edge_bytes, like.bandwidth, like.latency)
    cost = SimulatedCost(problem)
    learned = parse_placer("doppler:updates=30,imitation=5,samples=8").place(problem, cost, seed=0, evaluations=None)
    assert cost(learned[None])[0] <= cost(np.zeros((1, 8), np.int32))[0] * (1 + 1e-9)
    one = agent()
    save_agent(one, tmp_path / "doppler.safetensors")
    placer = parse_placer(f"doppler:weights={tmp_path / 'doppler.safetensors'}")
    liked = placer.place(problem, cost, seed=0, evaluations=1)
    assert np.array_equal(liked, one.greedy_placement(problem))
    assert cost(placer.place(problem, cost, seed=0, evaluations=50)[None])[0] <= cost(liked[None])[0]


def test_weights_of_another_policy_are_refused(tmp_path):
    save_agent(PlacetoAgent(3), tmp_path / "placeto.safetensors")
    placer = parse_placer(f"doppler:weights={tmp_path / 'placeto.safetensors'}")
    problem = random_problem(4, 3)
    with pytest.raises(FileError, match="holds a policy of 'placeto', not of 'doppler'"):
        placer.place(problem, SimulatedCost(problem), seed=0, evaluations=None)
