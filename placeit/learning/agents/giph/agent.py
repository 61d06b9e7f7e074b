"""GiPH (Hu et al. 2023): a policy that improves a placement by moving one op at a time, for any graph and devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.core.registry import check_size
from placeit.learning.agent import Agent, ProblemInstance, Trajectory
from placeit.learning.agents.giph.features import FEATURES
from placeit.learning.agents.giph.gpnet import GpNets
from placeit.learning.agents.giph.networks import Encoder, Scorer
from placeit.learning.agents.giph.search import TEMPERATURE, RelocationSearch
from placeit.learning.agents.savings import savings
from placeit.learning.training.stages import Draw, Stage
from placeit.placers.feasibility import random_placements

__all__ = ["GiphAgent", "Variant"]

Variant = Literal["giph", "giph-3", "giph-5", "giph-ne", "graphsage-ne", "giph-ne-pol", "giph-task-eft"]
"""Variants by the paper's names (Appendix B.6)."""

_ENCODERS: dict[str, tuple[Encoder, int]] = {
    "giph": ("levels", 0),
    "giph-3": ("steps", 3),
    "giph-5": ("steps", 5),
    "giph-ne": ("no-edges", 0),
    "graphsage-ne": ("sage", 0),
    "giph-ne-pol": ("none", 0),
    "giph-task-eft": ("levels", 0),
}
_MAX_STATES = 24  # steps of an episode at which every action is valued
_SHARPNESS = 15.0  # factor on normalised gains in the softmax that imitation learns
_MIN_GAIN = 0.002  # in units; gains are divided by the best gain, or by this if the best gain is smaller


@dataclass(eq=False)
class _Decisions:
    """Decisions of searches.

    Attributes:
        problems: the problem of each search.
        starts: the start placement of each search.
        chosen: ``int64[T, B]``, the node that each search chose at each step; -1 after its end.
        moved: for each search, the ops and their devices, by step.
    """

    problems: list[Problem]
    starts: list[NDArray[np.int32]]
    chosen: NDArray[np.int64]
    moved: list[list[tuple[int, int]]]


class GiphAgent(Agent):
    """GiPH's policy and its variants. An episode is 2|V| relocations from a random placement.

    Args:
        variant: the paper's name of the encoder, or of the policy without gpNet.
        features: ``paper`` for the four node features of Appendix B.7; ``costs`` for the three of them that do not depend on
            the schedule (Fig. 15); ``schedule`` for the four and four more features of the schedule. All of these are relative,
            and scaled logarithmically (:data:`placeit.learning.agents.giph.gpnet.NODE_FEATURES`). ``public`` for the four and
            the criticality, scaled by minimum and maximum (:func:`placeit.learning.agents.giph.features.features`).
        dim: width of an embedding in one direction; 5 in the paper.
        steps_per_op: steps of an episode, per op.

    Raises:
        UsageError: the variant or the features do not exist, or a size is out of its range.
    """

    name, version = "giph", 1
    network: Scorer

    def __init__(self, variant: str = "giph", features: str = "schedule", dim: int = 16, steps_per_op: float = 2.0) -> None:
        if variant not in _ENCODERS:
            raise UsageError(f"GiPH has no variant '{variant}'; there are {', '.join(get_args(Variant))}.")
        if features not in FEATURES:
            raise UsageError(f"GiPH has no features '{features}'; there are {', '.join(FEATURES)}.")
        check_size("agent", "giph", "dim", dim, 1, 1024)
        check_size("agent", "giph", "steps_per_op", steps_per_op, 0, 1000)
        encoder, steps = _ENCODERS[variant]
        self.network = Scorer(encoder, features=features, dim=dim, steps=steps)
        self.variant, self.features, self.dim, self.steps_per_op = variant, features, dim, steps_per_op
        self.pivots = variant == "giph-task-eft"

    def default_stages(self, draw: Draw) -> list[Stage]:
        """Return the stages by which the shipped policy was trained: only imitation of the best move."""
        rate = 8e-3
        return [
            Stage(
                draw,
                300,
                kind="imitation",
                problems=8,
                learning_rate=rate,
                schedule="linear",
                final_learning_rate=rate / 20,
                evaluate_every=30,
            )
        ]

    def search(self, problems: Sequence[Problem], starts: Sequence[NDArray[np.int32]]) -> RelocationSearch[Tensor]:
        """Start searches from the given placements.

        Differs from the paper: outside of training, steps are drawn with temperature 0.6. This applies to GiPH only: the
        policies with which it is compared, Placeto and HDP, draw with temperature 1.
        """
        temperature = 1.0 if self.network.training else TEMPERATURE
        return RelocationSearch(self.network, problems, starts, pivots=self.pivots, temperature=temperature)

    def answering(self, problem: Problem, start: NDArray[np.int32]) -> RelocationSearch[NDArray[np.float32]]:
        """Start a search outside of training, without gradients."""

        def score(nets: GpNets) -> NDArray[np.float32]:
            with torch.no_grad():
                scores: NDArray[np.float32] = self.network(nets).numpy()
            return scores

        return RelocationSearch(score, [problem], [start], pivots=self.pivots, temperature=TEMPERATURE)

    def _start(
        self, instances: Sequence[ProblemInstance], rng: np.random.Generator
    ) -> tuple[RelocationSearch[Tensor], list[NDArray[np.int32]], list[int]]:
        """Start searches from random placements; return the searches, the placements, and the numbers of steps."""
        problems = [instance.problem for instance in instances]
        starts = [random_placements(problem, 1, rng)[0] for problem in problems]
        lengths = [max(1, round(self.steps_per_op * len(problem))) for problem in problems]
        return self.search(problems, starts), starts, lengths

    def rollout(self, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Trajectory:
        """Search from random placements, sampling each step from the policy."""
        search, starts, lengths = self._start(instances, rng)
        paths = [np.repeat(start[None], length + 1, axis=0) for start, length in zip(starts, lengths, strict=True)]
        chosen = np.full((max(lengths), len(instances)), -1, np.int64)
        moved: list[list[tuple[int, int]]] = [[] for _ in instances]
        for step in range(max(lengths)):
            with torch.no_grad():
                scores = search.scores().numpy()
            for b in range(len(instances)):
                move = search.step(b, scores, rng) if step < lengths[b] else None
                if move is None:
                    continue
                chosen[step, b], op, device = move
                moved[b].append((op, device))
                paths[b][len(moved[b])] = search.nets.placements[b]
        visited = [path[: len(moves) + 1] for path, moves in zip(paths, moved, strict=True)]
        return Trajectory(chosen >= 0, visited, _Decisions(search.nets.problems, starts, chosen, moved))

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the reduction in cost by each step."""
        return savings(trajectory, costs)

    def score(self, trajectory: Trajectory) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor, Tensor]]:
        """Replay a trajectory and score its decisions; a part is one step of all problems."""
        decisions: _Decisions = trajectory.decisions
        search = self.search(decisions.problems, decisions.starts)
        for step in range(len(decisions.chosen)):
            active = np.flatnonzero(trajectory.valid[step])
            if not len(active):
                return
            scores = search.scores()
            logs, entropies = [], []
            for b in active.tolist():
                legal = search.legal(b)
                log = torch.log_softmax(scores[torch.from_numpy(legal)] / search.temperature, dim=0)
                logs.append(log[int(np.flatnonzero(legal == decisions.chosen[step, b])[0])])
                entropies.append(-(log.exp() * log).sum())
            yield np.full(len(active), step), active, torch.stack(logs), torch.stack(entropies)
            for b in active.tolist():
                search.move(b, *decisions.moved[b][step])

    def loss(self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Tensor:
        """Return the loss of ``imitation`` or ``all-actions``, which value every action in some states that the policy visits.

        A simulator values all actions of a state faster than the policy scores them. ``imitation`` is the cross-entropy with
        ``softmax(15 gain / best gain)``, in which the best move dominates. ``all-actions`` is minus the expected gain under the
        policy, in multiples of the best gain: the policy gradient of a one-step episode without sampling (Sutton et al. 2000).
        Actions whose gain could not be measured are left out.

        Raises:
            UsageError: another kind.
        """
        if kind not in ("imitation", "all-actions"):
            raise UsageError(f"GiPH learns by reinforce, imitation or all-actions; there is no '{kind}'.")
        search, _, lengths = self._start(instances, rng)
        longest = max(lengths)
        # steps at which actions are valued, common to all problems because one pass scores all of them
        valued = set(rng.choice(longest, size=min(longest, _MAX_STATES), replace=False).tolist())
        losses = []
        for step in range(longest):
            with torch.set_grad_enabled(step in valued):
                scores = search.scores()
            sampled = scores.detach().numpy()
            for b, instance in enumerate(instances):
                if step >= lengths[b]:
                    continue
                legal = search.legal(b)
                if step in valued and len(legal):
                    gains = _gains(search, b, legal, instance)
                    known = ~np.isnan(gains)
                    if known.any():
                        log = torch.log_softmax(scores[torch.from_numpy(legal[known])], dim=0)
                        target = torch.from_numpy(_normalised(gains[known])).to(torch.float32)
                        terms = torch.softmax(_SHARPNESS * target, dim=0) * log if kind == "imitation" else log.exp() * target
                        losses.append(-terms.sum())
                search.step(b, sampled, rng)
        return torch.stack(losses).mean() if losses else torch.zeros((), requires_grad=True)


def _gains(
    search: RelocationSearch[Tensor], number: int, nodes: NDArray[np.int64], instance: ProblemInstance
) -> NDArray[np.float64]:
    """Return the reduction in cost by each action, in the instance's units; ``-inf`` if infeasible, NaN if unknown."""
    placement = search.nets.placements[number]
    candidates = np.repeat(placement[None], len(nodes) + 1, axis=0)
    ops, devices = search.targets(number, nodes)
    candidates[np.arange(1, len(candidates)), ops] = devices
    costs = instance.cost(candidates) / instance.unit
    gains: NDArray[np.float64] = costs[0] - costs[1:]
    return gains


def _normalised(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return gains in multiples of the best gain, clipped to [-1, 1]."""
    normalised: NDArray[np.float64] = np.clip(gains / max(float(gains.max()), _MIN_GAIN), -1.0, 1.0)
    return normalised
