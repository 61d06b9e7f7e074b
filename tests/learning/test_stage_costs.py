"""Stages with different costs: evaluation, costs that could not be measured, limits of time, and the value of a decision."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from placeit.core import clock
from placeit.core.errors import TrainingError, UsageError
from placeit.learning.agent import ProblemInstance, Trajectory
from placeit.learning.checkpoint import load_agent, read_checkpoint, weights_of
from placeit.learning.training.loop import Stage, evaluate, train
from placeit.learning.training.valuing import value
from tests.learning.toy_agent import FEW, HELD_OUT, ExploringAgent, ToyAgent, draw_toys, same, stage, toy, toy_instance


def opposite(instance):
    """A cost by which the worst placements of the simulation are the best."""
    return lambda placements: 10 * instance.unit - instance.cost(placements)


def twice(instance):
    return lambda placements: 2 * instance.cost(placements)


def lost(instance):
    return lambda placements: np.full(len(placements), np.nan)


def every_third(instance):
    """A cost that cannot measure one placement in three."""
    return lambda placements: np.where(placements.sum(axis=1) % 3 == 0, np.nan, instance.cost(placements))


COSTS = {"opposite": opposite, "twice": twice, "lost": lost, "third": every_third}


def test_all_that_was_visited_is_valued_at_once_and_equal_placements_once():
    one, other, asked = toy_instance(1), toy_instance(2), []

    def counting(instance):
        def cost(placements):
            asked.append(len(placements))
            return instance.cost(placements)

        return dataclasses.replace(instance, cost=cost)

    batch = [counting(one), counting(other)]
    visited = [np.array(rows, np.int32) for rows in ([[0] * 6, [1] * 6, [0] * 6], [[2] * 6], [[1] * 6, [2] * 6])]
    costs = value([batch[0], batch[1], batch[0]], visited)
    assert asked == [3, 1]
    for instance, path, found in zip([one, other, one], visited, costs, strict=True):
        assert np.array_equal(found, instance.cost(path))


def test_the_best_weights_are_those_of_the_last_stage_by_its_own_cost(tmp_path):
    """A good simulated figure does not count for a stage with another cost."""
    agent = toy()
    learning = {"problems": 8, "learning_rate": 0.05, "evaluate_every": 5}
    stages = [stage(20, **learning), stage(20, cost="opposite", **learning)]
    result = train(agent, stages, evaluate_on=HELD_OUT, seed=0, costs=COSTS, folder=tmp_path)
    first, second = result.stages
    assert (first.cost, second.cost) == ("simulated", "opposite")
    assert first.best < first.before
    assert second.best < second.before
    assert second.best > first.best  # 10 - SLR
    assert (result.best, result.best_at) == (second.best, (2, second.best_at))
    by_its_cost = [dataclasses.replace(one, cost=opposite(one)) for one in HELD_OUT]
    assert evaluate(agent, by_its_cost) == second.best
    kept = tmp_path / "best.safetensors"
    assert same(weights_of(load_agent(kept, lambda name: ToyAgent)), weights_of(agent))
    assert read_checkpoint(kept).about["evaluation"] == result.about["evaluation"] == second.best


def test_a_stage_begins_with_the_best_weights_of_the_one_before():
    ruin = stage(6, kind="imitation", learning_rate=30.0, evaluate_every=1)
    agent, one = toy(), toy()
    train(agent, [ruin, stage(1, learning_rate=0.0)], evaluate_on=HELD_OUT, seed=0)
    train(one, [ruin], evaluate_on=HELD_OUT, seed=0)
    assert same(weights_of(agent), weights_of(one))


def test_every_stage_has_an_evaluation_of_what_it_begins_with():
    stages = [stage(4), stage(4), stage(4, cost="twice")]
    result = train(toy(), stages, evaluate_on=FEW, seed=0, costs=COSTS)
    first, second, third = result.stages
    assert [record.update for record in result.history if record.evaluation is not None] == [0, 4] * 3
    assert second.before == first.best
    assert third.before == pytest.approx(2 * second.best)


def test_the_best_placement_that_a_stage_met_is_reported_with_its_cost():
    instances = FEW
    met = []

    def noting(instance):
        def cost(placements):
            costs = 2 * instance.cost(placements)
            met.extend(zip([instance.problem.key] * len(costs), placements.tolist(), costs.tolist(), strict=True))
            return costs

        return cost

    stages = [Stage(lambda *_: instances, 5), Stage(lambda *_: instances, 5, cost=noting)]
    result = train(toy(), stages, evaluate_on=instances, seed=0)
    simulated, noted = result.stages
    assert noted.cost.endswith("noting")
    assert [found.problem for found in noted.found] == [instance.problem.key for instance in instances]
    for instance, found in zip(instances, noted.found, strict=True):
        assert found.cost == min(cost for key, _, cost in met if key == instance.problem.key)
        assert found.cost == noting(instance)(found.placement[None])[0]
    assert all(
        one.cost == instance.cost(one.placement[None])[0] for one, instance in zip(simulated.found, instances, strict=True)
    )


def test_a_cost_that_is_not_there_is_an_error_that_lists_those_that_are():
    with pytest.raises(
        UsageError, match=r"Stage 2 .* cost 'speed', and there is only: simulated, opposite, twice, lost, third\."
    ):
        train(toy(), [stage(), stage(cost="speed")], evaluate_on=(), seed=0, costs=COSTS)
    with pytest.raises(UsageError, match=r"'measured', and there is only: simulated\. Placements are measured where"):
        train(toy(), [stage(cost="measured")], evaluate_on=(), seed=0)


def test_a_decision_that_could_not_be_measured_is_left_out_of_the_gradient():
    """One update, against the same by hand on the other episodes."""
    instances = [toy_instance(seed) for seed in range(6)]
    agent, by_hand, played = toy(), toy(), []

    class Spy(ToyAgent):
        def rewards(self, trajectory, costs):
            played.append((trajectory, costs))
            return super().rewards(trajectory, costs)

    agent.__class__ = Spy
    one = Stage(lambda *_: instances, 1, gamma=1.0, baseline="none", normalize=False, clip=None, cost="third")
    result = train(agent, [one], evaluate_on=(), seed=4, costs=COSTS)
    trajectory, costs = played[0]
    known = [b for b, path in enumerate(costs) if not np.isnan(path[0])]
    assert 0 < len(known) < 6
    loss = 0.0
    for b in known:
        log = by_hand.logits(instances[b])[np.arange(6), trajectory.visited[b][0]]
        loss = loss + log.sum() * costs[b][0] / (6 * len(known))
    loss.backward()
    norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in by_hand.network.parameters()]))
    record = result.history[0]
    assert record.loss == pytest.approx(loss.item(), rel=1e-5)
    assert record.gradient_norm == pytest.approx(norm.item(), rel=1e-5)
    assert record.dropped == result.stages[0].dropped == 6 * (6 - len(known))
    assert record.episode_return == pytest.approx(-np.mean([costs[b][0] for b in known]))


class Stepwise(ToyAgent):
    """Visits a placement after each decision, six different ones; the reward of a step is minus its cost."""

    def rollout(self, instances, rng):
        whole = super().rollout(instances, rng)
        visited = [np.tril(np.ones((6, 6), np.int32)) for _ in instances]
        return Trajectory(whole.valid, visited, (instances, [path[0] for path in whole.visited]))

    def rewards(self, trajectory, costs):
        return -np.stack(costs, axis=1)

    def score(self, trajectory):
        instances, chosen = trajectory.decisions
        for b, instance in enumerate(instances):
            log = self.logits(instance)[np.arange(6), chosen[b]]
            yield np.arange(6), np.full(6, b), log, torch.zeros(6)


def stepwise():
    agent = toy()
    agent.__class__ = Stepwise
    return agent


def third_step_lost(instance):
    return lambda placements: np.where(placements.sum(axis=1) == 3, np.nan, instance.cost(placements))


FREE = [ProblemInstance(toy_instance(9).problem, lambda placements: placements.sum(axis=1).astype(float), 1.0)]


@pytest.mark.parametrize(("reward_to_go", "learned"), [(True, [3, 4, 5]), (False, [0, 1, 3, 4, 5])])
def test_what_depends_on_an_unknown_reward_is_left_out_and_nothing_else(reward_to_go, learned):
    seen = []

    def baseline(episodes, memory):
        seen.append(np.flatnonzero(episodes.valid[:, 0]).tolist())
        assert np.isfinite(episodes.returns).all()
        assert not episodes.complete.any()
        return np.zeros_like(episodes.returns)

    one = Stage(lambda *_: FREE, 1, reward_to_go=reward_to_go, baseline=baseline, cost=third_step_lost)
    record = train(stepwise(), [one], evaluate_on=(), seed=0).history[0]
    assert seen == [learned]
    assert record.dropped == 6 - len(learned)
    assert record.episode_return is None


def on_its_own(rewards, gamma):
    return rewards * gamma ** np.arange(6)


def from_its_step_on(rewards, gamma):
    return [sum(gamma**i * reward for i, reward in enumerate(rewards[t:])) for t in range(6)]


@pytest.mark.parametrize(("reward_to_go", "weights"), [(False, on_its_own), (True, from_its_step_on)])
def test_a_decision_counts_as_its_own_discounted_reward_or_as_those_from_its_step_on(reward_to_go, weights):
    agent, by_hand, gamma = stepwise(), stepwise(), 0.5
    one = Stage(lambda *_: FREE, 1, gamma=gamma, reward_to_go=reward_to_go, baseline="none", normalize=False, clip=None)
    record = train(agent, [one], evaluate_on=(), seed=4).history[0]
    trajectory = by_hand.rollout(FREE, np.random.default_rng([4, 2]))
    _, _, log, _ = next(iter(by_hand.score(trajectory)))
    rewards = -np.arange(1.0, 7.0)
    assert record.loss == pytest.approx(-(log.detach().numpy() * weights(rewards, gamma)).sum() / 6, rel=1e-5)
    assert record.episode_return == pytest.approx((rewards * gamma ** np.arange(6)).sum())


def test_an_update_of_which_nothing_could_be_measured_is_skipped():
    calls = itertools.count()

    def in_the_middle(instance):
        return lambda placements: np.full(len(placements), np.nan) if 6 <= next(calls) < 12 else instance.cost(placements)

    records = []
    for cost in (in_the_middle, "simulated"):
        draws = []

        def draw(rng, count, progress, cost=cost, draws=draws):
            draws.append(progress)
            return draw_toys(rng, count, progress)

        one = dataclasses.replace(stage(6, cost=cost, baseline="moving"), draw=draw)
        records.append(train(toy(), [one], evaluate_on=(), seed=0).history)
    some, every = records
    assert [record.dropped for record in some] == [0, 0, 18, 18, 0, 0]
    assert [record.loss is None for record in some] == [False, False, True, True, False, False]
    assert [record.loss for record in some[:2]] == [record.loss for record in every[:2]]


def test_training_ends_with_the_best_so_far_where_nothing_can_be_measured_any_more(tmp_path):
    agent, only = toy(), toy()
    stages = [stage(8), stage(40, cost="lost"), stage(4)]
    result = train(agent, stages, evaluate_on=FEW, seed=0, costs=COSTS, folder=tmp_path)
    train(only, stages[:1], evaluate_on=FEW, seed=0)
    assert same(weights_of(agent), weights_of(only))
    assert "stage 2 (reinforce) after 10 updates" in result.stopped
    assert "nothing could be measured by the cost 'lost'" in result.stopped
    assert [one.best is None for one in result.stages] == [False, True]
    assert (result.best, result.stages[1].dropped) == (None, 10 * 18)
    again = toy()
    mended = {**COSTS, "lost": twice}
    resumed = train(again, stages, evaluate_on=FEW, seed=0, costs=mended, folder=tmp_path, resume=True)
    assert resumed.stopped is None
    assert len(resumed.stages) == 3
    assert resumed.stages[1].best is not None


def test_a_stage_whose_last_update_measured_nothing_is_over_when_training_resumes(tmp_path):
    stages = [stage(10, cost="lost"), stage(2)]
    result = train(toy(), stages, evaluate_on=(), seed=0, costs=COSTS, folder=tmp_path)
    assert result.stopped is not None
    resumed = train(toy(), stages, evaluate_on=(), seed=0, costs=COSTS, folder=tmp_path, resume=True)
    assert resumed.stopped is None
    assert [record.update for record in resumed.history] == [*range(1, 11), 1, 2]


def test_an_evaluation_of_which_a_problem_could_not_be_measured_has_no_figure():
    judges = [FEW[0], dataclasses.replace(FEW[1], cost=lost(FEW[1]))]
    assert np.isnan(evaluate(toy(), judges))
    result = train(toy(), [stage(8)], evaluate_on=judges, seed=0)
    assert (result.best, result.stages[0].best) == (None, None)
    assert [record.evaluation for record in result.history] == [None] * 9


def test_an_agent_that_remembers_is_told_what_could_be_measured_only():
    agent = ExploringAgent()
    train(agent, [stage(6, cost="third", explore=0.1)], evaluate_on=(), seed=0, costs=COSTS)
    assert np.isfinite(agent.costs).all()


def test_a_stage_ends_when_its_time_is_up(tmp_path):
    stages = [stage(10_000, seconds=0.3), stage(3)]
    result = train(toy(), stages, evaluate_on=FEW, seed=0, folder=tmp_path)
    updates = [record.update for record in result.history if record.stage == 1]
    assert 1 <= max(updates) < 10_000
    assert result.history[-1].stage == 2


def test_the_time_that_a_stage_took_before_it_was_interrupted_counts(tmp_path, monkeypatch):
    calls, now = [0], [0.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])

    def draw(rng, count, progress):
        calls[0] += 1
        if calls[0] == 2:
            raise InterruptedError
        now[0] += 0.3
        return draw_toys(rng, count, progress)

    stages = [dataclasses.replace(stage(10_000, seconds=0.5, cost="twice"), draw=draw)]
    with pytest.raises(InterruptedError):
        train(toy(), stages, evaluate_on=(), seed=0, costs=COSTS, folder=tmp_path)
    result = train(toy(), stages, evaluate_on=(), seed=0, costs=COSTS, folder=tmp_path, resume=True)
    assert [record.update for record in result.history] == [1, 2]  # of 0.3 seconds each


def test_several_epochs_score_the_same_episodes_again_and_step_each_time():
    instances, scored = [toy_instance(1), toy_instance(2)], []

    class Spy(ToyAgent):
        def score(self, trajectory):
            scored.append((trajectory, weights_of(self)))
            return super().score(trajectory)

    def spy():
        agent = toy()
        agent.__class__ = Spy
        return agent

    agent = spy()
    result = train(agent, [Stage(lambda *_: instances, 2, epochs=3, learning_rate=0.01)], evaluate_on=(), seed=0)
    assert [record.update for record in result.history] == [1, 2]
    trajectories = [trajectory for trajectory, _ in scored]
    assert [one is other for one, other in itertools.pairwise(trajectories)] == [True, True, False, True, True]
    assert not any(same(one, other) for (_, one), (_, other) in itertools.pairwise(scored))


def test_a_loss_that_is_no_number_in_a_later_epoch_changes_no_weights():
    scored = itertools.count()

    class Diverging(ToyAgent):
        def score(self, trajectory):
            worse = np.inf if next(scored) == 1 else 1.0
            return ((steps, problems, log * worse, entropy) for steps, problems, log, entropy in super().score(trajectory))

    agent = toy()
    agent.__class__ = Diverging
    before = weights_of(agent)
    with pytest.raises(TrainingError, match=r"The loss became -?(inf|nan) in update 1 of stage 1"):
        train(agent, [stage(epochs=2, entropy=0.0)], evaluate_on=(), seed=0)
    assert same(weights_of(agent), before)
