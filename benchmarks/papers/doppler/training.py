"""Trainings of these experiments, and the records that are kept of them."""

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
from placeit.learning.training.valuing import lowest, value

__all__ = ["Watched", "by_cost", "distilling", "learn", "met", "of_policy", "paper_stages", "search", "stages"]

_EPISODES = 16  # episodes of an update of Placeto, and of a batch where nothing is learned
_IMITATION, _WHOLE = 200, 2000  # least updates of imitation; number of valued episodes from which on that bound holds in full
_DISTILLING, _ROWS = 200, 8  # updates of imitation of the best placement met, and episodes of each


@dataclass(eq=False)
class Watched:
    """A problem that a stage of training learns from, and the costs met, episode by episode.

    Attributes:
        instance: the problem.
        each: episodes of an update, for each instance of the problem.
        episodes: episodes that have begun.
        best: the least cost so far.
        placement: placement with that cost.
        curve: number of episodes and least cost, at each improvement.
        first: one placement of each update.
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
        at = lowest(values)
        if at is not None and values[at] < self.best:
            self.best, self.placement = float(values[at]), placements[at].copy()
            self.curve.append((self.episodes, self.best))
        return values


def met(watched: Sequence[Watched]) -> dict[str, NDArray[np.generic]]:
    """Return the results of consecutive stages of a training: ``best``, its ``placement``, ``episodes``, ``curve``.

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
    """Plan a training: the agent's own stages, scaled to ``episodes`` valued episodes.

    Imitation values nothing, so DOPPLER's trainings of 2,000 episodes or more have at least 200 updates of it. Placeto's stages
    are taken from DOPPLER's Table 7: a learning rate from 1e-3 to 1e-6, exploration from 0.5 to 0, an entropy weight of 1e-2;
    if there is imitation, a sixth of the updates imitates the critical path. Differs from the paper: 16 episodes an update.

    Args:
        agent: the agent to train.
        episodes: number of episodes that are valued.
        imitation: whether to include the stages before the first one that learns by cost, such as imitation.
    """
    placeto = isinstance(agent, PlacetoAgent)
    whole = _placeto() if placeto else default_stages(agent, _nothing)
    valued = sum(stage.updates * stage.problems * stage.episodes for stage in whole if stage.kind == "reinforce")
    least = 0 if placeto else round(_IMITATION * min(1.0, episodes / _WHOLE))

    def updates(stage: Stage) -> int:
        return max(1, least if stage.kind == "imitation" else 0, round(stage.updates * episodes / valued))

    return [replace(stage, updates=updates(stage)) for stage in (whole if imitation else by_cost(whole))]


def paper_stages(episodes: int) -> list[Stage]:
    """Plan a training of DOPPLER as in the paper, with ``episodes`` valued episodes.

    A learning rate from 1e-4 to 1e-7, exploration from 0.2 to 0, an entropy weight of 1e-2, gamma 1, an episode an update, the
    mean of earlier episodes as baseline (section 6). The paper does not say how long it imitates: here, a twentieth of that
    number of updates.
    """
    rates = {"problems": 1, "learning_rate": 1e-4, "schedule": "linear", "final_learning_rate": 1e-7}
    exploring = {"explore": 0.2, "final_explore": 0.0}
    return [
        Stage(_nothing, max(1, episodes // 20), "imitation", **rates),
        Stage(_nothing, episodes, entropy=0.01, gamma=1.0, baseline="moving", **rates, **exploring),
    ]


def distilling(agent: Agent) -> list[Stage]:
    """Plan an imitation of the best placement met, which brings DOPPLER's likeliest placement near it; it values nothing."""
    if not isinstance(agent, DopplerAgent) or (agent.place, agent.passing) != ("learned", "episode"):
        return []
    rates = {"learning_rate": 5e-3, "schedule": "linear"}
    return [Stage(_nothing, _DISTILLING, "imitation", problems=1, episodes=_ROWS, teacher="best", **rates)]


def by_cost(plan: Sequence[Stage]) -> Sequence[Stage]:
    """Return the stages from the first one that learns by cost."""
    kinds = [stage.kind for stage in plan]
    return plan[kinds.index("reinforce") :]


@torch.no_grad()
def search(agent: Agent, episodes: int, instance: ProblemInstance, *, seed: int, uniform: bool) -> list[Watched]:
    """Make the moves of a training without learning: episodes of fresh policies, which start from the good placements met.

    Args:
        agent: the agent that makes the moves; its network is not changed.
        episodes: number of episodes to value.
        instance: the problem.
        seed: seed of all random draws.
        uniform: whether each decision is drawn uniformly from the allowed ones, instead of from the policies.
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
    """Train an agent on a problem; return the record of each stage.

    Args:
        agent: the agent; its network is changed.
        plan: the stages.
        instance: the problem; its cost function values the stages whose cost is simulated.
        seed: seed of all random draws.
        measured: cost function of the other stages.
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
    """Return the costs of a trained policy's likeliest placement (``greedy``) and of others drawn from it (``samples``)."""
    agent.network.eval()
    drawn = np.concatenate(agent.rollout([instance] * samples, np.random.default_rng([seed, 1])).visited)
    return {"samples": instance.cost(drawn), "greedy": instance.cost(agent.greedy_placement(instance.problem)[None])[0]}
