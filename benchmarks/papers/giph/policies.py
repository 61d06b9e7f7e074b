"""Paths of placements on which policies go, from given start placements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.learning.agent import Agent
from placeit.learning.agents.giph.agent import GiphAgent
from placeit.learning.agents.placeto.agent import PlacetoAgent
from placeit.learning.registry import make_agent
from placeit.placers.feasibility import random_placements
from placeit.placers.random_task_eft import earliest_finish_devices

__all__ = ["SAME_MOVES", "STEPS_PER_OP", "UNTRAINED", "VARIANTS", "fresh", "search"]

STEPS_PER_OP = 2
BATCH = 32

VARIANTS = ("giph", "giph-3", "giph-5", "giph-ne", "graphsage-ne", "giph-ne-pol", "giph-task-eft")
SAME_MOVES = ("same moves, untrained policy", "same moves, uniform")
UNTRAINED = ("random-task-eft", "random")

Path = NDArray[np.int32]
"""``int32[2 V + 1, V]``, the placements before and after each step; the last one is repeated if no op can be moved."""


def search(
    policy: str | Agent, problems: Sequence[Problem], starts: Sequence[NDArray[np.int32]], rng: np.random.Generator
) -> list[Path]:
    """Search for 2 |V| steps. No policy evaluates costs: the caller values the placements on the way.

    Args:
        policy: an agent, or one of :data:`UNTRAINED`: ``random`` draws a new placement at every step; or one of
            :data:`SAME_MOVES`: moves of one op, like GiPH's, by fresh weights or with equal probabilities.
        problems: ``B`` of them.
        starts: a placement of each.
        rng: random generator.
    """
    if isinstance(policy, str) and policy in SAME_MOVES:
        policy = fresh(uniform=policy == SAME_MOVES[1])
    found: dict[int, Path] = {}
    by_size = sorted(range(len(problems)), key=lambda b: len(problems[b]))  # a batch goes on until its largest has ended
    for first in range(0, len(problems), BATCH):
        numbers = by_size[first : first + BATCH]
        part, begin = [problems[b] for b in numbers], [starts[b] for b in numbers]
        if isinstance(policy, GiphAgent):
            paths = _relocate(policy, part, begin, rng)
        elif isinstance(policy, PlacetoAgent):
            paths = policy.search(part, begin, rng, steps_per_op=STEPS_PER_OP)
        else:
            one = _random if policy == "random" else _earliest_finish
            paths = [one(problem, start, rng) for problem, start in zip(part, begin, strict=True)]
        found.update(zip(numbers, paths, strict=True))
    return [found[b] for b in range(len(problems))]


@torch.no_grad()
def _relocate(
    agent: GiphAgent, problems: Sequence[Problem], starts: Sequence[NDArray[np.int32]], rng: np.random.Generator
) -> list[Path]:
    searches = agent.search(problems, starts)
    paths = [np.repeat(start[None], STEPS_PER_OP * len(p) + 1, axis=0) for p, start in zip(problems, starts, strict=True)]
    for step in range(1, max(map(len, paths))):
        scores = searches.scores().numpy()
        for b, path in enumerate(paths):
            if step >= len(path):
                continue
            searches.step(b, scores, rng)
            path[step] = searches.nets.placements[b]
    return paths


def fresh(*, uniform: bool) -> GiphAgent:
    """Return GiPH with untrained weights; with ``uniform`` it scores all moves equally."""
    agent = make_agent("giph", seed=0)
    assert isinstance(agent, GiphAgent)
    if uniform:
        for weights in list(agent.network.parameters())[-2:]:  # of the layer that scores
            torch.nn.init.zeros_(weights)
    return agent


def _random(problem: Problem, start: NDArray[np.int32], rng: np.random.Generator) -> Path:
    return np.concatenate([start[None], random_placements(problem, STEPS_PER_OP * len(problem), rng)])


def _earliest_finish(problem: Problem, start: NDArray[np.int32], rng: np.random.Generator) -> Path:
    path = np.repeat(start[None], STEPS_PER_OP * len(problem) + 1, axis=0)
    for step in range(1, len(path)):
        op = rng.integers(len(problem), size=1)
        path[step] = path[step - 1]
        path[step, op] = earliest_finish_devices(problem, path[step], op)
    return path
