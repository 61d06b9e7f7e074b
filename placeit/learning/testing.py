"""Conformance tests for agents, as a test class to inherit.

Use it like this::

    from placeit.learning.testing import AgentConformance

    class TestMine(AgentConformance):
        ways = ("imitation",)

        def make(self):
            return MyAgent()

Importing this module requires pytest, as :mod:`placeit.testing.placers` does.
"""

# ruff: noqa: S101 (assertions are what a test suite is made of)
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from placeit.core.errors import UsageError
from placeit.core.problem import CostFunction
from placeit.learning.agent import Agent, Decisive, ProblemInstance, Taught, Trajectory
from placeit.learning.checkpoint import load_agent, save_agent, weights_of
from placeit.learning.training.loop import Stage, evaluate, train
from placeit.learning.training.sources import simulated
from placeit.testing.problems import random_problem

__all__ = ["AgentConformance"]


class AgentConformance:
    """Tests that any agent must pass.

    Attributes:
        ways: training methods of the agent other than REINFORCE.
    """

    ways: tuple[str, ...] = ()

    def make(self) -> Agent:
        """Return an untrained agent of a suitable size for the instances; the same one each time."""
        raise NotImplementedError

    def instances(self) -> Sequence[ProblemInstance]:
        """Return problems of different sizes, including scarce memory, scarce devices, a single op and a single device."""
        problems = [
            random_problem(7, 3, 0),
            random_problem(5, 2, 1, tight=True),
            random_problem(9, 3, 2, everywhere=0.3),
            random_problem(1, 3, 3, everywhere=1.0),
            random_problem(4, 1, 4),
        ]
        return [simulated(problem) for problem in problems]

    def test_configuration_round_trips(self, tmp_path: Path) -> None:
        """An agent made from the configuration loads the weights and makes the same decisions."""
        agent = self.make()
        path = tmp_path / "agent.safetensors"
        save_agent(agent, path)
        again = load_agent(path, lambda _: type(agent))
        assert dict(again.config) == dict(agent.config)
        assert evaluate(again, self.instances()) == evaluate(agent, self.instances())

    def test_episodes_draw_only_from_the_given_generator(self) -> None:
        """So training can be resumed with the same result."""
        agent, instances = self.make(), self.instances()
        before = torch.get_rng_state()
        one, same, other = (agent.rollout(instances, np.random.default_rng(seed)) for seed in (0, 0, 1))
        assert torch.equal(torch.get_rng_state(), before)
        assert all(map(np.array_equal, one.visited, same.visited))
        assert not all(map(np.array_equal, one.visited, other.visited))

    def test_episodes_call_no_cost_function(self) -> None:
        """The caller values the placements of an episode, in training and in evaluation."""

        def forbidden(_placements: NDArray[np.int32]) -> NDArray[np.float64]:
            raise AssertionError

        agent = self.make()
        instances = [dataclasses.replace(instance, cost=forbidden) for instance in self.instances()]
        for network in (agent.network.train(), agent.network.eval()):
            assert network is agent.network
            agent.rollout(instances, np.random.default_rng(0))

    def test_trajectories_have_the_documented_shapes(self) -> None:
        """Shapes agree, and every visited placement is feasible."""
        instances = self.instances()
        trajectory = self.make().rollout(instances, np.random.default_rng(0))
        assert trajectory.valid.dtype == bool
        assert trajectory.valid.shape == (len(trajectory.valid), len(instances))
        assert len(trajectory.visited) == len(instances)
        for instance, visited in zip(instances, trajectory.visited, strict=True):
            assert visited.dtype == np.int32
            assert visited.shape == (len(visited), len(instance.problem))
            assert len(visited)
            for placement in visited:
                instance.problem.check(placement)

    def test_only_decisions_have_rewards(self) -> None:
        """Rewards of decisions are finite and depend on costs; all other rewards are zero."""
        agent, instances = self.make(), self.instances()
        trajectory = agent.rollout(instances, np.random.default_rng(0))
        costs = _costs(instances, trajectory)
        rewards = agent.rewards(trajectory, costs)
        assert rewards.shape == trajectory.valid.shape
        assert rewards.dtype == np.float64
        assert np.isfinite(rewards).all()
        assert not rewards[~trajectory.valid].any()
        assert not np.array_equal(rewards, self.make().rewards(trajectory, [2 * path for path in costs]))

    def test_unknown_costs_give_unknown_rewards(self) -> None:
        """An episode without any known cost has an unknown reward; all rewards of the other episodes are known."""
        instances = self.instances()
        trajectory = self.make().rollout(instances, np.random.default_rng(0))
        for unknown in range(len(instances)):
            costs = _costs(instances, trajectory)
            costs[unknown] = np.full_like(costs[unknown], np.nan)
            rewards = self.make().rewards(trajectory, costs)
            assert np.isnan(rewards[:, unknown]).any() == trajectory.valid[:, unknown].any()
            assert np.isfinite(np.delete(rewards, unknown, axis=1)).all()

    def test_each_decision_is_scored_once_with_gradients(self) -> None:
        """Log-probabilities and entropies belong to a distribution, depend on the weights, and are equal when scored again."""
        agent, instances = self.make(), self.instances()
        trajectory = agent.rollout(instances, np.random.default_rng(0))
        seen = np.zeros(trajectory.valid.shape, int)
        for steps, problems, log_probability, entropy in agent.score(trajectory):
            assert len(steps) == len(problems) == len(log_probability) == len(entropy)
            np.add.at(seen, (steps, problems), 1)
            assert (log_probability <= 1e-5).all()
            assert (entropy >= -1e-5).all()
            (log_probability.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]
        assert np.array_equal(seen, trajectory.valid)
        again = [part[2:] for part in agent.score(trajectory)]
        for one, other in zip(again, agent.score(trajectory), strict=True):
            assert torch.equal(one[0], other[2])
            assert torch.equal(one[1], other[3])
        gradients = [p.grad for p in agent.network.parameters() if p.grad is not None]
        assert any(gradient.abs().sum() > 0 for gradient in gradients)

    def test_each_training_method_changes_weights(self) -> None:
        """An update by REINFORCE, in one epoch or two, and one by each other way, changes weights."""
        instances = self.instances()
        for kind, epochs in (("reinforce", 1), ("reinforce", 2), *((way, 1) for way in self.ways)):
            agent = self.make()
            before = weights_of(agent)
            stage = Stage(lambda *_: instances, 2, kind, learning_rate=0.01, epochs=epochs)
            result = train(agent, [stage], evaluate_on=(), seed=0)
            assert len(result.history) == 2
            assert any(not torch.equal(before[name], tensor) for name, tensor in weights_of(agent).items())

    def test_resumed_training_gives_the_same_weights(self, tmp_path: Path) -> None:
        """The training state holds everything that matters: a new agent goes on from it."""
        instances = self.instances()

        def weights(name: str, crash_at: float) -> dict[str, torch.Tensor]:
            def draw(_rng: np.random.Generator, _count: int, progress: float) -> Sequence[ProblemInstance]:
                if progress == crash_at:
                    raise InterruptedError
                return instances

            agent = self.make()
            stages = [Stage(draw, 4, kind, learning_rate=0.01) for kind in ("reinforce", *self.ways)]
            train(agent, stages, evaluate_on=(), seed=0, folder=tmp_path / name, resume=True, save_every=1)
            return weights_of(agent)

        with pytest.raises(InterruptedError):
            weights("stopped", crash_at=0.5)
        stopped, whole = weights("stopped", crash_at=-1), weights("whole", crash_at=-1)
        assert all(torch.equal(stopped[name], tensor) for name, tensor in whole.items())

    def test_training_leaves_out_unknown_costs(self) -> None:
        """Costs that are NaN are left out, and counted."""
        instances = self.instances()

        def failing(instance: ProblemInstance) -> CostFunction:
            return lambda placements: np.where(placements.sum(axis=1) % 2 == 0, instance.cost(placements), np.nan)

        agent = self.make()
        stage = Stage(lambda *_: instances, 3, learning_rate=0.01, cost="failing", baseline="moving")
        result = train(agent, [stage], evaluate_on=(), seed=0, costs={"failing": failing})
        assert result.stages[0].dropped > 0
        assert all(torch.isfinite(tensor).all() for tensor in weights_of(agent).values())

    def test_each_teacher_gives_a_loss_with_gradients(self) -> None:
        """For each teacher of the agent, the loss is finite and has gradients."""
        agent = self.make()
        if isinstance(agent, Taught):
            instances = self.instances()
            agent.network.train()
            played = agent.rollout(instances, np.random.default_rng(1))  # remembered placements may be a teacher, too
            agent.rewards(played, _costs(instances, played))
            for kind, name in ((kind, name) for kind, names in agent.teachers.items() for name in names):
                loss = agent.loss(kind, instances, np.random.default_rng(0), name)
                assert torch.isfinite(loss)
                assert loss.requires_grad

    def test_the_greedy_placement_is_feasible_and_deterministic(self) -> None:
        """Applies to agents with ``greedy_placement``."""
        agent = self.make()
        if isinstance(agent, Decisive):
            for problem in (instance.problem for instance in self.instances()):
                placement = agent.greedy_placement(problem)
                problem.check(placement)
                assert np.array_equal(agent.greedy_placement(problem), placement)

    def test_an_unknown_training_method_is_an_error(self) -> None:
        """The message names the method."""
        with pytest.raises(UsageError, match="osmosis"):
            self.make().loss("osmosis", self.instances(), np.random.default_rng(0))


def _costs(instances: Sequence[ProblemInstance], trajectory: Trajectory) -> list[NDArray[np.float64]]:
    return [one.cost(visited) / one.unit for one, visited in zip(instances, trajectory.visited, strict=True)]
