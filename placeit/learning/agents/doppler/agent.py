"""DOPPLER's agent: an episode places a problem op by op."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit import _core
from placeit.core.errors import UsageError
from placeit.core.problem import Problem, once_per_problem
from placeit.core.registry import check_size
from placeit.learning.agent import Agent, ProblemInstance, Trajectory
from placeit.learning.agents.choice import score_choice
from placeit.learning.agents.doppler.episodes import Manner, Record
from placeit.learning.agents.doppler.features import EpisodeState, device_sums
from placeit.learning.agents.doppler.graph import Graph
from placeit.learning.agents.doppler.neighbourhoods import Best
from placeit.learning.agents.doppler.networks import Network, Progress
from placeit.learning.agents.doppler.teachers import Teacher, find_teacher, teacher_names
from placeit.learning.training.stages import Draw, Stage
from placeit.placers.feasibility import repair

__all__ = ["DopplerAgent"]

_NUMBERS_AT_A_TIME = 1 << 22  # numbers in memory while decisions are scored, about
_MAX_OPTIONS = {"width": 4096, "rounds": 16}
BEST = "best"
"""Name of the teacher that repeats the best placement met."""


class _Decisions(NamedTuple):
    """Decisions at each step of ``R`` episodes.

    Attributes:
        ops: ``int64[R, V]``, the op that is placed at each step.
        devices: ``int64[R, V]``, its device.
        allowed: ``bool[R, V, D]``, the devices that are allowed for it.
        inputs: ``float32[R, V, D, F]``, PLC's inputs for each device.
    """

    ops: NDArray[np.int64]
    devices: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    inputs: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class _Episodes:
    """Episodes of one problem.

    Attributes:
        graph: the problem.
        rows: ``intp[R]``, numbers of the episodes in the batch.
        record: the decisions.
        learned: ``bool[R, V]``, steps to learn from.
        tolerance: for episodes that place a part of a known placement again: the relative increase in cost up to which a result
            is accepted as the current placement. None for episodes that place all ops and choose their order.
        finish: ``float64[R, V]``, estimated finish times.
        placements: ``int32[R, V]``, repaired if weights did not fit.
    """

    graph: Graph
    rows: NDArray[np.intp]
    record: Record
    learned: NDArray[np.bool_]
    tolerance: float | None
    finish: NDArray[np.float64]
    placements: NDArray[np.int32]

    @property
    def decisions(self) -> _Decisions:
        """The decisions of the policies."""
        record = self.record
        return _Decisions(record.order, np.take_along_axis(record.chosen, record.order, 1), record.allowed, record.inputs)


class DopplerAgent(Agent):
    """DOPPLER's dual policy: SEL selects an op whose predecessors are placed, PLC its device; the reward is minus the cost.

    In ``train()`` mode, each policy makes a random allowed decision with probability ``explore``. Otherwise it draws from its
    distribution, or, with ``greedy``, makes the likeliest decision, as in the paper.

    Differs from the paper: once a placement of a problem has been met, most training episodes keep a good placement except for
    a connected part of its ops, and learn only from PLC's decisions about that part
    (:mod:`placeit.learning.agents.doppler.neighbourhoods`). An episode that places all ops has one reward for hundreds of
    decisions, most of which hardly affect it. PLC also reads the op's compute on a device and its affinity to the ops there,
    without which it cannot tell ops of the same shape apart. Features of devices are in multiples of the time of all ops if all
    devices share the work evenly. A device without room for an op's weights is not allowed. If no device has room, the op goes
    to any device that can run it, and the whole placement is repaired.

    Args:
        width: width of the network's layers.
        rounds: rounds of message passing.
        select: ``learned``, or ``critical-path``: the op with the longest path to an exit (DOPPLER-PLC in the paper).
        place: ``learned``, or ``earliest-start``: the device where the op can start first (DOPPLER-SEL).
        greedy: whether training episodes make the likeliest decisions unless they explore.
        passing: when messages are passed: once per ``episode`` (section 5.3), or at each ``step``.
        neighbourhood: probability that training episodes, once a placement of the problem has been met, place a part of a good
            placement again and keep the rest.
        affinity: whether PLC reads :func:`~placeit.learning.agents.doppler.features.affinity`.

    Attributes:
        teachers: teachers for ``imitation``: :mod:`placeit.learning.agents.doppler.teachers`, and ``best`` if PLC is learned.
        explore: probability of a random decision in training episodes.

    Raises:
        UsageError: an argument is out of its range.
    """

    name, version = "doppler", 2
    network: Network

    def __init__(
        self,
        width: int = 32,
        rounds: int = 2,
        select: str = "learned",
        place: str = "learned",
        greedy: bool = False,
        passing: str = "episode",
        neighbourhood: float = 0.8,
        affinity: bool = True,
    ) -> None:
        for option, value in (("width", width), ("rounds", rounds)):
            check_size("agent", "doppler", option, value, 1, _MAX_OPTIONS[option])
        choices = ("learned", "critical-path"), ("learned", "earliest-start"), ("episode", "step")
        for option, choice, known in zip(("select", "place", "passing"), (select, place, passing), choices, strict=True):
            if choice not in known:
                raise UsageError(f"'{option}' of the agent 'doppler' is '{choice}'; it must be '{known[0]}' or '{known[1]}'.")
        if select != "learned" and place != "learned":
            raise UsageError("The agent 'doppler' has nothing to learn with both 'select' and 'place' fixed.")
        self.width, self.rounds, self.select, self.place = width, rounds, select, place
        if not 0 <= neighbourhood <= 1:
            raise UsageError(f"'neighbourhood' of the agent 'doppler' is {neighbourhood}; it must be in [0, 1].")
        self.greedy, self.passing, self.neighbourhood, self.affinity = greedy, passing, neighbourhood, affinity
        self.explore = 0.0
        self.teachers = {"imitation": (*teacher_names(), BEST) if place == "learned" else teacher_names()}
        self.network = Network(width, rounds, progress=passing == "step")
        self._best = Best()
        self._graph = once_per_problem(functools.partial(Graph.of, affinity=affinity))

    def default_stages(self, draw: Draw) -> list[Stage]:
        """Return a stage of imitation and a stage of REINFORCE; the paper's third stage is REINFORCE with measured costs."""
        shared: dict[str, Any] = {"learning_rate": 3e-3, "schedule": "linear", "gamma": 1.0}
        return [
            Stage(draw, updates=50, kind="imitation", **shared),
            Stage(draw, updates=250, entropy=0.01, final_entropy=0.0, **shared),
        ]

    def rollout(self, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Trajectory:
        """Place each problem op by op, or place a part of its ops again. Raises InfeasibleError."""
        groups = [self._play(graph, rows, rng) for graph, rows in self._grouped([instance.problem for instance in instances])]
        valid = np.zeros((max(int(episodes.learned.sum(axis=1).max()) for episodes in groups), len(instances)), bool)
        visited: list[NDArray[np.int32]] = [np.empty((0, 0), np.int32)] * len(instances)
        for episodes in groups:
            valid[:, episodes.rows] = np.arange(len(valid))[:, None] < episodes.learned.sum(axis=1)
            for row, placement in zip(episodes.rows.tolist(), episodes.placements, strict=True):
                visited[row] = placement[None]
        return Trajectory(valid, visited, groups)

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return minus the cost of the placement, at the last step. The best placements are remembered."""
        rewards = np.zeros(trajectory.valid.shape)
        last = trajectory.valid.sum(axis=0) - 1
        rows = np.flatnonzero(last >= 0)
        rewards[last[rows], rows] = [-costs[row][0] for row in rows.tolist()]
        for episodes in trajectory.decisions:
            values = np.array([costs[row][0] for row in episodes.rows.tolist()])
            self._best.meet(episodes.graph.problem, episodes.placements, values, episodes.tolerance or 0.0)
        return rewards

    def score(self, trajectory: Trajectory) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor, Tensor]]:
        """Score decisions; a decision's log-probability and entropy are the sums over the op and its device."""
        for episodes in trajectory.decisions:
            number = episodes.learned.cumsum(axis=1) - 1
            for r, t in self._parts(episodes):
                log, entropy = self._score(episodes, episodes.decisions, r, t, select=episodes.tolerance is None)
                yield number[r, t], episodes.rows[r], log, entropy

    def loss(
        self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator, teacher: str | None = None
    ) -> Tensor:
        """Return the loss of ``imitation``: the policy acts, and the teacher's decisions in the same states are the targets.

        DOPPLER, Appendix J: minus the mean over decisions of the log-probabilities of the teacher's op, and of its device for
        that op, in the states that the policy visits. The teacher ``best`` is the best placement that was met in training: the
        policy chooses the order of ops, and only its devices are compared with that placement.

        Raises:
            UsageError: the kind is not ``imitation``, the teacher does not exist, or no placement has been met yet.
        """
        if kind != "imitation":
            raise UsageError(f"The agent 'doppler' has no training '{kind}'; it has reinforce and imitation.")
        name = teacher or self.teachers[kind][0]
        scheduler = None if name == BEST else find_teacher(name)
        total, count = torch.zeros(()), 0
        for graph, rows in self._grouped([instance.problem for instance in instances]):
            kept = np.repeat(self._best.placement(graph.problem)[None], len(rows), axis=0) if scheduler is None else None
            episodes = self._play(graph, rows, rng, kept)
            targets = _teacher_decisions(episodes, scheduler)
            for r, t in self._parts(episodes):
                log, _ = self._score(episodes, targets, r, t, select=scheduler is not None)
                total, count = total - log.sum(), count + len(log)
        return total / count

    def greedy_placement(self, problem: Problem) -> NDArray[np.int32]:
        """Return the placement of an episode of likeliest decisions, ``int32[V]``. Raises InfeasibleError."""
        ((graph, rows),) = self._grouped([problem])
        placement: NDArray[np.int32] = self._play(graph, rows, None).placements[0]
        return placement

    def meet(self, problem: Problem, placements: NDArray[np.int32], costs: NDArray[np.float64]) -> None:
        """Remember the best of ``int32[S, V]`` placements with ``float64[S]`` costs."""
        self._best.meet(problem, placements, costs)

    def memory(self) -> Mapping[str, Tensor]:
        """Return the best and the current placements of problems, by name."""
        return self._best.tensors()

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Restore the placements that :meth:`memory` returned."""
        self._best = Best.of(memory)

    def _grouped(self, problems: Sequence[Problem]) -> list[tuple[Graph, NDArray[np.intp]]]:
        """Return the graph of each distinct problem, with its positions in ``problems``."""
        rows: dict[Problem, list[int]] = {}
        for number, problem in enumerate(problems):
            rows.setdefault(problem, []).append(number)
        return [(self._graph(problem), np.array(numbers)) for problem, numbers in rows.items()]

    @torch.no_grad()
    def _play(
        self,
        graph: Graph,
        rows: NDArray[np.intp],
        rng: np.random.Generator | None,
        kept: NDArray[np.int32] | None = None,
    ) -> _Episodes:
        """Play an episode for each row.

        Args:
            graph: the problem.
            rows: numbers of the episodes in the batch.
            rng: random generator; None for the likeliest decisions.
            kept: ``int32[R, V]``, fixed devices of ops, -1 for ops without one; None for the agent's choice of what to keep.
        """
        problem, count = graph.problem, len(rows)
        size, devices = len(problem), problem.devices
        training, tolerance = self.network.training and rng is not None, None
        explore = self.explore if training and kept is None else 0.0
        if kept is None:
            kept = np.full((count, size), -1, np.int32)
            if training and rng is not None and self.place == "learned" and rng.random() < self.neighbourhood:
                neighbours = self._best.neighbours(problem, count, rng)
                kept, tolerance = (kept, None) if neighbours is None else neighbours
        draw = rng is not None and not (self.greedy and training)
        manner = Manner(self.select == "learned", self.place == "learned", draw, explore)
        state, record = EpisodeState(problem, count, graph.tables), Record.empty(count, size, devices)
        seeds = np.zeros(count, np.uint64) if rng is None else rng.integers(2**63, size=count).astype(np.uint64)
        on = np.zeros((count, devices, self.width), np.float32)
        for first, last in [(0, size)] if self.passing == "episode" else itertools.pairwise(range(size + 1)):
            progress = None if self.passing == "episode" else _progress(graph, state.placement, state.finish)
            encoded = self.network.encode(graph, progress)
            on[:] = device_sums(encoded.placed, state.placement, devices).numpy()
            policy, rank = self.network.compiled(encoded, on), graph.seconds_to_exit
            _core.play_episodes(first, last, *graph.tables, state.arrays, record, policy, manner, kept, rank, graph.unit, seeds)
        for row, placement in enumerate(state.placement):
            state.placement[row] = repair(problem, placement)
        learned = np.ones((count, size), bool) if tolerance is None else record.decided
        return _Episodes(graph, rows, record, learned, tolerance, state.finish, state.placement)

    def _parts(self, episodes: _Episodes) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Yield rows and steps to learn from, in parts that are small enough to be scored at once."""
        r, t = np.nonzero(episodes.learned)
        problem = episodes.graph.problem
        size, devices = len(problem), problem.devices
        numbers = size * (1 + devices) + devices * self.width
        if self.passing == "step":
            numbers += 8 * self.width * (size + len(problem.edges))
        count = max(1, _NUMBERS_AT_A_TIME // numbers)
        for first in range(0, len(r), count):
            yield r[first : first + count], t[first : first + count]

    def _score(
        self, episodes: _Episodes, decisions: _Decisions, r: NDArray[np.intp], t: NDArray[np.intp], *, select: bool
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of decisions under the current network: ``float32[N]`` twice.

        The states are the states of ``episodes``, whose own decisions may be different ones.

        Args:
            episodes: the episodes.
            decisions: the decisions to score.
            r: ``intp[N]``, rows of the episodes.
            t: ``intp[N]``, steps.
            select: whether SEL's decisions are scored.
        """
        record, devices = episodes.record, episodes.graph.problem.devices
        before = record.at[r] < t[:, None]
        placement = np.where(before, record.chosen[r], -1).astype(np.int32)
        progress = None if self.passing == "episode" else _progress(episodes.graph, placement, episodes.finish[r])
        encoded = self.network.encode(episodes.graph, progress)
        total_log = total_entropy = torch.zeros(len(r))
        if self.select == "learned" and select:
            candidates = (record.ready[r] <= t[:, None]) & ~before
            log, entropy = score_choice(encoded.select.expand(candidates.shape), candidates, decisions.ops[r, t])
            total_log, total_entropy = total_log + log, total_entropy + entropy
        if self.place == "learned":
            on = device_sums(encoded.placed.squeeze(0), placement, devices)
            node = encoded.node.expand(len(r), -1, -1)[torch.arange(len(r)), torch.from_numpy(decisions.ops[r, t])]
            logits = self.network.place(node, on, torch.from_numpy(decisions.inputs[r, t]))
            log, entropy = score_choice(logits, decisions.allowed[r, t], decisions.devices[r, t])
            total_log, total_entropy = total_log + log, total_entropy + entropy
        return total_log, total_entropy


def _teacher_decisions(episodes: _Episodes, teacher: Teacher | None) -> _Decisions:
    """Return the teacher's decisions in the states of episodes; without a teacher, the episodes' own decisions."""
    graph = episodes.graph
    state = EpisodeState(graph.problem, len(episodes.rows), graph.tables)
    own = episodes.decisions
    decisions = own._replace(**{name: np.empty_like(array) for name, array in own._asdict().items()})
    for t in range(len(graph.problem)):
        ops, devices = own.ops[:, t], own.devices[:, t]
        decisions.ops[:, t], decisions.devices[:, t] = (ops, devices) if teacher is None else teacher.decide(graph, state)
        chosen = np.ascontiguousarray(decisions.ops[:, t])
        _core.see_devices(*graph.tables, state.arrays, chosen, t, graph.unit, decisions.inputs, decisions.allowed)
        state.place(ops, devices)
    return decisions


def _progress(graph: Graph, placement: NDArray[np.int32], finish: NDArray[np.float64]) -> Progress:
    """Return the progress of episodes, given ``int32[N, V]`` placements with -1 for ops that are not placed."""
    placed = placement >= 0
    ops = np.stack([placed, np.where(placed, finish / graph.unit, 0.0)], axis=2).astype(np.float32)
    tail, head = placement[:, graph.tail.numpy()], placement[:, graph.head.numpy()]
    apart = ((tail >= 0) & (head >= 0) & (tail != head)).astype(np.float32)
    return Progress(torch.from_numpy(ops), torch.from_numpy(apart[..., None]))
