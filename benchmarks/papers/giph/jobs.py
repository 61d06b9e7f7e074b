"""Jobs that do not depend on each other, apart from the trainings that they need."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers import _lab
from benchmarks.papers._lab import Job, Outcome
from benchmarks.papers.giph.policies import STEPS_PER_OP, search
from benchmarks.papers.giph.problems import Dataset, dataset, instance
from benchmarks.papers.giph.sizes import Sizes
from placeit.core.problem import Problem
from placeit.learning import checkpoint
from placeit.learning.agent import Agent, ProblemInstance
from placeit.learning.agents.giph.agent import GiphAgent
from placeit.learning.checkpoint import load_agent, save_agent
from placeit.learning.placers.hdp import Hdp
from placeit.learning.registry import make_agent
from placeit.learning.training.loop import Stage, train
from placeit.learning.workloads.datasets import DatasetKind
from placeit.placers.feasibility import random_placements

__all__ = [
    "NO_POTENTIAL",
    "POINTS",
    "SHIPPED",
    "Evaluation",
    "HdpCase",
    "Job",
    "Outcome",
    "Setup",
    "Training",
    "hdp_slr",
    "load_policy",
    "starts",
]

POINTS = 41
"""Points of a curve of the best so far, from 0 to 2 |V| steps."""

SHIPPED = "giph, shipped"
NO_POTENTIAL = ", no potential"
"""Suffix of a variant whose node features lack the start-time potential and everything else of the schedule."""


class Setup(_lab.Setup[Sizes]):
    """Common settings of all jobs."""

    def dataset(self, kind: DatasetKind, number: int) -> Dataset:
        """Return the problems on which training ``number`` is trained and tested."""
        return dataset(kind, self.seed + number, self.sizes)


@dataclass(frozen=True)
class Training(Job):
    """Trains a policy; the outcome is the history of its evaluations.

    ``giph paper`` has the paper's features and width and learns by the paper's REINFORCE: one problem an update, the mean of
    the rewards before as baseline (Appendix B.7), learning rate 0.01 (section 5), 200 episodes. These differences from the
    paper remain: its features are squashed and relative (``NODE_FEATURES`` of :mod:`placeit.learning.agents.giph.gpnet`),
    rewards are divided by the problem's critical path and the gradient by the number of decisions, the weights of the best
    evaluation on held-out problems are used, and searches draw at temperature 0.6, also in evaluations.
    """

    policy: str  # a variant, optionally followed by NO_POTENTIAL
    data: DatasetKind
    number: int = 0
    kind: str = "imitation"
    objective: str = "latency"

    @property
    def name(self) -> str:
        words = ["train", self.policy, self.data, str(self.number), self.kind, self.objective]
        return "-".join(words).replace(" ", "-").replace(",", "")

    @property
    def big(self) -> bool:
        return self.policy in ("giph-3", "giph-5")

    def run(self, setup: Setup) -> Outcome:
        data, sizes = setup.dataset(self.data, self.number), setup.sizes
        agent, stage = self._plan(setup, data)
        began = time.perf_counter()
        held_out = [instance(problem, self.objective) for problem in data.held_out]
        done = train(agent, [stage], evaluate_on=held_out, seed=setup.seed + self.number)
        save_agent(agent, setup.folder / f"{self.name}.safetensors", sizes=asdict(sizes), **done.about)
        records = [record for record in done.history if record.evaluation is not None]
        return {
            "episodes": np.array([record.update * stage.problems * stage.episodes for record in records]),
            "seconds": np.array([record.seconds for record in records]),
            "evaluation": np.array([record.evaluation for record in records]),
            "total_s": np.array(time.perf_counter() - began),
        }

    def _plan(self, setup: Setup, data: Dataset) -> tuple[Agent, Stage]:
        sizes, seed = setup.sizes, setup.seed + self.number
        cached = [instance(problem, self.objective) for problem in data.train]

        def draw(rng: np.random.Generator, count: int, progress: float) -> list[ProblemInstance]:  # noqa: ARG001
            return [cached[i] for i in rng.integers(len(cached), size=count).tolist()]

        if self.policy == "placeto":
            updates = sizes.placeto_updates
            stage = Stage(draw, updates, problems=sizes.problems, learning_rate=1e-2, schedule="linear")
            agent = make_agent("placeto", seed=seed, devices=data.devices)
        elif self.policy == "giph paper":
            updates = sizes.paper_episodes
            stage = Stage(
                draw,
                updates,
                problems=1,
                learning_rate=0.01,
                clip=None,
                discount_steps=True,
                baseline="episode-mean",
                normalize=False,
            )
            agent = make_agent("giph", seed=seed, features="paper", dim=5)
        else:
            updates = sizes.updates
            rate = 3e-3 if self.kind == "reinforce" else 8e-3
            stage = Stage(
                draw,
                updates,
                self.kind,
                problems=sizes.problems,
                learning_rate=rate,
                schedule="linear",
                final_learning_rate=rate / 20,
            )
            variant, _, without = self.policy.partition(", ")
            agent = make_agent("giph", seed=seed, variant=variant, **({"features": "costs"} if without else {}))
        return agent, replace(stage, evaluate_every=-(-updates // sizes.evaluations))


Policy: TypeAlias = Training | str
"""A trained policy, one of ``UNTRAINED`` or ``SAME_MOVES`` of :mod:`.policies`, or :data:`SHIPPED`."""


def load_policy(policy: Policy, setup: Setup) -> Agent | str:
    """Return a policy in the form that searches take."""
    if isinstance(policy, Training):
        return load_agent(setup.folder / f"{policy.name}.safetensors")
    return checkpoint.load_policy("", GiphAgent) if policy == SHIPPED else policy


def starts(problems: Sequence[Problem], seed: int) -> list[NDArray[np.int32]]:
    """Return a random placement of each problem, the same for every policy."""
    return [random_placements(problem, 1, np.random.default_rng([seed, i]))[0] for i, problem in enumerate(problems)]


@dataclass(frozen=True)
class Evaluation(Job):
    """Searches test problems for 2 |V| steps, all policies from the same random placements.

    If there is noise, the best so far is chosen by noisy values; the values in the outcome are free of noise.

    Attributes:
        objective: objective by which the best placement is chosen and valued, whatever the policy was trained for.
    """

    policy: Policy
    data: DatasetKind
    number: int = 0
    objective: str = "latency"
    noise: float = 0.0

    @property
    def name(self) -> str:
        policy = self.policy.name if isinstance(self.policy, Training) else self.policy
        words = ["test", policy, "on", self.data, str(self.number), self.objective, *(["noisy"] if self.noise else [])]
        return "-".join(words).replace(" ", "-").replace(",", "")

    @property
    def needs(self) -> Sequence[Job]:
        return [self.policy] if isinstance(self.policy, Training) else []

    def run(self, setup: Setup) -> Outcome:
        """Return ``curve`` (``float64[N, POINTS]``), and ``relocations``: how often each op was moved, of the ops that were."""
        problems = setup.dataset(self.data, self.number).test
        rng = np.random.default_rng([setup.seed, self.number, 2])
        paths = search(load_policy(self.policy, setup), problems, starts(problems, setup.seed), rng)
        curves, counts = [], []
        for i, (problem, path) in enumerate(zip(problems, paths, strict=True)):
            clean = instance(problem, self.objective)
            values = clean.cost(path) / clean.unit
            noisy = instance(problem, self.objective, self.noise, seed=setup.seed + i).cost(path) if self.noise else values
            better = np.concatenate([[True], noisy[1:] < np.minimum.accumulate(noisy)[:-1]])
            best = np.maximum.accumulate(np.where(better, np.arange(len(path)), 0))
            at = np.rint(np.linspace(0, STEPS_PER_OP * len(problem), POINTS)).astype(int)
            curves.append(values[best[at]])
            counts.append((path[1:] != path[:-1]).sum(axis=0))
        moved = np.concatenate(counts)
        return {"curve": np.array(curves), "relocations": moved[moved > 0]}


@dataclass(frozen=True)
class HdpCase(Job):
    """Trains HDP on one test problem; the outcome is the ``slr`` of the best placement that it met."""

    data: DatasetKind
    case: int
    learning_rate: float = Hdp.learning_rate

    @property
    def name(self) -> str:
        return f"hdp-{self.data}-{self.case}-{self.learning_rate:g}"

    def run(self, setup: Setup) -> Outcome:
        problem = setup.dataset(self.data, 0).test[self.case]
        return {"slr": np.array(hdp_slr(problem, setup, self.learning_rate))}


def hdp_slr(problem: Problem, setup: Setup, learning_rate: float = Hdp.learning_rate) -> float:
    """Train HDP on a problem, and return the SLR of the best placement that it met."""
    one = instance(problem)
    placer = Hdp(updates=setup.sizes.hdp_updates, learning_rate=learning_rate)
    placement = placer.place(problem, one.cost, seed=setup.seed, evaluations=None)
    return float(one.cost(placement[None])[0]) / one.unit
