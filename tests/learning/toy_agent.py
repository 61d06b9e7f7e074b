"""A small agent that learns for real: a device for each op, one op a step, the reward at the end."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.learning.agent import ProblemInstance, Trajectory
from placeit.learning.training.loop import Stage
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem


class ToyAgent:
    """Scores an op on a device by its time there, compared with the fastest device, and by the device's share of all work."""

    name: ClassVar[str] = "toy"
    version: ClassVar[int] = 1

    def __init__(self, hidden: int = 4, pace: float = 1.0) -> None:
        self.hidden, self.pace = hidden, pace
        self.network = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    @property
    def config(self) -> Mapping[str, bool | int | float | str]:
        return {"hidden": self.hidden, "pace": self.pace}

    def logits(self, instance: ProblemInstance) -> Tensor:
        problem = instance.problem
        seconds = np.where(problem.feasible, problem.compute, 0.0)
        fastest = problem.compute.min(axis=1, keepdims=True)
        share = (seconds / seconds.sum()).sum(axis=0, keepdims=True) + 0 * seconds
        x = torch.tensor(np.stack([seconds / fastest, share], axis=2), dtype=torch.float32)
        scores = self.pace * self.network(x)[:, :, 0]
        return torch.log_softmax(scores.masked_fill(~torch.tensor(problem.feasible), -torch.inf), dim=1)

    def rollout(self, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Trajectory:
        valid = np.zeros((max(len(instance.problem) for instance in instances), len(instances)), bool)
        visited = []
        for b, instance in enumerate(instances):
            with torch.no_grad():
                chances = self.logits(instance).exp().double().numpy()
            chances /= chances.sum(axis=1, keepdims=True)
            visited.append(np.array([[rng.choice(len(row), p=row) for row in chances]], np.int32))
            valid[: len(instance.problem), b] = True
        return Trajectory(valid, visited, list(instances))

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        rewards = np.zeros(trajectory.valid.shape)
        rewards[trajectory.valid.sum(axis=0) - 1, np.arange(len(costs))] = [-path[0] for path in costs]
        return rewards

    def score(self, trajectory: Trajectory) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor, Tensor]]:
        for b, instance in enumerate(trajectory.decisions):
            logits = self.logits(instance)
            steps = np.arange(len(logits))
            entropy = -(logits.exp() * logits.clamp_min(-1e9)).sum(dim=1)
            yield steps, np.full(len(steps), b), logits[steps, trajectory.visited[b][0]], entropy

    def loss(self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Tensor:
        """``imitation``: every op on its fastest device."""
        if kind != "imitation":
            raise UsageError(f"The agent 'toy' cannot learn by '{kind}'; it can by imitation.")
        losses = []
        for instance in instances:
            best = torch.tensor(instance.problem.compute.argmin(axis=1))
            losses.append(nn.functional.nll_loss(self.logits(instance), best))
        return torch.stack(losses).mean()


class ExploringAgent(ToyAgent):
    """Replaces decisions at random while it learns, and remembers the costs of its episodes."""

    name: ClassVar[str] = "explorer"

    def __init__(self) -> None:
        super().__init__()
        self.explore = 1.0
        self.costs: list[float] = []
        self.explored: list[float] = []

    def rollout(self, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Trajectory:
        trajectory = super().rollout(instances, rng)
        if self.network.training:
            self.explored.append(self.explore)
            for instance, visited in zip(instances, trajectory.visited, strict=True):
                if rng.random() < self.explore:
                    visited[0] = instance.problem.compute.argmin(axis=1)
        return trajectory

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        rewards = super().rewards(trajectory, costs)
        self.costs.extend(float(path[0]) for path in costs if not np.isnan(path[0]))
        rewards[-1] += np.mean(self.costs)  # what is remembered matters
        return rewards

    def memory(self) -> Mapping[str, Tensor]:
        return {"costs": torch.tensor(self.costs, dtype=torch.float64)}

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        self.costs = memory["costs"].tolist() if memory else []

    def meet(self, problem: Problem, placements: NDArray[np.int32], costs: NDArray[np.float64]) -> None:
        self.costs.extend(costs[~np.isnan(costs)].tolist())


def toy(seed: int = 0, **options: Any) -> ToyAgent:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ToyAgent(**options)


@functools.cache
def toy_instance(seed: int, ops: int = 6, devices: int = 3) -> ProblemInstance:
    problem = random_problem(ops, devices, seed)
    return ProblemInstance(problem, SimulatedCost(problem), problem.critical_path)


def draw_toys(rng: np.random.Generator, count: int, progress: float) -> list[ProblemInstance]:
    return [toy_instance(int(seed)) for seed in rng.integers(1000, 1064, size=count)]


HELD_OUT = [toy_instance(seed) for seed in range(12)]
FEW = HELD_OUT[:3]


def stage(updates: int = 12, **options: Any) -> Stage:
    return Stage(draw_toys, updates, **{"problems": 3, "learning_rate": 0.03, "gamma": 1.0, "evaluate_every": 4} | options)


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
