"""DOPPLER as a placer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeit.core.extras import need
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, option

if TYPE_CHECKING:
    from placeit.learning.agent import ProblemInstance
    from placeit.learning.agents.doppler.agent import DopplerAgent

__all__ = ["Doppler"]


@dataclass(frozen=True)
class Doppler:
    """DOPPLER (Yao et al. 2025): two policies trained beforehand, or on the problem itself; the best placement met wins.

    On the problem itself the policies first imitate a list scheduler, and then learn from costs, in the paper's 4,000 episodes.

    Differs from the paper: an update has 16 episodes, whose mean is their baseline; most episodes decide again about a part of
    a good placement; decisions are drawn from the policies, which explore by their entropy alone; the learning rate falls from
    0.003 to zero. Costs that are not finite are an error.
    """

    weights: str = option("", "checkpoint of trained policies; empty to train them on the problem itself")
    teacher: str = option("critical-path", "teacher to imitate first: critical-path, heft")
    imitation: int = option(30, "updates of imitation", least=0, most=10**9)
    updates: int = option(250, "updates by costs, if evaluations suffice", least=0, most=10**9)
    episodes: int = option(16, "episodes per update", least=1, most=1000)
    learning_rate: float = option(3e-3, "learning rate", least=0, most=1000)
    samples: int = option(64, "placements to draw, in addition to the most likely one", least=0, most=10**6)

    def __post_init__(self) -> None:
        need("The placer 'doppler'", "learn", "torch")

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best placement by cost; the likeliest placement is valued first, then samples.

        Raises:
            UsageError: an option is out of its range.
            FileError: the checkpoint does not exist, or it holds another policy.
            InfeasibleError: no feasible placement is found.
            TrainingError: a cost is not finite.
        """
        from placeit.learning.agents.doppler.agent import DopplerAgent
        from placeit.learning.checkpoint import load_policy

        found = Incumbent(cost, evaluations, deadline)
        agent = load_policy(self.weights, DopplerAgent) if self.weights else self._trained(problem, found, seed)
        agent.network.eval()
        found.offer(agent.greedy_placement(problem)[None])
        left = int(min(self.samples, found.left))
        if left > 0 and not found.over:
            drawn = agent.rollout([_instance(problem, cost)] * left, np.random.default_rng([seed, 1])).visited
            found.offer(np.concatenate(drawn))
        return found.placement

    def _trained(self, problem: Problem, found: Incumbent, seed: int) -> DopplerAgent:
        from placeit.learning.agents.doppler.agent import DopplerAgent
        from placeit.learning.registry import fresh
        from placeit.learning.training.loop import train
        from placeit.learning.training.stages import Stage

        agent = fresh(DopplerAgent, seed)
        instance = _instance(problem, found.offer)

        def draw(rng: np.random.Generator, count: int, progress: float) -> list[ProblemInstance]:  # noqa: ARG001
            return [instance] * count if found.left > self.episodes and not found.over else []

        kinds = {"imitation": self.imitation, "reinforce": self.updates}
        stages = [
            Stage(
                draw,
                updates=updates,
                kind=kind,
                problems=1,
                episodes=self.episodes,
                learning_rate=self.learning_rate,
                schedule="linear",
                gamma=1.0,
                entropy=0.01,
                final_entropy=0.0,
                teacher=self.teacher if kind == "imitation" else None,
            )
            for kind, updates in kinds.items()
            if updates
        ]
        if stages:
            train(agent, stages, evaluate_on=(), seed=seed)
        return agent


def _instance(problem: Problem, cost: CostFunction) -> ProblemInstance:
    from placeit.learning.agent import ProblemInstance

    return ProblemInstance(problem, cost, problem.critical_path or 1.0)
