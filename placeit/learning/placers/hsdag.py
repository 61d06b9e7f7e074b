"""HSDAG as a placer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeit.core.extras import need
from placeit.core.graph import distinct_rows
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, option

if TYPE_CHECKING:
    from placeit.learning.agent import ProblemInstance
    from placeit.learning.agents.hsdag.agent import HsdagAgent

__all__ = ["Hsdag"]


@dataclass(frozen=True)
class Hsdag:
    """HSDAG (Duan et al. 2024): groups and their devices by a policy trained beforehand, or on the problem itself.

    The best placement met wins. On the problem itself the policy is trained in the agent's default stages; an update takes as
    many evaluations as its episodes have steps. Placements whose costs are not finite are left out.
    """

    weights: str = option("", "checkpoint of a trained policy; empty to train one on the problem itself")
    updates: int = option(100, "training updates, if evaluations suffice", least=0, most=10**9)
    episodes: int = option(4, "episodes per training update, of 20 placements each", least=1, most=1000)
    samples: int = option(4, "episodes to draw, in addition to the most likely one", least=0, most=10**4)

    def __post_init__(self) -> None:
        need("The placer 'hsdag'", "learn", "torch", "torch_geometric")

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best placement by cost; the likeliest placements are valued first, then samples.

        Raises:
            UsageError: an option is out of its range; PyTorch Geometric is not installed; the policy was made for fewer devices
                than the problem has.
            FileError: the checkpoint does not exist, or it holds another policy.
            InfeasibleError: no feasible placement is found.
        """
        from placeit.learning.agent import ProblemInstance
        from placeit.learning.agents.hsdag.agent import HsdagAgent
        from placeit.learning.checkpoint import load_policy

        found = Incumbent(cost, evaluations, deadline)
        agent = load_policy(self.weights, HsdagAgent) if self.weights else self._trained(problem, found, seed)
        found.offer(distinct_rows(agent.greedy_placements(problem))[0])
        rng, instance = np.random.default_rng([seed, 1]), ProblemInstance(problem, cost, 1.0)
        for _ in range(self.samples):
            if found.over:
                break
            found.offer(distinct_rows(agent.rollout([instance], rng).visited[0])[0])
        return found.placement

    def _trained(self, problem: Problem, found: Incumbent, seed: int) -> HsdagAgent:
        from placeit.learning.agent import ProblemInstance
        from placeit.learning.agents.hsdag.agent import HsdagAgent
        from placeit.learning.registry import fresh
        from placeit.learning.training.loop import train
        from placeit.learning.training.stages import scale_updates
        from placeit.learning.training.valuing import finite_or_nan

        agent = fresh(HsdagAgent, seed, devices=problem.devices)
        instance = ProblemInstance(problem, finite_or_nan(found.offer), problem.critical_path or 1.0)
        update_size = self.episodes * agent.steps  # placements

        def draw(rng: np.random.Generator, count: int, progress: float) -> list[ProblemInstance]:  # noqa: ARG001
            return [instance] * count if found.left > update_size and not found.over else []

        if self.updates:
            stages = scale_updates(agent.default_stages(draw), self.updates)
            train(agent, [replace(stage, episodes=self.episodes) for stage in stages], evaluate_on=(), seed=seed)
        agent.network.eval()
        return agent
