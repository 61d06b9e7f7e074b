"""HDP as a placer."""

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

__all__ = ["Hdp"]


@dataclass(frozen=True)
class Hdp:
    """HDP (Mirhoseini et al. 2018): a sequence-to-sequence policy, trained from scratch on the problem itself.

    As in GiPH, section 5 and Appendix B.7, an update has 4 samples, and training ends when the cost no longer improves.

    Differs from the papers: the learning rate is 0.003, not 0.01 as in GiPH, section 5, for all policies; the mean of an update
    is the baseline of its samples; training ends after 100 updates without a better placement, which the papers leave open, or
    after 1000 updates; samples whose costs are not finite are left out.
    """

    samples: int = option(4, "placements drawn per update", least=1, most=1000)
    updates: int = option(1000, "most updates, if evaluations suffice", least=1, most=10**9)
    patience: int = option(100, "updates without a better placement after which training ends", least=1, most=10**9)
    hidden: int = option(64, "width of the network", least=2, most=4096)
    learning_rate: float = option(3e-3, "learning rate", least=0, most=1000)

    def __post_init__(self) -> None:
        need("The placer 'hdp'", "learn", "torch")

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best placement by cost; a sample of the untrained policy if none may be evaluated.

        Raises:
            UsageError: an option is out of its range.
            InfeasibleError: no feasible placement is found.
        """
        from placeit.learning.agent import ProblemInstance
        from placeit.learning.agents.hdp import HdpAgent
        from placeit.learning.training.loop import train
        from placeit.learning.training.stages import Stage
        from placeit.learning.training.valuing import finite_or_nan

        found = Incumbent(cost, evaluations, deadline)
        agent = HdpAgent.for_problem(problem, self.hidden, seed)
        instance = ProblemInstance(problem, finite_or_nan(found.offer), problem.critical_path or 1.0)
        best, stale = np.inf, 0

        def draw(rng: np.random.Generator, count: int, progress: float) -> list[ProblemInstance]:  # noqa: ARG001
            nonlocal best, stale
            stale = 0 if found.cost < best else stale + 1
            best = found.cost
            done = found.left < self.samples or stale >= self.patience or found.over
            return [] if done else [instance] * count

        stage = Stage(
            draw,
            updates=self.updates,
            problems=1,
            episodes=self.samples,
            learning_rate=self.learning_rate,
            normalize=False,  # normalising over few samples would amplify small differences
        )
        train(agent, [stage], evaluate_on=(), seed=seed)
        count = int(max(1, min(found.left, self.samples)))
        found.offer(np.concatenate(agent.rollout([instance] * count, np.random.default_rng([seed, 1])).visited))
        return found.placement
