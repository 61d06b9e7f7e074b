"""Placeto (Addanki et al. 2019), as in GiPH's comparison: a policy that visits every op once and chooses its device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.core.registry import check_size
from placeit.learning.agent import Agent, ProblemInstance, Trajectory
from placeit.learning.agents.choice import check_devices, draw_choice, score_choice
from placeit.learning.agents.doppler.teachers import Teacher, find_teacher, teacher_names
from placeit.learning.agents.placeto.batch import FEATURES, SUMMARIES, Batch
from placeit.learning.agents.placeto.lessons import Lessons
from placeit.learning.agents.savings import savings
from placeit.learning.training.stages import Draw, Stage
from placeit.placers.feasibility import random_placements

__all__ = ["PlacetoAgent", "changes"]

_NODES_AT_A_TIME = 1 << 15  # nodes of the states that are scored at once, about


class _Network(nn.Module):
    """Node transform, message passing in both directions, four summaries, and the policy (GiPH, Tables 4 and 5).

    A step of message passing is ``e <- g(mean of f(e) over the neighbours) + h``, where h are the transformed features. f and
    g are single layers, shared by all steps of a direction.

    Args:
        devices: number of outputs.
        rounds: number of message passing steps.
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
            summary: ``int64[N]``, number of the summary, of all ``4 S``, to which a node belongs.
            states: number of states, ``S``.
        """
        nodes = len(features)
        own = self.transform(features)
        # both directions at once: the graph with reversed edges is a second graph beside the first
        source, target = torch.cat([tail, head + nodes]), torch.cat([head, tail + nodes])
        share = 1.0 / torch.bincount(target, minlength=2 * nodes).clamp_(min=1).to(own.dtype)[:, None]
        embedding = own.expand(2, nodes, FEATURES)
        for _ in range(self.rounds):
            sent = self.message(embedding).view(2 * nodes, FEATURES)
            received = torch.zeros_like(sent).index_add(0, target, sent[source]) * share
            embedding = self.aggregate(received.view(2, nodes, FEATURES)) + own
        both = torch.cat([embedding[0], embedding[1]], dim=1)
        count = torch.bincount(summary, minlength=SUMMARIES * states).clamp_(min=1).to(own.dtype)[:, None]
        pooled = both.new_zeros(SUMMARIES * states, both.shape[1]).index_add(0, summary, both) / count
        logits: Tensor = self.policy(pooled.view(states, -1))
        return logits


class _BothWays(nn.Module):
    """A linear layer with a leaky ReLU for each direction: ``[2, N, F]`` to ``[2, N, F]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [nn.Linear(width, width) for _ in range(2)]
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, embedding: Tensor) -> Tensor:
        return leaky_relu(torch.baddbmm(self.bias, embedding, self.weight))


@dataclass(frozen=True, eq=False)
class _Decisions:
    """Decisions of the searches of all rows.

    Attributes:
        batch: the problems.
        path: ``int32[T + 1, N]``, placements before each step and after the last.
        valid: ``bool[T, B]``, True until the end of a row's search.
        chosen: ``intp[T, B]``, chosen devices.
        allowed: ``bool[T, B, D]``, allowed devices.
        taught: ``intp[T, B]``, devices that the teacher would have chosen; None without a teacher.
    """

    batch: Batch
    path: NDArray[np.int32]
    valid: NDArray[np.bool_]
    chosen: NDArray[np.intp]
    allowed: NDArray[np.bool_]
    taught: NDArray[np.intp] | None = None

    def visited(self, row: int) -> NDArray[np.int32]:
        """Return ``int32[T + 1, V]``, the placements of a row from its start to the end of its search."""
        begin = self.batch.first[row]
        return self.path[: self.valid[:, row].sum() + 1, begin : begin + self.batch.sizes[row]]


class PlacetoAgent(Agent):
    """Placeto's policy. An episode starts from a random placement and selects a device for each op once, in topological order.

    In ``train()`` mode, it selects a random allowed device with probability ``explore``, as in DOPPLER's comparison (Yao et al.
    2025, section 7.1). Node features are the five of GiPH, Appendix B.7. The network has an output for each device: problems
    with fewer devices use the first outputs, and problems with more devices cannot be placed. This is a limitation of Placeto
    itself, and so is that devices are distinguished by their numbers only.

    Differs from the papers: rewards are divided by the instance's unit; devices that cannot run the op or have no room for its
    weights are not allowed; activations are leaky ReLUs, since there are few units, not ReLUs as in GiPH, section 5.

    Args:
        devices: number of outputs of the network, which is the maximum number of devices of a problem.
        rounds: number of message passing steps.

    Attributes:
        teachers: teachers for ``imitation`` (:mod:`placeit.learning.agents.doppler.teachers`).
        explore: probability of selecting a random allowed device in training episodes.

    Raises:
        UsageError: ``devices`` is less than one, ``rounds`` is negative, or one of them is too large.
    """

    name, version = "placeto", 1

    def __init__(self, devices: int = 20, rounds: int = 8) -> None:
        if devices < 1 or rounds < 0:
            raise UsageError(f"Placeto needs at least 1 device and 0 message passing steps; got {devices} and {rounds}.")
        check_size("agent", "placeto", "devices", devices, 1, 10_000)
        check_size("agent", "placeto", "rounds", rounds, 0, 1000)
        self.devices, self.rounds, self.explore = devices, rounds, 0.0
        self.teachers: Mapping[str, Sequence[str]] = {"imitation": teacher_names()}
        self.network = _Network(devices, rounds)

    def default_stages(self, draw: Draw) -> list[Stage]:
        """Return a stage of REINFORCE with a learning rate suited to a small network.

        Differs from GiPH, section 5 and Appendix B.7: 16 problems per update, not one; the baseline is the mean return at the
        step, not the mean reward so far, and advantages are normalised; the learning rate falls from 0.01 to zero.
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

        Decisions do not depend on costs; the caller selects the placements to value.

        Args:
            problems: ``B`` problems.
            starts: a feasible placement of each.
            rng: random generator.
            steps_per_op: total number of steps, per op; GiPH searches for 2 |V| steps.

        Returns:
            For each problem ``int32[steps + 1, V]``, the visited placements, the start included; all are feasible.

        Raises:
            UsageError: a problem has more devices than the network has outputs.
        """
        decisions = self._decide(problems, starts, rng, steps_per_op=steps_per_op)
        return [decisions.visited(row) for row in range(len(problems))]

    def rollout(self, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Trajectory:
        """Play an episode from a random placement of each problem.

        Raises:
            UsageError: a problem has more devices than the network has outputs.
            InfeasibleError: no feasible placement is found.
        """
        decisions = self._episode(instances, rng)
        return Trajectory(decisions.valid, [decisions.visited(b) for b in range(len(instances))], decisions)

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the reduction in cost by each step, which is 0 for a step that does not move its op."""
        return savings(trajectory, costs)

    def score(self, trajectory: Trajectory) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor, Tensor]]:
        """Score the chosen devices, in parts of states that have some ten thousand nodes together."""
        decisions: _Decisions = trajectory.decisions
        for step, row, logits in self._logits(decisions):
            yield step, row, *score_choice(logits, decisions.allowed[step, row], decisions.chosen[step, row])

    def loss(
        self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator, teacher: str | None = None
    ) -> Tensor:
        """Return the loss of ``imitation``: the policy acts, and the teacher's devices in the same states are the targets.

        It is minus the mean over decisions of the log-probabilities of the teacher's devices, in the states that the policy
        visits (DOPPLER, Appendices H.4 and J). The order of ops is fixed, so the teacher decides only the device, as a list
        scheduler that has placed the earlier ops like the policy. Devices that the policy may not choose are left out.

        Raises:
            UsageError: the kind is not ``imitation``, or the teacher does not exist.
        """
        if kind != "imitation":
            raise UsageError(f"Placeto has no training method '{kind}'; it has reinforce and imitation.")
        decisions = self._episode(instances, rng, find_teacher(teacher or self.teachers[kind][0]))
        assert decisions.taught is not None  # noqa: S101
        total, count = torch.zeros(()), 0
        for step, row, logits in self._logits(decisions):
            allowed, taught = decisions.allowed[step, row], decisions.taught[step, row]
            possible = allowed[np.arange(len(taught)), taught]
            log, _ = score_choice(logits[torch.from_numpy(possible)], allowed[possible], taught[possible])
            total, count = total - log.sum(), count + log.numel()
        return total / max(count, 1)

    def _logits(self, decisions: _Decisions) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor]]:
        """Yield steps ``[N]`` and rows ``[N]`` of decisions, in parts, with the current network's logits in their states."""
        batch = decisions.batch
        steps, rows = np.nonzero(decisions.valid)
        nodes = np.cumsum(batch.sizes[rows])
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(nodes // _NODES_AT_A_TIME)) + 1):
            step, row = steps[part], rows[part]
            yield step, row, self.network(*batch.states(decisions.path, step, row), len(part))

    def _episode(
        self, instances: Sequence[ProblemInstance], rng: np.random.Generator, teacher: Teacher | None = None
    ) -> _Decisions:
        """Play an episode from a random placement of each problem."""
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
                random = np.where(able, rng.random(able.shape), -1.0).argmax(axis=1)
                devices = np.where(rng.random(len(devices)) < explore, random, devices)
            if lessons is not None and taught is not None:
                taught[t, rows] = lessons.step(rows, ops, devices)
            path[t + 1] = path[t]
            path[t + 1, batch.first[rows] + ops] = devices
            chosen[t, rows], allowed[t, rows] = devices, able
        return _Decisions(batch, path, valid, chosen, allowed, taught)


def changes(path: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return whether each placement of ``int32[T, V]`` differs from the previous one, ``bool[T]``; True for the first."""
    return np.concatenate([[True], (path[1:] != path[:-1]).any(axis=1)])
