"""How policies are trained here, and what is kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from placeit.core.problem import CostFunction
from placeit.learning.agent import Agent, Explorer, ProblemInstance
from placeit.learning.agents.doppler.agent import DopplerAgent
from placeit.learning.agents.placeto.agent import PlacetoAgent
from placeit.learning.training.loop import Stage, train
from placeit.learning.training.stages import MEASURED, default_stages
from placeit.learning.training.valuing import least, value

__all__ = ["Watched", "by_cost", "distilling", "learn", "met", "of_policy", "paper_stages", "search", "stages"]

_EPISODES = 16  # of an update of Placeto, and at once where nothing is learned
_IMITATION, _WHOLE = 200, 2000  # least updates of imitation in trainings of so many episodes or more
_DISTILLING, _ROWS = 200, 8  # updates of imitation of the best placement met, and episodes of each


@dataclass(eq=False)
class Watched:
    """A problem that a stage of training learns from, and what it came to, episode by episode.

    Attributes:
        instance: the problem.
        each: episodes of an update, of the problem.
        episodes: that were begun so far.
        best: the least cost so far.
        placement: that costs it.
        curve: episodes so far and the least cost, wherever that fell.
        first: a placement of each update.
    """

    instance: ProblemInstance
    each: int
    episodes: int = 0
    best: float = np.inf
    placement: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    curve: list[tuple[int, float]] = field(default_factory=list)
    first: list[NDArray[np.int32]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._learned = replace(self.instance, cost=self.cost)

    def draw(self, rng: np.random.Generator, count: int, progress: float) -> Sequence[ProblemInstance]:  # noqa: ARG002
        """Give the problem to learn from; see :data:`placeit.learning.training.stages.Draw`."""
        self.episodes += count * self.each
        return [self._learned] * count

    def cost(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Value placements."""
        values = self.instance.cost(placements)
        self.first.append(placements[0].copy())
        at = least(values)
        if at is not None and values[at] < self.best:
            self.best, self.placement = float(values[at]), placements[at].copy()
            self.curve.append((self.episodes, self.best))
        return values


def met(watched: Sequence[Watched]) -> dict[str, NDArray[np.generic]]:
    """Return what stages of one training came to, one after the other: ``best``, its ``placement``, ``episodes``, ``curve``.

    Episodes of stages that value nothing, such as imitation, do not count. If no placement had a cost, the best is infinite.
    """
    best, placement, before, curve = np.inf, np.empty(0, np.int32), 0, []
    for one in watched:
        if not one.first:
            continue
        curve += [(before + episodes, cost) for episodes, cost in one.curve if cost < best]
        if one.best < best:
            best, placement = one.best, one.placement
        before += one.episodes
    points = np.array(curve, np.float64).reshape(-1, 2)
    return {"best": np.array(best), "placement": placement, "episodes": np.array(before), "curve": points}


def stages(agent: Agent, episodes: int, *, imitation: bool = True) -> list[Stage]:
    """Plan a training: an agent's own stages, in which so many episodes are valued.

    Imitation values nothing, so DOPPLER's trainings of 2,000 episodes or more have at least 200 updates of it. Placeto's stages
    are those of DOPPLER's Table 7: a learning rate from 1e-3 to 1e-6, exploration from 0.5 to 0, an entropy weight of 1e-2; a
    sixth of the updates imitates the critical path, if any does. Differs from the paper: 16 episodes an update.

    Args:
        agent: who is trained.
        episodes: that are valued.
        imitation: whether what comes before the first stage by cost, such as imitation, is among them.
    """
    placeto = isinstance(agent, PlacetoAgent)
    whole = _placeto() if placeto else default_stages(agent, _nothing)
    valued = sum(stage.updates * stage.problems * stage.episodes for stage in whole if stage.kind == "reinforce")
    least = 0 if placeto else round(_IMITATION * min(1.0, episodes / _WHOLE))

    def updates(stage: Stage) -> int:
        return max(1, least if stage.kind == "imitation" else 0, round(stage.updates * episodes / valued))

    return [replace(stage, updates=updates(stage)) for stage in (whole if imitation else by_cost(whole))]


def paper_stages(episodes: int) -> list[Stage]:
    """Plan a training of DOPPLER as the paper does, in which so many episodes are valued.

    A learning rate from 1e-4 to 1e-7, exploration from 0.2 to 0, an entropy weight of 1e-2, gamma 1, an episode an update, the
    mean of earlier episodes as baseline (section 6). The paper does not say how long it imitates: here, for a twentieth as many
    updates.
    """
    rates = {"problems": 1, "learning_rate": 1e-4, "schedule": "linear", "final_learning_rate": 1e-7}
    exploring = {"explore": 0.2, "final_explore": 0.0}
    return [
        Stage(_nothing, max(1, episodes // 20), "imitation", **rates),
        Stage(_nothing, episodes, entropy=0.01, gamma=1.0, baseline="moving", **rates, **exploring),
    ]


def distilling(agent: Agent) -> list[Stage]:
    """Have DOPPLER imitate the best placement met, so that what policies like best is near it; values nothing."""
    if not isinstance(agent, DopplerAgent) or (agent.place, agent.passing) != ("learned", "episode"):
        return []
    rates = {"learning_rate": 5e-3, "schedule": "linear"}
    return [Stage(_nothing, _DISTILLING, "imitation", problems=1, episodes=_ROWS, teacher="best", **rates)]


def by_cost(plan: Sequence[Stage]) -> Sequence[Stage]:
    """Return the stages from the first one on that learns by cost."""
    kinds = [stage.kind for stage in plan]
    return plan[kinds.index("reinforce") :]


@torch.no_grad()
def search(agent: Agent, episodes: int, instance: ProblemInstance, *, seed: int, uniform: bool) -> list[Watched]:
    """Make the moves of a training without learning: episodes of the fresh policies, from all good placements that they meet.

    Args:
        agent: whose moves; its network stays as it is.
        episodes: to value.
        instance: the problem.
        seed: of what is drawn.
        uniform: whether each decision is any allowed one, instead of what the policies draw.
    """
    rng, watched = np.random.default_rng(seed), Watched(instance, 1)
    agent.network.train()
    if isinstance(agent, Explorer):
        agent.explore = float(uniform)
    while watched.episodes < episodes:
        drawn = list(watched.draw(rng, min(_EPISODES, episodes - watched.episodes), 0.0))
        played = agent.rollout(drawn, rng)
        agent.rewards(played, [costs / instance.unit for costs in value(drawn, played.visited)])
    return [watched]


def _nothing(rng: np.random.Generator, count: int, progress: float) -> Sequence[ProblemInstance]:  # noqa: ARG001
    return []


def _placeto() -> list[Stage]:
    rates = {"learning_rate": 1e-3, "schedule": "linear", "final_learning_rate": 1e-6}
    exploring = {"explore": 0.5, "final_explore": 0.0}
    return [
        Stage(_nothing, 50, "imitation", problems=1, episodes=_EPISODES, **rates),
        Stage(_nothing, 250, problems=1, episodes=_EPISODES, entropy=0.01, gamma=1.0, **rates, **exploring),
    ]


def learn(
    agent: Agent, plan: Sequence[Stage], instance: ProblemInstance, *, seed: int, measured: CostFunction | None = None
) -> list[Watched]:
    """Train an agent on a problem; returns what each stage came to.

    Args:
        agent: its network is changed.
        plan: stages.
        instance: the problem; its cost function is that of the stages whose cost is simulated.
        seed: of what is drawn.
        measured: the cost function of the others.
    """
    watched = []
    for stage in plan:
        by = measured if stage.cost == MEASURED and measured is not None else instance.cost
        watched.append(Watched(replace(instance, cost=by), stage.episodes))
    drawn = [replace(stage, draw=one.draw) for stage, one in zip(plan, watched, strict=True)]
    train(agent, drawn, evaluate_on=(), seed=seed, costs={MEASURED: lambda one: one.cost})
    return watched


@torch.no_grad()
def of_policy(agent: DopplerAgent, instance: ProblemInstance, samples: int, seed: int) -> dict[str, NDArray[np.float64]]:
    """Return the costs of what a trained policy likes best (``greedy``) and of placements that are drawn (``samples``)."""
    agent.network.eval()
    drawn = np.concatenate(agent.rollout([instance] * samples, np.random.default_rng([seed, 1])).visited)
    return {"samples": instance.cost(drawn), "greedy": instance.cost(agent.greedy_placement(instance.problem)[None])[0]}
