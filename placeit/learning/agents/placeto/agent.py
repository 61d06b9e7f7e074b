"""Placeto (Addanki et al. 2019), as in GiPH's comparison: a policy that visits every op once and chooses its device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.core.registry import check_size
from placeit.learning.agent import ProblemInstance, Trajectory
from placeit.learning.agents.choice import check_devices, draw_choice, score_choice
from placeit.learning.agents.doppler.teachers import Teacher, find_teacher, teacher_names
from placeit.learning.agents.placeto.batch import FEATURES, SUMMARIES, Batch
from placeit.learning.agents.placeto.lessons import Lessons
from placeit.learning.agents.savings import savings
from placeit.learning.training.stages import Draw, Stage
from placeit.placers.feasibility import random_placements

__all__ = ["PlacetoAgent", "changes"]

_NODES_AT_A_TIME = 1 << 15


class _Network(nn.Module):
    """Node transform, message passing in both directions, four summaries, policy (GiPH, Tables 4 and 5).

    A step of message passing is ``e <- g(mean of f(e) over the neighbours) + h``, h being the transformed features. f and g
    are single layers, shared by all steps of a direction.

    Args:
        devices: outputs.
        rounds: message passing steps.
    """

    def __init__(self, devices: int, rounds: int) -> None:
        super().__init__()
        width = FEATURES
        self.rounds = rounds
        self.transform = nn.Sequential(nn.Linear(width, width), nn.LeakyReLU(), nn.Linear(width, width))
        self.message = _BothWays(width)
        self.aggregate = _BothWays(width)
        self.policy = nn.Sequential(nn.Linear(SUMMARIES * 2 * width, 32), nn.LeakyReLU(), nn.Linear(32, devices))

    def forward(self, features: Tensor, tail: Tensor, head: Tensor, summary: Tensor, states: int) -> Tensor:
        """Return ``float32[S, D]`` logits.

        Args:
            features: ``float32[N, 5]`` of the nodes of all states, which are graphs side by side.
            tail: ``int64[E]``, producers.
            head: ``int64[E]``, consumers.
            summary: ``int64[N]``, which of all ``4 S`` summaries a node belongs to.
            states: ``S``.
        """
        nodes = len(features)
        own = self.transform(features)
        # both directions at once: the graph with its edges turned round is a second graph beside the first
        source, target = torch.cat([tail, head + nodes]), torch.cat([head, tail + nodes])
        share = 1.0 / torch.bincount(target, minlength=2 * nodes).clamp_(min=1).to(own.dtype)[:, None]
        embedding = own.expand(2, nodes, FEATURES)
        for _ in range(self.rounds):
            sent = self.message(embedding).view(2 * nodes, FEATURES)
            heard = torch.zeros_like(sent).index_add(0, target, sent[source]) * share
            embedding = self.aggregate(heard.view(2, nodes, FEATURES)) + own
        both = torch.cat([embedding[0], embedding[1]], dim=1)
        count = torch.bincount(summary, minlength=SUMMARIES * states).clamp_(min=1).to(own.dtype)[:, None]
        pooled = both.new_zeros(SUMMARIES * states, both.shape[1]).index_add(0, summary, both) / count
        logits: Tensor = self.policy(pooled.view(states, -1))
        return logits


class _BothWays(nn.Module):
    """A layer for each direction, with a leaky rectifier: ``[2, N, F]`` to ``[2, N, F]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [nn.Linear(width, width) for _ in range(2)]
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, embedding: Tensor) -> Tensor:
        return leaky_relu(torch.baddbmm(self.bias, embedding, self.weight))


@dataclass(frozen=True, eq=False)
class _Decisions:
    """A search of all rows: placements before each step and after the last, chosen devices, and allowed devices.

    ``taught`` holds the devices that a teacher would have chosen, if there is a teacher.
    """

    batch: Batch
    path: NDArray[np.int32]  # [T + 1, N]
    valid: NDArray[np.bool_]  # [T, B]
    chosen: NDArray[np.intp]  # [T, B]
    allowed: NDArray[np.bool_]  # [T, B, D]
    taught: NDArray[np.intp] | None = None  # [T, B]

    def visited(self, row: int) -> NDArray[np.int32]:
        """Return ``int32[T + 1, V]``, the placements of a row from its start to the end of its search."""
        begin = self.batch.first[row]
        return self.path[: self.valid[:, row].sum() + 1, begin : begin + self.batch.sizes[row]]


class PlacetoAgent:
    """Placeto's policy. An episode starts from a random placement and chooses a device for each op once, in topological order.

    In episodes that are learned from, it takes any allowed device with a probability of ``explore``, as in DOPPLER's comparison
    (Yao et al. 2025, section 7.1). Node features are the five of GiPH, Appendix B.7. The network has an output for each device:
    problems of fewer devices use the first outputs, and problems of more devices cannot be placed. That is a limitation of
    Placeto itself, as is that devices are told apart by their numbers only.

    Differs from the papers: rewards are divided by the instance's unit; devices that cannot run the op or have no room for its
    weights are barred; activations are leaky rectifiers, since units are few, where GiPH, section 5, gives ReLU.

    Args:
        devices: outputs of the network: the most devices that a problem may have.
        rounds: message passing steps.

    Attributes:
        teachers: teachers that ``imitation`` may learn from (:mod:`placeit.learning.agents.doppler.teachers`).
        explore: probability of taking a random allowed device in episodes that are learned from.

    Raises:
        UsageError: not at least one device, or a negative number of steps.
    """

    name: ClassVar[str] = "placeto"
    version: ClassVar[int] = 1
    network: nn.Module

    def __init__(self, devices: int = 20, rounds: int = 8) -> None:
        if devices < 1 or rounds < 0:
            raise UsageError(f"Placeto needs at least 1 device and 0 message passing steps; got {devices} and {rounds}.")
        check_size("agent", "placeto", "devices", devices, 1, 10_000)
        check_size("agent", "placeto", "rounds", rounds, 0, 1000)
        self.devices, self.rounds, self.explore = devices, rounds, 0.0
        self.teachers: Mapping[str, Sequence[str]] = {"imitation": teacher_names()}
        self.network = _Network(devices, rounds)

    @property
    def config(self) -> Mapping[str, bool | int | float | str]:
        """Arguments that make an agent of the same shape."""
        return {"devices": self.devices, "rounds": self.rounds}

    def default_stages(self, draw: Draw) -> list[Stage]:
        """Return a stage of REINFORCE with a learning rate suited to a small network.

        Differs from GiPH, section 5 and Appendix B.7: 16 problems an update, not one; returns are compared with their mean at
        the same step, not with the mean reward so far, and normalised; the rate falls from 0.01 to zero.
        """
        return [Stage(draw, learning_rate=1e-2, schedule="cosine")]

    def search(
        self,
        problems: Sequence[Problem],
        starts: Sequence[NDArray[np.int32]],
        rng: np.random.Generator,
        *,
        steps_per_op: float = 1.0,
    ) -> list[NDArray[np.int32]]:
        """Improve placements; after |V| steps a new episode starts from the last placement.

        Decisions depend on no cost; the caller chooses which of the placements to value.

        Args:
            problems: ``B`` problems.
            starts: a feasible placement of each.
            rng: random generator.
            steps_per_op: steps in all, per op; GiPH searches for 2 |V| steps.

        Returns:
            For each problem ``int32[steps + 1, V]``, the placements on its way, the start included; all are feasible.

        Raises:
            UsageError: a problem has more devices than the network has outputs.
        """
        decisions = self._decide(problems, starts, rng, steps_per_op=steps_per_op)
        return [decisions.visited(row) for row in range(len(problems))]

    def rollout(self, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Trajectory:
        """Play an episode from a random placement of each problem.

        Raises:
            UsageError: a problem has more devices than the network has outputs.
            InfeasibleError: the weights of a problem fit in no way that was found.
        """
        decisions = self._episode(instances, rng)
        return Trajectory(decisions.valid, [decisions.visited(b) for b in range(len(instances))], decisions)

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the reduction in cost by each step; a step that leaves its op where it was has the reward 0."""
        return savings(trajectory, costs)

    def score(self, trajectory: Trajectory) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor, Tensor]]:
        """Score the devices chosen, in parts of as many states as have some ten thousand nodes together."""
        decisions: _Decisions = trajectory.decisions
        for step, row, logits in self._logits(decisions):
            yield step, row, *score_choice(logits, decisions.allowed[step, row], decisions.chosen[step, row])

    def loss(
        self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator, teacher: str | None = None
    ) -> Tensor:
        """Return the loss of ``imitation``: the policy acts, and the teacher's devices in the same states are the targets.

        The mean over decisions of minus the log-probabilities of the teacher's devices, in the states that the policy is in
        (DOPPLER, Appendices H.4 and J). The order of ops is fixed, so the teacher is asked about the device alone, as a list
        scheduler that has placed the ops before as the policy did. What the policy may not choose is left out.

        Raises:
            UsageError: another kind, or there is no such teacher.
        """
        if kind != "imitation":
            raise UsageError(f"Placeto has no training method '{kind}'; it has reinforce and imitation.")
        decisions = self._episode(instances, rng, find_teacher(teacher or self.teachers[kind][0]))
        assert decisions.taught is not None  # noqa: S101
        total, count = torch.zeros(()), 0
        for step, row, logits in self._logits(decisions):
            allowed, taught = decisions.allowed[step, row], decisions.taught[step, row]
            can = allowed[np.arange(len(taught)), taught]
            log, _ = score_choice(logits[torch.from_numpy(can)], allowed[can], taught[can])
            total, count = total - log.sum(), count + log.numel()
        return total / max(count, 1)

    def _logits(self, decisions: _Decisions) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor]]:
        """Yield steps ``[N]`` and rows ``[N]`` of decisions, in parts, with the present network's logits in their states."""
        batch = decisions.batch
        steps, rows = np.nonzero(decisions.valid)
        nodes = np.cumsum(batch.sizes[rows])
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(nodes // _NODES_AT_A_TIME)) + 1):
            step, row = steps[part], rows[part]
            yield step, row, self.network(*batch.states(decisions.path, step, row), len(part))

    def _episode(
        self, instances: Sequence[ProblemInstance], rng: np.random.Generator, teacher: Teacher | None = None
    ) -> _Decisions:
        problems = [instance.problem for instance in instances]
        starts = [random_placements(problem, 1, rng)[0] for problem in problems]
        return self._decide(problems, starts, rng, teacher=teacher, explore=self.explore if self.network.training else 0.0)

    @torch.no_grad()
    def _decide(
        self,
        problems: Sequence[Problem],
        starts: Sequence[NDArray[np.int32]],
        rng: np.random.Generator,
        *,
        steps_per_op: float = 1.0,
        teacher: Teacher | None = None,
        explore: float = 0.0,
    ) -> _Decisions:
        check_devices("Placeto", self.devices, problems)
        batch = Batch(problems, self.devices)
        lengths = np.maximum(1, np.rint(steps_per_op * batch.sizes)).astype(np.intp)
        valid = np.arange(lengths.max())[:, None] < lengths
        path = np.repeat(np.concatenate(starts)[None], len(valid) + 1, axis=0)
        chosen = np.zeros(valid.shape, np.intp)
        allowed = np.zeros((*valid.shape, self.devices), bool)
        lessons = None if teacher is None else Lessons(teacher, problems)
        taught = None if teacher is None else np.zeros(valid.shape, np.intp)
        for t in range(len(valid)):
            rows = np.flatnonzero(valid[t])
            steps = np.full(len(rows), t)
            ops = batch.op(steps, rows)
            able = batch.allowed(path[t], ops, rows)
            devices = draw_choice(self.network(*batch.states(path, steps, rows), len(rows)), able, rng)
            if explore > 0:
                any_of = np.where(able, rng.random(able.shape), -1.0).argmax(axis=1)
                devices = np.where(rng.random(len(devices)) < explore, any_of, devices)
            if lessons is not None and taught is not None:
                taught[t, rows] = lessons.go_on(rows, ops, devices)
            path[t + 1] = path[t]
            path[t + 1, batch.first[rows] + ops] = devices
            chosen[t, rows], allowed[t, rows] = devices, able
        return _Decisions(batch, path, valid, chosen, allowed, taught)


def changes(path: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which placements of ``int32[T, V]`` differ from the one before; the first one counts as different."""
    return np.concatenate([[True], (path[1:] != path[:-1]).any(axis=1)])
