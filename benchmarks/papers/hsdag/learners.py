"""Agents that learn to place a model, and their stages: first in simulation, then for a time by measured runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from placeit.core.problem import Problem
from placeit.learning.agent import Agent
from placeit.learning.agents.hdp import HdpAgent
from placeit.learning.placers.hdp import Hdp
from placeit.learning.registry import make_agent
from placeit.learning.training.stages import MEASURED, Draw, Stage, default_stages, scale_updates

__all__ = ["ABLATIONS", "LEARNERS", "SAME_MOVES", "SCRATCH"]

SCRATCH = "HSDAG, from scratch"
ABLATIONS: Mapping[str, str] = {
    "without output shape": "output_shape",
    "without node ID": "node_id",
    "without structure": "structure",
}
"""Rows of Table 3, and the options of the agent that they switch off."""

SAME_MOVES = ("same moves, untrained policy", "same moves, uniform")
"""Rows for HSDAG's episodes without learning: with fresh weights, and with a random device for each group."""

Learner: TypeAlias = Callable[[Problem, Draw, int, int, float], tuple[Agent, list[Stage]]]
"""``learner(problem, draw, seed, updates, seconds)``: an agent and its stages."""

_ENDLESS = 10**6  # updates; the clock ends the stage earlier
_EVERY = 5  # updates between evaluations, which take measurements, too


def _hsdag(*, pretrained: bool = True, **options: Any) -> Learner:
    def make(problem: Problem, draw: Draw, seed: int, updates: int, seconds: float) -> tuple[Agent, list[Stage]]:
        agent = make_agent("hsdag", seed=seed, devices=problem.devices, **options)
        stages = default_stages(agent, draw)
        first = scale_updates(stages, updates) if pretrained else []
        return agent, [*first, _measured(replace(stages[-1], episodes=1), seconds)]

    return make


def _unlearned(*, uniform: bool) -> Learner:
    def make(problem: Problem, draw: Draw, seed: int, updates: int, seconds: float) -> tuple[Agent, list[Stage]]:
        agent, stages = _hsdag()(problem, draw, seed, updates, seconds)
        if uniform:
            for weights in agent.network.device[-1].parameters():
                torch.nn.init.zeros_(weights)
        return agent, [replace(stage, learning_rate=0.0, final_learning_rate=0.0) for stage in stages]

    return make


def _placeto(problem: Problem, draw: Draw, seed: int, updates: int, seconds: float) -> tuple[Agent, list[Stage]]:
    agent = make_agent("placeto", seed=seed, devices=problem.devices)
    stages = default_stages(agent, draw)
    return agent, [*scale_updates(stages, updates), _measured(replace(stages[-1], problems=1, episodes=2), seconds)]


def _hdp(problem: Problem, draw: Draw, seed: int, updates: int, seconds: float) -> tuple[Agent, list[Stage]]:
    stage = Stage(draw, updates, problems=1, episodes=Hdp.samples, learning_rate=Hdp.learning_rate, normalize=False)
    # an update has four placements, where HSDAG's has its episodes
    return HdpAgent.for_problem(problem, Hdp.hidden, seed), [replace(stage, updates=10 * updates), _measured(stage, seconds)]


def _measured(stage: Stage, seconds: float) -> Stage:
    return replace(
        stage,
        updates=_ENDLESS,
        cost=MEASURED,
        seconds=seconds,
        schedule="constant",
        final_entropy=None,
        evaluate_every=_EVERY,
    )


LEARNERS: Mapping[str, Learner] = {
    "Placeto": _placeto,
    "RNN-based": _hdp,
    "HSDAG": _hsdag(),
    SCRATCH: _hsdag(pretrained=False),
    SAME_MOVES[0]: _unlearned(uniform=False),
    SAME_MOVES[1]: _unlearned(uniform=True),
    **{name: _hsdag(**{option: False}) for name, option in ABLATIONS.items()},
}
