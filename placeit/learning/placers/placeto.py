"""Placeto as a placer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import UsageError
from placeit.core.extras import need
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, option
from placeit.placers.feasibility import random_placements

if TYPE_CHECKING:
    from placeit.learning.agent import ProblemInstance
    from placeit.learning.agents.placeto.agent import PlacetoAgent

__all__ = ["Placeto"]


@dataclass(frozen=True)
class Placeto:
    """Placeto (Addanki et al. 2019): a search by a policy trained beforehand, or on the problem itself.

    As in GiPH, section 5, the policy is trained in 200 episodes. Then it searches from a random placement for 2 |V| steps,
    which are two episodes.

    Differs from the papers: placements that were visited during training on the problem count, too. Steps whose costs are not
    finite are left out.
    """

    weights: str = option("", "checkpoint of a trained policy; empty to train one on the problem itself")
    updates: int = option(50, "training updates, if evaluations suffice", least=1, most=10**9)
    episodes: int = option(4, "episodes per training update, of one step per op", least=1, most=1000)
    learning_rate: float = option(1e-2, "learning rate of the training", least=0, most=1000)
    steps_per_op: float = option(2.0, "steps of the search, per op", least=0, most=1000)

    def __post_init__(self) -> None:
        need("The placer 'placeto'", "learn", "torch")

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best placement by cost; the last placements of the search are valued first.

        Raises:
            UsageError: an option is out of its range; the policy was made for fewer devices than the problem has.
            FileError: the checkpoint does not exist, or it holds another policy.
            InfeasibleError: no feasible placement is found.
        """
        if not 0 < self.steps_per_op < np.inf:
            raise UsageError(f"'steps_per_op' of the placer 'placeto' is {self.steps_per_op}; it must be positive and finite.")
        from placeit.learning.agents.placeto.agent import PlacetoAgent, changes
        from placeit.learning.checkpoint import load_policy

        found = Incumbent(cost, evaluations, deadline)
        agent = load_policy(self.weights, PlacetoAgent) if self.weights else self._trained(problem, found, seed)
        rng = np.random.default_rng([seed, 1])  # training draws from the seed itself
        start = random_placements(problem, 1, rng)
        visited = agent.search([problem], [start[0]], rng, steps_per_op=self.steps_per_op)[0]
        found.offer(visited[changes(visited)][::-1])  # last first: the policy shaped the last ones most
        return found.placement

    def _trained(self, problem: Problem, found: Incumbent, seed: int) -> PlacetoAgent:
        from placeit.learning.agent import ProblemInstance
        from placeit.learning.agents.placeto.agent import PlacetoAgent
        from placeit.learning.registry import fresh
        from placeit.learning.training.loop import train
        from placeit.learning.training.stages import Stage
        from placeit.learning.training.valuing import finite_or_nan

        agent = fresh(PlacetoAgent, seed, devices=problem.devices)
        instance = ProblemInstance(problem, finite_or_nan(found.offer), problem.critical_path or 1.0)
        update_size = self.episodes * (len(problem) + 1)  # placements
        search_size = 1 + round(self.steps_per_op * len(problem))

        def draw(rng: np.random.Generator, count: int, progress: float) -> list[ProblemInstance]:  # noqa: ARG001
            return [instance] * count if found.left >= update_size + search_size and not found.over else []

        stage = Stage(draw, updates=self.updates, problems=1, episodes=self.episodes, learning_rate=self.learning_rate)
        train(agent, [stage], evaluate_on=(), seed=seed)
        return agent
