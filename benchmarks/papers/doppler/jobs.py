"""Jobs in simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from benchmarks.papers import _lab
from benchmarks.papers._lab import Job, Outcome
from benchmarks.papers.doppler.graphs import Case
from benchmarks.papers.doppler.sizes import Sizes
from benchmarks.papers.doppler.training import distilling, learn, met, of_policy, paper_stages, search, stages
from placeit.core import clock
from placeit.core.errors import InfeasibleError
from placeit.learning.agent_notation import parse_agent
from placeit.learning.agents.doppler.agent import DopplerAgent
from placeit.learning.checkpoint import load_agent, save_agent
from placeit.placers import parse_placer

__all__ = ["Placed", "Setup", "Training", "same_moves"]


class Setup(_lab.Setup[Sizes]):
    """Common settings of all jobs."""


@dataclass(frozen=True)
class Training(Job):
    """Trains a policy on a case, in simulation.

    The outcome: the cost of the ``best`` placement met, the ``placement``, the number of valued ``episodes``, the ``curve`` of
    the best so far over them, and ``seconds``; for DOPPLER also the costs of ``samples`` drawn from the trained policies, and
    of the policies' likeliest placement (``greedy``).

    Attributes:
        case: the graph on its devices.
        number: number of the training, which gives its seed.
        episodes: number of episodes that are valued.
        agent: the agent with its options, as on the command line.
        imitation: whether it imitates a teacher first.
        begin: training whose weights it begins with; None for fresh weights.
        by_paper: whether it has the paper's settings, and no other stage.
        moves: policy that makes the moves: ``learned``, ``untrained`` (which does not learn), or ``uniform`` (any move).
    """

    case: Case
    number: int
    episodes: int
    agent: str = "doppler"
    imitation: bool = True
    begin: Training | None = None
    by_paper: bool = False
    moves: Literal["learned", "untrained", "uniform"] = "learned"

    @property
    def name(self) -> str:
        words = [self.case.name, self.agent.replace(":", "-").replace("=", "-").replace(",", "-")]
        words += [
            f"{self.episodes}",
            f"seed{self.number}",
            *([] if self.imitation else ["rl"]),
            *(["paper"] if self.by_paper else []),
            *([] if self.moves == "learned" else [self.moves]),
        ]
        return "-".join(words) + ("" if self.begin is None else f"-after-{self.begin.name}")

    @property
    def needs(self) -> Sequence[Job]:
        return () if self.begin is None else (self.begin,)

    def run(self, setup: Setup) -> Outcome:
        """Train and value; the policy is kept beside the outcome."""
        seed, instance = setup.seed + self.number, self.case.instance()
        began = clock.now()
        agent = parse_agent(self.agent, seed=seed)
        if self.begin is not None:
            agent = load_agent(setup.folder / f"{self.begin.name}.safetensors")
        watched = []
        if self.moves != "learned":
            watched = search(agent, self.episodes, instance, seed=seed, uniform=self.moves == "uniform")
        elif self.episodes:
            own = [*stages(agent, self.episodes, imitation=self.imitation), *distilling(agent)]
            plan = paper_stages(self.episodes) if self.by_paper else own
            watched = learn(agent, plan, instance, seed=seed)
        spent = clock.now() - began
        save_agent(agent, setup.folder / f"{self.name}.safetensors")
        kept = met(watched) if watched else {}
        drawn = of_policy(agent, instance, setup.sizes.samples, seed) if isinstance(agent, DopplerAgent) else {}
        return {**kept, **drawn, "seconds": np.array(spent)}


def same_moves(training: Training) -> dict[str, Training]:
    """Return, by name of row, trainings that make the same moves without learning, to show the effect of learning."""
    return {
        "same moves, untrained policy": replace(training, moves="untrained"),
        "same moves, uniform": replace(training, moves="uniform"),
    }


@dataclass(frozen=True)
class Placed(Job):
    """Asks a placer; the outcome is the ``cost`` of its placement, infinite if it does not fit, and the ``seconds`` it took.

    Attributes:
        case: the graph on its devices.
        placer: the placer with its options, as on the command line.
        limited: whether it gets ``Sizes.search_s`` seconds, and no more.
    """

    case: Case
    placer: str
    limited: bool = False

    @property
    def name(self) -> str:
        words = f"{self.case.name}-by-{self.placer}{'-limited' if self.limited else ''}"
        return words.replace(":", "-").replace("=", "-").replace(",", "-")

    def run(self, setup: Setup) -> Outcome:
        problem, cost, placer = self.case.problem, self.case.cost(), parse_placer(self.placer)
        if self.limited:  # so that nothing is compiled in the timed call
            placer.place(problem, cost, seed=setup.seed, evaluations=100)
        began = clock.now()
        deadline = began + setup.sizes.search_s if self.limited else None
        try:
            placement = placer.place(problem, cost, seed=setup.seed, evaluations=None, deadline=deadline)
        except InfeasibleError:
            return {"cost": np.array(np.inf), "seconds": np.array(clock.now() - began)}
        return {"cost": np.array(cost(placement[None])[0]), "seconds": np.array(clock.now() - began)}
