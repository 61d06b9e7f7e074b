"""Conformance tests for agents, as a test class to inherit.

Use it like this::

    from placeit.testing.agents import AgentConformance

    class TestMine(AgentConformance):
        ways = ("imitation",)

        def make(self):
            return MyAgent()

Importing this module needs pytest, as :mod:`placeit.testing.placers` does.
"""

# ruff: noqa: S101 (assertions are what a test suite is made of)
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from placeit.core.errors import UsageError
from placeit.placers.learned.agent import Agent, ProblemInstance
from placeit.placers.learned.checkpoint import load_agent, save_agent, weights_of
from placeit.placers.learned.training.loop import Stage, evaluate, train
from placeit.placers.learned.training.sources import simulated
from placeit.testing.problems import random_problem

__all__ = ["AgentConformance"]


class AgentConformance:
    """Tests that any agent must pass.

    Attributes:
        ways: other than REINFORCE in which the agent learns.
    """

    ways: tuple[str, ...] = ()

    def make(self) -> Agent:
        """Return an untrained agent of a suitable size for the instances; the same one each time."""
        raise NotImplementedError

    def instances(self) -> Sequence[ProblemInstance]:
        """Problems of different sizes, including scarce memory, scarce devices, a single op and a single device."""
        problems = [
            random_problem(7, 3, 0),
            random_problem(5, 2, 1, tight=True),
            random_problem(9, 3, 2, everywhere=0.3),
            random_problem(1, 3, 3, everywhere=1.0),
            random_problem(4, 1, 4),
        ]
        return [simulated(problem) for problem in problems]

    def test_its_configuration_makes_it_again(self, tmp_path: Path) -> None:
        """Another agent made of the configuration takes the weights, and decides the same."""
        agent = self.make()
        path = tmp_path / "agent.safetensors"
        save_agent(agent, path)
        again = load_agent(path, lambda _: type(agent))
        assert dict(again.config) == dict(agent.config)
        assert evaluate(again, self.instances()) == evaluate(agent, self.instances())

    def test_an_episode_is_drawn_from_the_given_generator_alone(self) -> None:
        """So that training can be resumed with the same result."""
        agent, instances = self.make(), self.instances()
        before = torch.get_rng_state()
        one, same, other = (agent.rollout(instances, np.random.default_rng(seed)) for seed in (0, 0, 1))
        assert torch.equal(torch.get_rng_state(), before)
        assert np.array_equal(one.rewards, same.rewards)
        assert all(map(np.array_equal, one.placements, same.placements))
        assert not np.array_equal(one.rewards, other.rewards)

    def test_a_trajectory_holds_what_it_says(self) -> None:
        """Shapes agree, the placements are feasible and have the costs, rewards are finite and stand where decisions are."""
        instances = self.instances()
        trajectory = self.make().rollout(instances, np.random.default_rng(0))
        assert trajectory.rewards.shape == trajectory.valid.shape == (len(trajectory.valid), len(instances))
        assert np.isfinite(trajectory.rewards[trajectory.valid]).all()
        assert not trajectory.rewards[~trajectory.valid].any()
        for instance, placement, cost in zip(instances, trajectory.placements, trajectory.costs, strict=True):
            instance.problem.check(placement)
            assert instance.cost(placement[None])[0] / instance.unit == pytest.approx(cost)

    def test_every_decision_is_scored_once_with_gradients(self) -> None:
        """Log-probabilities and entropies are those of a distribution, and depend on the weights."""
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
        gradients = [p.grad for p in agent.network.parameters() if p.grad is not None]
        assert any(gradient.abs().sum() > 0 for gradient in gradients)

    def test_it_learns_in_every_way_that_it_has(self) -> None:
        """An update by REINFORCE, and one by each other way, changes weights."""
        instances = self.instances()
        for kind in ("reinforce", *self.ways):
            agent = self.make()
            before = weights_of(agent)
            stage = Stage(lambda *_: instances, 2, kind, learning_rate=0.01)
            result = train(agent, [stage], evaluate_on=(), seed=0)
            assert len(result.history) == 2
            assert any(not torch.equal(before[name], tensor) for name, tensor in weights_of(agent).items())

    def test_training_that_stopped_goes_on_to_the_same_weights(self, tmp_path: Path) -> None:
        """Nothing that matters is kept outside the training state: an agent made anew goes on from it."""
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

    def test_a_way_of_learning_that_it_lacks_is_an_error(self) -> None:
        """With a message that names the way."""
        with pytest.raises(UsageError, match="osmosis"):
            self.make().loss("osmosis", self.instances(), np.random.default_rng(0))
