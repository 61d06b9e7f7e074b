import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from placeit.core.errors import TrainingError, UsageError
from placeit.learning.agent import ProblemInstance
from placeit.learning.checkpoint import load_agent, weights_of
from placeit.learning.training.loop import Stage, evaluate, train
from tests.learning.toy_agent import FEW, HELD_OUT, ExploringAgent, ToyAgent, draw_toys, same, stage, toy, toy_instance


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "imitation"},
        {"baseline": "batch"},
        {"baseline": "moving", "normalize": False, "learning_rate": 0.05},
        {"baseline": "problem", "episodes": 4, "problems": 3, "entropy": 0.01, "final_entropy": 0.0},
    ],
)
def test_learning_improves_the_figure(options):
    agent = toy()
    before = evaluate(agent, HELD_OUT)
    result = train(
        agent,
        [stage(40, **{"problems": 8, "learning_rate": 0.05, "evaluate_every": 10} | options)],
        evaluate_on=HELD_OUT,
        seed=0,
    )
    assert result.best < before - 0.1
    assert evaluate(agent, HELD_OUT) == result.best


def test_the_same_seed_gives_the_same_weights_and_another_one_does_not():
    def weights(seed):
        agent = toy()
        train(agent, [stage()], evaluate_on=(), seed=seed)
        return weights_of(agent)

    assert same(weights(1), weights(1))
    assert not same(weights(1), weights(2))


def test_a_worse_last_checkpoint_does_not_replace_the_best(tmp_path):
    agent = toy()
    good = stage(40, problems=12, evaluate_every=10)
    ruin = stage(6, kind="imitation", learning_rate=30.0, evaluate_every=1)
    result = train(agent, [good, ruin], evaluate_on=HELD_OUT, seed=0, folder=tmp_path)
    figures = [record.evaluation for record in result.history if record.evaluation is not None]
    assert figures[-1] > result.best == min(figures)
    assert result.best_at == (2, 0)
    assert result.stages[1].before == result.stages[0].best == result.best
    assert evaluate(agent, HELD_OUT) == result.best
    assert same(weights_of(load_agent(tmp_path / "best.safetensors", lambda name: ToyAgent)), weights_of(agent))


def test_training_that_only_harms_leaves_the_agent_as_it_was():
    agent = toy()
    train(agent, [stage(40, problems=6)], evaluate_on=HELD_OUT, seed=0)
    before = weights_of(agent)
    result = train(agent, [stage(4, kind="imitation", learning_rate=30.0)], evaluate_on=HELD_OUT, seed=0)
    assert result.best_at == (1, 0)
    assert same(weights_of(agent), before)


def test_an_infinite_cost_is_an_error_that_names_the_problem_and_the_update(tmp_path):
    def draw(rng, count, progress):
        drawn = draw_toys(rng, count, progress)
        if progress >= 0.5:
            drawn[1] = ProblemInstance(drawn[1].problem, lambda placements: np.full(len(placements), np.inf), 1.0)
        return drawn

    agent = toy()
    with pytest.raises(
        TrainingError, match=r"Update 7 of stage 1 met a reward of -inf at step 6 on problem 2 of the batch \(6"
    ):
        train(agent, [dataclasses.replace(stage(), draw=draw)], evaluate_on=FEW, seed=0, folder=tmp_path, save_every=3)
    six = toy()
    half = Stage(lambda rng, count, progress: draw_toys(rng, count, progress) if progress < 0.5 else [], 12, problems=3)
    train(six, [dataclasses.replace(half, learning_rate=0.03, gamma=1.0)], evaluate_on=(), seed=0)
    assert same(weights_of(agent), weights_of(six))
    load_agent(tmp_path / "best.safetensors", lambda name: ToyAgent)
    train(toy(), [stage()], evaluate_on=FEW, seed=0, folder=tmp_path, save_every=3, resume=True)


def test_an_infinite_cost_is_an_error_in_evaluation_too():
    broken = ProblemInstance(FEW[0].problem, lambda placements: np.full(len(placements), np.inf), 1.0)
    with pytest.raises(TrainingError, match="Evaluation met a cost of inf on problem 2"):
        evaluate(toy(), [FEW[1], broken])


def test_a_reward_that_is_no_number_without_a_cost_that_is_none_is_an_error():
    class Odd(ToyAgent):
        def rewards(self, trajectory, costs):
            return super().rewards(trajectory, costs) * np.nan

    agent = toy()
    agent.__class__ = Odd
    with pytest.raises(TrainingError, match="met a reward of nan at step 1 on problem 1"):
        train(agent, [stage()], evaluate_on=(), seed=0)


class Diverging(ToyAgent):
    def loss(self, kind, instances, rng):
        return super().loss(kind, instances, rng) * (torch.inf if kind == "imitation" else 1)


def test_a_loss_that_is_no_number_is_an_error_and_changes_no_weights():
    agent = Diverging()
    before = weights_of(agent)
    with pytest.raises(TrainingError, match=r"The loss became inf in update 1 of stage 1 \(imitation\), on 3 episodes"):
        train(agent, [stage(kind="imitation")], evaluate_on=(), seed=0)
    assert same(weights_of(agent), before)


def test_a_way_of_learning_that_the_agent_lacks_is_its_own_error():
    with pytest.raises(UsageError, match="cannot learn by 'distillation'; it can by imitation"):
        train(toy(), [stage(kind="distillation")], evaluate_on=(), seed=0)


def test_training_stops_early_when_nothing_gets_better():
    result = train(toy(), [stage(100, learning_rate=0.0, evaluate_every=2, patience=3), stage(1)], evaluate_on=FEW, seed=0)
    assert [(record.stage, record.update) for record in result.history][-3:] == [(1, 6), (2, 0), (2, 1)]


def test_a_stage_ends_when_there_is_nothing_more_to_learn_from():
    left = iter(range(3))

    def draw(rng, count, progress):
        return draw_toys(rng, count, progress) if next(left, None) is not None else []

    result = train(toy(), [dataclasses.replace(stage(), draw=draw)], evaluate_on=FEW, seed=0)
    assert [record.update for record in result.history] == [0, 1, 2, 3, 3]  # evaluated at the start and at the end
    assert result.history[-1].evaluation is not None


def test_without_anything_to_evaluate_on_the_last_weights_stay():
    result = train(toy(), [stage(3)], evaluate_on=(), seed=0)
    assert (result.best, result.best_at) == (None, None)
    assert [record.update for record in result.history] == [1, 2, 3]


def test_problems_without_a_choice_can_be_in_a_batch():
    lone = toy_instance(0, ops=1, devices=1)
    agent = toy()
    result = train(agent, [Stage(lambda rng, count, progress: [lone], 2)], evaluate_on=[lone], seed=0)
    assert result.best == pytest.approx(1.0)


def test_a_learned_decision_is_weighted_as_the_formula_says():
    """One update by plain gradient, against the sum over steps of gamma^t grad log pi (G_t - b_t)."""
    gamma, instances = 0.5, [toy_instance(1), toy_instance(2)]
    agent, by_hand, played = toy(), toy(), []

    class Spy(ToyAgent):
        def rewards(self, trajectory, costs):
            played.append((trajectory, super().rewards(trajectory, costs)))
            return played[-1][1]

    agent.__class__ = Spy
    one = Stage(lambda *_: instances, 1, gamma=gamma, baseline="episode-mean", normalize=False, discount_steps=True, clip=None)
    record = train(agent, [one], evaluate_on=(), seed=4).history[0]
    trajectory, rewards = played[0]
    loss = 0.0
    for b, instance in enumerate(instances):
        log_probability = by_hand.logits(instance)[np.arange(6), trajectory.visited[b][0]]
        reward = rewards[5, b]  # the only one, so the mean of those before a step is zero
        loss = loss - sum(gamma**t * log_probability[t] * gamma ** (5 - t) * reward for t in range(6)) / 12
    loss.backward()
    norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in by_hand.network.parameters()]))
    assert record.loss == pytest.approx(loss.item(), rel=1e-5)
    assert record.gradient_norm == pytest.approx(norm.item(), rel=1e-5)
    assert record.episode_return == pytest.approx(gamma**5 * rewards[5].mean())


@pytest.mark.parametrize("baseline", ["moving", "none"])
def test_one_episode_with_one_reward_is_learned_from(baseline):
    agent, instance, draws = toy(), toy_instance(0), []

    def draw(rng, count, progress):
        draws.append(weights_of(agent))
        worse = float(len(draws))  # than all episodes before
        return [dataclasses.replace(instance, cost=lambda placements: worse * instance.cost(placements))] * count

    one = stage(3, problems=1, episodes=1, gamma=1.0, baseline=baseline)
    history = train(agent, [dataclasses.replace(one, draw=draw)], evaluate_on=(), seed=0).history
    assert not same(draws[-1], weights_of(agent))
    assert history[-1].loss != 0.0


def test_a_baseline_can_be_a_function():
    seen = []

    def mine(episodes, memory):
        seen.append(episodes.returns.shape)
        return np.zeros_like(episodes.returns)

    result = train(toy(), [stage(2, baseline=mine, problems=4)], evaluate_on=(), seed=0)
    assert seen == [(6, 4), (6, 4)]
    assert result.about["stages"][0]["baseline"].endswith("mine")


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("constant", [0.4, 0.4, 0.4, 0.4]), ("linear", [0.4, 0.325, 0.25, 0.175]), ("cosine", [0.4, 0.35607, 0.25, 0.14393])],
)
def test_the_learning_rate_follows_its_schedule(schedule, rates):
    one = stage(4, learning_rate=0.4, final_learning_rate=0.1, schedule=schedule)
    result = train(toy(), [one], evaluate_on=(), seed=0)
    assert [record.learning_rate for record in result.history] == pytest.approx(rates, abs=1e-5)


def test_exploring_follows_its_schedule_and_is_for_explorers():
    agent = ExploringAgent()
    train(agent, [stage(4, explore=0.2, final_explore=0.0), stage(2, explore=0.1)], evaluate_on=FEW, seed=0)
    assert agent.explored == pytest.approx([0.2, 0.15, 0.1, 0.05, 0.1, 0.1])
    assert len(agent.costs) == 3 * 6  # evaluation is not remembered
    with pytest.raises(UsageError, match="'toy' does not explore"):
        train(toy(), [stage(explore=0.1)], evaluate_on=(), seed=0)


def test_the_draw_is_told_how_far_the_stage_is():
    told = []

    def draw(rng, count, progress):
        told.append((count, progress))
        return draw_toys(rng, count, progress)

    shown = []
    plan = [Stage(draw, 4, problems=2), Stage(draw, 1, kind="imitation", problems=5)]
    train(toy(), plan, evaluate_on=(), seed=0, progress=lambda what, share: shown.append((what, share)))
    assert told == [(2, 0.0), (2, 0.25), (2, 0.5), (2, 0.75), (5, 0.0)]
    assert shown[3:6] == [("stage 1 of 2: reinforce", 0.75), ("stage 1 of 2: reinforce", 1.0), ("stage 2 of 2: imitation", 0.0)]


def test_nothing_to_train_is_an_error():
    with pytest.raises(UsageError, match="give at least one stage"):
        train(toy(), [], evaluate_on=(), seed=0)
    with pytest.raises(UsageError, match="'save_every' is 0"):
        train(toy(), [stage()], evaluate_on=(), seed=0, save_every=0)


def test_the_example_in_the_documentation_runs(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2] / "docs" / "training.md"
    monkeypatch.chdir(tmp_path)
    exec(page.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0], {})
    assert (tmp_path / "placeto.safetensors").exists()
    assert capsys.readouterr().out.count("\n") == 1
