"""DOPPLER's agent: an episode places a problem op by op."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.core.registry import check_size
from placeit.learning.agent import ProblemInstance, Trajectory
from placeit.learning.agents.choice import score_choice
from placeit.learning.agents.doppler.episodes import Manner, Record, play, see
from placeit.learning.agents.doppler.features import EpisodeState, device_sums
from placeit.learning.agents.doppler.graph import Graph
from placeit.learning.agents.doppler.neighbourhoods import Best
from placeit.learning.agents.doppler.networks import Network, Progress
from placeit.learning.agents.doppler.teachers import Teacher, find_teacher, teacher_names
from placeit.learning.training.stages import Draw, Stage
from placeit.placers.feasibility import fits, repair

__all__ = ["DopplerAgent"]

_NUMBERS_AT_A_TIME = 1 << 22
_LARGEST_OPTIONS = {"width": 4096, "rounds": 16}
_OPTIONS = ("width", "rounds", "select", "place", "greedy", "passing", "neighbourhood", "affinity")
BEST = "best"


class _Answers(NamedTuple):
    """Decisions at each step of ``R`` episodes.

    Attributes:
        ops: ``int64[R, V]``, the op that is placed at each step.
        devices: ``int64[R, V]``, its device.
        allowed: ``bool[R, V, D]``, the devices that are allowed for it.
        inputs: ``float32[R, V, D, F]``, what PLC reads of each device.
    """

    ops: NDArray[np.int64]
    devices: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    inputs: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class _Played:
    """Episodes of one problem.

    Attributes:
        graph: the problem.
        rows: ``intp[R]``, numbers of the episodes in the batch.
        record: the decisions.
        learned: ``bool[R, V]``, steps that are learned from.
        worse: for episodes that decided about a part of a known placement anew: the relative increase in cost up to which a
            result is searched from next. None for episodes that decided everything, the order of ops included.
        finish: ``float64[R, V]``, when ops end by the estimate.
        placements: ``int32[R, V]``, repaired where weights did not fit.
    """

    graph: Graph
    rows: NDArray[np.intp]
    record: Record
    learned: NDArray[np.bool_]
    worse: float | None
    finish: NDArray[np.float64]
    placements: NDArray[np.int32]

    @property
    def made(self) -> _Answers:
        """Decisions of the policies."""
        record = self.record
        return _Answers(record.order, np.take_along_axis(record.chosen, record.order, 1), record.allowed, record.inputs)


class DopplerAgent:
    """DOPPLER's dual policy: SEL picks an op whose predecessors are placed, PLC its device; the reward is minus the cost.

    In episodes that are learned from, each of the two takes any allowed answer with a probability of ``explore``. Otherwise it
    draws from its policy, or, with ``greedy``, takes the likeliest answer, as in the paper.

    Differs from the paper: once a placement of a problem has been met, most episodes that are learned from keep a good one
    except for a connected part of its ops, and only PLC's decisions about that part are learned from
    (:mod:`placeit.learning.agents.doppler.neighbourhoods`). A whole episode has one reward for hundreds of decisions,
    most of which have nothing to do with it. PLC also sees the op's compute on a device and its affinity to the ops there,
    without which it cannot tell ops of the same shape apart. Features of devices are in multiples of the time that all devices
    take for all ops if they share them evenly. A device without room for an op's weights is barred. If none has room, the op
    goes to any that can run it, and the whole placement is repaired.

    Args:
        width: of the network.
        rounds: of message passing.
        select: ``learned``, or ``critical-path``: the op with the longest path to an exit (DOPPLER-PLC in the paper).
        place: ``learned``, or ``earliest-start``: the device where the op can start first (DOPPLER-SEL).
        greedy: whether episodes that are learned from take the likeliest answer unless they explore.
        passing: of messages: once an ``episode`` (section 5.3), or at each ``step``.
        neighbourhood: how often, once a placement of a problem has been met, episodes that are learned from decide about a part
            of the best one anew, and keep the rest.
        affinity: whether PLC sees :func:`~placeit.learning.agents.doppler.features.affinity`.

    Attributes:
        teachers: teachers that ``imitation`` may learn from: :mod:`placeit.learning.agents.doppler.teachers`, and
            ``best`` if PLC is learned.
        explore: how often episodes that are learned from take any answer.

    Raises:
        UsageError: an argument out of its range.
    """

    name: ClassVar[str] = "doppler"
    version: ClassVar[int] = 2
    network: nn.Module

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
            check_size("agent", "doppler", option, value, 1, _LARGEST_OPTIONS[option])
        for option, given, fixed in (("select", select, "critical-path"), ("place", place, "earliest-start")):
            if given not in ("learned", fixed):
                raise UsageError(f"'{option}' of the agent 'doppler' is '{given}'; it must be 'learned' or '{fixed}'.")
        if select != "learned" and place != "learned":
            raise UsageError("The agent 'doppler' has nothing to learn with both 'select' and 'place' fixed.")
        self.width, self.rounds, self.select, self.place = width, rounds, select, place
        if passing not in ("episode", "step"):
            raise UsageError(f"'passing' of the agent 'doppler' is '{passing}'; it must be 'episode' or 'step'.")
        if not 0 <= neighbourhood <= 1:
            raise UsageError(f"'neighbourhood' of the agent 'doppler' is {neighbourhood}; it must be in [0, 1].")
        self.greedy, self.passing, self.neighbourhood, self.affinity, self.explore = (
            greedy,
            passing,
            neighbourhood,
            affinity,
            0.0,
        )
        self.teachers = {"imitation": (*teacher_names(), BEST) if place == "learned" else teacher_names()}
        self.network = self._network = Network(width, rounds, progress=passing == "step")
        self._best = Best()
        self._graphs: weakref.WeakKeyDictionary[Problem, Graph] = weakref.WeakKeyDictionary()

    @property
    def config(self) -> Mapping[str, bool | int | float | str]:
        """Arguments that make an agent of the same shape."""
        return {name: getattr(self, name) for name in _OPTIONS}

    def default_stages(self, draw: Draw) -> list[Stage]:
        """Return imitation, then REINFORCE; the paper's third stage is the second one with measured costs."""
        shared: dict[str, Any] = {"learning_rate": 3e-3, "schedule": "linear", "gamma": 1.0}
        return [
            Stage(draw, updates=50, kind="imitation", **shared),
            Stage(draw, updates=250, entropy=0.01, final_entropy=0.0, **shared),
        ]

    def rollout(self, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Trajectory:
        """Place each problem op by op, or a part of its ops anew.

        Raises:
            InfeasibleError: the weights of a problem fit in no way that was found.
        """
        played = [self._play(graph, rows, rng) for graph, rows in self._grouped(instances)]
        valid = np.zeros((max(int(one.learned.sum(axis=1).max()) for one in played), len(instances)), bool)
        visited: list[NDArray[np.int32]] = [np.empty((0, 0), np.int32)] * len(instances)
        for one in played:
            valid[:, one.rows] = np.arange(len(valid))[:, None] < one.learned.sum(axis=1)
            for row, placement in zip(one.rows.tolist(), one.placements, strict=True):
                visited[row] = placement[None]
        return Trajectory(valid, visited, played)

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return minus the cost of the placement, at the last step. The best placements are remembered."""
        rewards = np.zeros(trajectory.valid.shape)
        last = trajectory.valid.sum(axis=0) - 1
        some = np.flatnonzero(last >= 0)
        rewards[last[some], some] = [-costs[row][0] for row in some.tolist()]
        for one in trajectory.decisions:
            met = np.array([costs[row][0] for row in one.rows.tolist()])
            self._best.meet(one.graph.problem, one.placements, met, one.worse or 0.0)
        return rewards

    def score(self, trajectory: Trajectory) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor, Tensor]]:
        """Score decisions: sums of the log-probabilities, and of the entropies, of an op and of its device."""
        for one in trajectory.decisions:
            number = one.learned.cumsum(axis=1) - 1
            for r, t in self._parts(one):
                log, entropy = self._scored(one, one.made, r, t, select=one.worse is None)
                yield number[r, t], one.rows[r], log, entropy

    def loss(
        self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator, teacher: str | None = None
    ) -> Tensor:
        """Return the loss of ``imitation``: the policy acts, and the teacher's answers in the same states are the targets.

        DOPPLER, Appendix J: the mean over decisions of minus the log-probabilities of the teacher's op, and of its device for
        that op, in the states that the policy is in. The teacher ``best`` is the best placement that was met in training: the
        policy chooses the order of ops, and only its devices are compared with that placement.

        Raises:
            UsageError: the kind is not ``imitation``, the teacher does not exist, or no placement has been met yet.
        """
        if kind != "imitation":
            raise UsageError(f"The agent 'doppler' has no training '{kind}'; it has reinforce and imitation.")
        name = teacher or self.teachers[kind][0]
        answering = None if name == BEST else find_teacher(name)
        total, count = torch.zeros(()), 0
        for graph, rows in self._grouped(instances):
            kept = np.repeat(self._best.placement(graph.problem)[None], len(rows), axis=0) if answering is None else None
            one = self._play(graph, rows, rng, kept)
            answers = _replayed(one, answering)
            for r, t in self._parts(one):
                log, _ = self._scored(one, answers, r, t, select=answering is not None)
                total, count = total - log.sum(), count + len(log)
        return total / count

    def greedy_placement(self, problem: Problem) -> NDArray[np.int32]:
        """Return the likeliest placement of both policies, ``int32[V]``. Raises InfeasibleError."""
        instance = ProblemInstance(problem, lambda placements: np.zeros(len(placements)), 1.0)
        ((graph, rows),) = self._grouped([instance])
        placement: NDArray[np.int32] = self._play(graph, rows, None).placements[0]
        return placement

    def meet(self, problem: Problem, placements: NDArray[np.int32], costs: NDArray[np.float64]) -> None:
        """Remember the best of ``int32[S, V]`` placements, of ``float64[S]`` costs."""
        self._best.meet(problem, placements, costs)

    def memory(self) -> Mapping[str, Tensor]:
        """Return the best placements met."""
        return self._best.tensors()

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Restore the best placements from a memory."""
        self._best = Best.of(memory)

    def _grouped(self, instances: Sequence[ProblemInstance]) -> list[tuple[Graph, NDArray[np.intp]]]:
        """Return the graph of each different problem, with the numbers of its instances."""
        rows: dict[Problem, list[int]] = {}
        for number, instance in enumerate(instances):
            rows.setdefault(instance.problem, []).append(number)
        for problem in rows:
            if problem not in self._graphs:
                self._graphs[problem] = Graph.of(problem, affinity=self.affinity)
        return [(self._graphs[problem], np.array(numbers)) for problem, numbers in rows.items()]

    @torch.no_grad()
    def _play(
        self,
        graph: Graph,
        rows: NDArray[np.intp],
        rng: np.random.Generator | None,
        kept: NDArray[np.int32] | None = None,
    ) -> _Played:
        """Play an episode in each row, by the likeliest answers if ``rng`` is None; ops with a device in ``kept`` keep it."""
        problem, count = graph.problem, len(rows)
        size, devices = len(problem), problem.devices
        training, worse = self.network.training and rng is not None, None
        explore = self.explore if training and kept is None else 0.0
        if kept is None:
            kept = np.full((count, size), -1, np.int32)
            if training and rng is not None and self.place == "learned" and rng.random() < self.neighbourhood:
                neighbours = self._best.neighbours(problem, count, rng)
                kept, worse = (kept, None) if neighbours is None else neighbours
        draw = rng is not None and not (self.greedy and training)
        manner = Manner(self.select == "learned", self.place == "learned", draw, explore)
        state, record = EpisodeState(problem, count, graph.tables), Record.empty(count, size, devices)
        seeds = np.zeros(count, np.uint64) if rng is None else rng.integers(2**63, size=count).astype(np.uint64)
        on = np.zeros((count, devices, self.width), np.float32)
        at = (manner, kept, graph.seconds_to_exit, graph.unit, seeds)
        if self.passing == "episode":
            policy = self._network.compiled(self._network.encode(graph), on)
            play(0, size, state.arrays, graph.tables, record, policy, *at)
        else:
            for t in range(size):
                encoded = self._network.encode(graph, _progress(graph, state.placement, state.finish))
                on[:] = device_sums(encoded.placed, state.placement, devices).numpy()
                play(t, t + 1, state.arrays, graph.tables, record, self._network.compiled(encoded, on), *at)
        for row, placement in enumerate(state.placement):
            if not fits(problem, placement):
                state.placement[row] = repair(problem, placement)
        learned = np.ones((count, size), bool) if worse is None else record.decided
        return _Played(graph, rows, record, learned, worse, state.finish, state.placement)

    def _parts(self, one: _Played) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Yield rows and steps that are learned from, in parts that are small enough to be scored at once."""
        r, t = np.nonzero(one.learned)
        size, devices = len(one.graph.problem), one.graph.problem.devices
        each = size * (1 + devices) + devices * self.width
        if self.passing == "step":
            each += 8 * self.width * (size + len(one.graph.problem.edges))
        many = max(1, _NUMBERS_AT_A_TIME // each)
        for first in range(0, len(r), many):
            yield r[first : first + many], t[first : first + many]

    def _scored(
        self, one: _Played, answers: _Answers, r: NDArray[np.intp], t: NDArray[np.intp], *, select: bool
    ) -> tuple[Tensor, Tensor]:
        """Score answers in the states of some episodes at some steps, as the network is now: ``float32[N]`` twice.

        The episodes may have gone on with other answers.
        """
        record, devices = one.record, one.graph.problem.devices
        before = record.at[r] < t[:, None]
        placement = np.where(before, record.chosen[r], -1).astype(np.int32)
        progress = None if self.passing == "episode" else _progress(one.graph, placement, one.finish[r])
        encoded = self._network.encode(one.graph, progress)
        log = entropy = torch.zeros(len(r))
        if self.select == "learned" and select:
            candidates = (record.ready[r] <= t[:, None]) & ~before
            chosen, spread = score_choice(encoded.select.expand(candidates.shape), candidates, answers.ops[r, t])
            log, entropy = log + chosen, entropy + spread
        if self.place == "learned":
            on = device_sums(encoded.placed.squeeze(0), placement, devices)
            node = encoded.node.expand(len(r), -1, -1)[torch.arange(len(r)), torch.from_numpy(answers.ops[r, t])]
            logits = self._network.place(node, on, torch.from_numpy(answers.inputs[r, t]))
            chosen, spread = score_choice(logits, answers.allowed[r, t], answers.devices[r, t])
            log, entropy = log + chosen, entropy + spread
        return log, entropy


def _replayed(one: _Played, teacher: Teacher | None) -> _Answers:
    """Return the teacher's decisions in the states of episodes; without a teacher, the decisions that were made there."""
    problem = one.graph.problem
    state = EpisodeState(problem, len(one.rows), one.graph.tables)
    made = one.made
    answers = made._replace(**{name: np.empty_like(array) for name, array in made._asdict().items()})
    for t in range(len(problem)):
        decided = made.ops[:, t], made.devices[:, t]
        asked = decided if teacher is None else teacher.decide(one.graph, state)
        answers.ops[:, t], answers.devices[:, t] = asked
        see(answers.inputs, answers.allowed, t, answers.ops[:, t], state.arrays, one.graph.tables, one.graph.unit)
        state.place(*decided)
    return answers


def _progress(graph: Graph, placement: NDArray[np.int32], finish: NDArray[np.float64]) -> Progress:
    """Return the progress of episodes, given ``int32[N, V]`` placements with -1 for ops that are not placed."""
    placed = placement >= 0
    ops = np.stack([placed, np.where(placed, finish / graph.unit, 0.0)], axis=2).astype(np.float32)
    tail, head = placement[:, graph.tail.numpy()], placement[:, graph.head.numpy()]
    apart = ((tail >= 0) & (head >= 0) & (tail != head)).astype(np.float32)
    return Progress(torch.from_numpy(ops), torch.from_numpy(apart[..., None]))
