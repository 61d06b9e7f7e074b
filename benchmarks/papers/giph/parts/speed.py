"""Time per placement sample (Table 7), by size as well (Fig. 17): 40 tasks, 20 devices, one core, one problem at a time.

A sample is a step of a search. In search its time consists of building graph and features, of the policy, and of valuing the
new placement. In training it is the time of whole updates divided by their steps: by REINFORCE, and for GiPH also by imitation,
which values all actions of some steps. Figures are medians over problems, three times each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from benchmarks._harness import Report
from benchmarks.papers._figures import Figures
from benchmarks.papers._lab import Lab
from benchmarks.papers.giph.jobs import Job, Outcome, Setup
from benchmarks.papers.giph.policies import UNTRAINED, VARIANTS, search
from benchmarks.papers.giph.problems import instance
from placeit.core.problem import Problem
from placeit.learning.agent import Agent, ProblemInstance
from placeit.learning.registry import make_agent
from placeit.learning.training.loop import Stage, train
from placeit.learning.workloads.device_networks import DeviceNetworkParameters, problem_of, random_device_network
from placeit.learning.workloads.task_graphs import TaskGraphParameters, random_task_graph
from placeit.placers.feasibility import random_placements

__all__ = ["Timing", "jobs", "tell"]

DEVICES = 20
_REPEATS = 3
_BY_SIZE = ("giph", "giph-3", "giph-5", "giph-ne")
_LEARNED = (*VARIANTS, "giph paper", "placeto")


@dataclass(frozen=True)
class Timing(Job):
    """Measures a policy: milliseconds per sample in ``search``, ``reinforce`` and ``imitation``, NaN for a missing one."""

    policy: str
    tasks: int
    alone: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"time-{self.policy}-{self.tasks}".replace(" ", "-")

    def run(self, setup: Setup) -> Outcome:
        instances = [instance(problem) for problem in _problems(setup, self.tasks)]
        policy = self._policy(setup.seed)
        rng = np.random.default_rng(setup.seed)
        turns = [instances[0], *instances * _REPEATS]  # the first one compiles and is not counted
        times = {"search": np.median([_search_ms(policy, one, rng) for one in turns][1:])}
        for kind in ("reinforce", "imitation"):
            if not isinstance(policy, str) and not (kind == "imitation" and self.policy == "placeto"):
                times[kind] = np.median([_training_ms(policy, one, kind, setup.seed) for one in turns][1:])
        return {kind: np.array(times.get(kind, np.nan)) for kind in ("search", "reinforce", "imitation")}

    def _policy(self, seed: int) -> Agent | str:
        if self.policy in UNTRAINED:
            return self.policy
        if self.policy == "placeto":
            return make_agent("placeto", seed=seed, devices=DEVICES)
        if self.policy == "giph paper":
            return make_agent("giph", seed=seed, features="paper", dim=5)
        return make_agent("giph", seed=seed, variant=self.policy)


def _problems(setup: Setup, tasks: int) -> list[Problem]:
    rng = np.random.default_rng([setup.seed, 9])
    found: list[Problem] = []
    while len(found) < setup.sizes.timed:
        graph = random_task_graph(TaskGraphParameters(tasks=tasks), rng, max_tasks=tasks)
        if len(graph) == tasks:
            found.append(problem_of(graph, random_device_network(DeviceNetworkParameters(devices=DEVICES), rng)))
    return found


def _search_ms(policy: Agent | str, one: ProblemInstance, rng: np.random.Generator) -> float:
    began = time.perf_counter()
    if isinstance(policy, str):
        start = random_placements(one.problem, 1, rng)[0]
        path = search(policy, [one.problem], [start], rng)[0]
        one.cost(path)
        steps = len(path) - 1
    else:
        trajectory = policy.rollout([one], rng)
        one.cost(trajectory.visited[0])
        steps = int(trajectory.valid.sum())
    return 1e3 * (time.perf_counter() - began) / steps


def _training_ms(agent: Agent, one: ProblemInstance, kind: str, seed: int) -> float:
    stage = Stage(lambda rng, count, progress: [one] * count, 1, kind, problems=1)  # noqa: ARG005
    began = time.perf_counter()
    train(agent, [stage], evaluate_on=(), seed=seed)
    seconds = time.perf_counter() - began
    return 1e3 * seconds / int(agent.rollout([one], np.random.default_rng(seed)).valid.sum())


def _timings(setup: Setup) -> list[Timing]:
    sizes = setup.sizes
    some = [Timing(name, sizes.timed_tasks) for name in (*_LEARNED, *UNTRAINED)]
    return some + [Timing(name, tasks) for name in _BY_SIZE for tasks in sizes.timed_sizes if tasks != sizes.timed_tasks]


def jobs(setup: Setup) -> Sequence[Job]:
    return _timings(setup)


def tell(lab: Lab, report: Report, figures: Figures) -> None:
    names, tasks = [*_LEARNED, *UNTRAINED], lab.setup.sizes.timed_tasks
    times = {timing: {kind: float(value) for kind, value in lab[timing].items()} for timing in _timings(lab.setup)}
    for timing, of in times.items():
        report.row(
            part="speed",
            policy=timing.policy,
            tasks=timing.tasks,
            search_ms=of["search"],
            training_by_reinforce_ms=of["reinforce"],
            training_by_imitation_ms=of["imitation"],
        )
    giph = times[Timing("giph", tasks)]
    report.claim("GiPH, a placement sample in search", giph["search"], "ms", at_most=3)
    slower = max(giph["reinforce"], giph["imitation"])
    report.claim("GiPH, a placement sample in training, by the slower of two ways", slower, "ms", at_most=10)
    series = {kind: [times[Timing(name, tasks)][kind] for name in names] for kind in ("search", "reinforce", "imitation")}
    where = f"{tasks} tasks, {DEVICES} devices, one core"
    figures.bars("speed", "speed", where, ("", "ms per placement sample"), names, series)
