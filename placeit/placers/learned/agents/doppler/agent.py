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
from placeit.placers.feasibility import fits, repair
from placeit.placers.learned.agent import ProblemInstance, Trajectory
from placeit.placers.learned.agents.choice import draw_choice, score_choice
from placeit.placers.learned.agents.doppler.features import EpisodeState
from placeit.placers.learned.agents.doppler.graph import DEVICE_INPUTS, Graph, allowed
from placeit.placers.learned.agents.doppler.networks import Network
from placeit.placers.learned.agents.doppler.teachers import TEACHERS, Teacher, earliest, find_teacher, longest_to_exit
from placeit.placers.learned.training.stages import Draw, Stage

__all__ = ["DopplerAgent"]

_NUMBERS_AT_A_TIME = 1 << 22
_MOST = {"width": 4096, "rounds": 16}


class _Answers(NamedTuple):
    """What somebody decides in the states of ``R`` episodes, step by step.

    Attributes:
        ops: ``intp[V, R]``, what to place.
        devices: ``intp[V, R]``, where.
        allowed: ``bool[V, R, D]``, where the op can go.
        features: ``float32[V, R, D, 6]`` of the devices.
    """

    ops: NDArray[np.intp]
    devices: NDArray[np.intp]
    allowed: NDArray[np.bool_]
    features: NDArray[np.float32]

    @classmethod
    def empty(cls, ops: int, rows: int, devices: int) -> _Answers:
        """Make room for the answers of whole episodes."""
        numbers, of_devices = (ops, rows), (ops, rows, devices)
        chosen, places = np.empty(numbers, np.intp), np.empty(numbers, np.intp)
        return cls(chosen, places, np.empty(of_devices, bool), np.empty((*of_devices, DEVICE_INPUTS), np.float32))


@dataclass(frozen=True, eq=False)
class _Played:
    """Episodes of one problem.

    Attributes:
        graph: the problem.
        rows: ``intp[R]``, numbers of the episodes in the batch.
        candidates: ``bool[V, R, V]``, what could be placed at each step.
        made: decisions of the policy, which the episodes went on with.
        taught: what the teacher would have done; None without one.
        placements: ``int32[R, V]``.
    """

    graph: Graph
    rows: NDArray[np.intp]
    candidates: NDArray[np.bool_]
    made: _Answers
    taught: _Answers | None
    placements: NDArray[np.int32]


class DopplerAgent:
    """DOPPLER's dual policy: SEL picks an op whose predecessors are placed, PLC its device; the reward is minus the cost.

    In episodes that are learned from, each of the two takes any allowed answer with a probability of ``explore``. Otherwise it
    draws from its policy, or, with ``greedy``, takes what that likes best, as in the paper.

    Differs from the paper: device features have one more, the op's compute there,
    and are in multiples of the time that all devices take for all ops if they share them evenly; a device without room for an
    op's weights is barred. If none has room, the op goes to any that can run it, and the whole placement is repaired.

    Args:
        width: of the network.
        rounds: of message passing.
        select: ``learned``, or ``critical-path``: the op with the longest path to an exit (DOPPLER-PLC in the paper).
        place: ``learned``, or ``earliest-start``: the device where the op can start first (DOPPLER-SEL).
        greedy: whether episodes that are learned from take the likeliest answer unless they explore.

    Attributes:
        teachers: whom ``imitation`` may learn from (:data:`placeit.placers.learned.agents.doppler.teachers.TEACHERS`).
        explore: how often episodes that are learned from take any answer.

    Raises:
        UsageError: an argument out of its range.
    """

    name: ClassVar[str] = "doppler"
    version: ClassVar[int] = 1
    teachers: ClassVar[Mapping[str, Sequence[str]]] = {"imitation": tuple(TEACHERS)}
    network: nn.Module

    def __init__(
        self, width: int = 32, rounds: int = 2, select: str = "learned", place: str = "learned", greedy: bool = False
    ) -> None:
        for option, value in (("width", width), ("rounds", rounds)):
            check_size("agent", "doppler", option, value, 1, _MOST[option])
        for option, given, fixed in (("select", select, "critical-path"), ("place", place, "earliest-start")):
            if given not in ("learned", fixed):
                raise UsageError(f"'{option}' of the agent 'doppler' is '{given}'; it must be 'learned' or '{fixed}'.")
        if select != "learned" and place != "learned":
            raise UsageError("The agent 'doppler' has nothing to learn with both 'select' and 'place' fixed.")
        self.width, self.rounds, self.select, self.place = width, rounds, select, place
        self.greedy, self.explore = greedy, 0.0
        self.network = self._network = Network(width, rounds)
        self._graphs: weakref.WeakKeyDictionary[Problem, Graph] = weakref.WeakKeyDictionary()

    @property
    def config(self) -> Mapping[str, bool | int | float | str]:
        """Arguments that make an agent of the same shape."""
        return {name: getattr(self, name) for name in ("width", "rounds", "select", "place", "greedy")}

    def default_stages(self, draw: Draw) -> list[Stage]:
        """Imitation, then REINFORCE; the paper's third stage is the second one with measured costs."""
        shared: dict[str, Any] = {"learning_rate": 3e-3, "schedule": "linear", "gamma": 1.0}
        return [
            Stage(draw, updates=50, kind="imitation", **shared),
            Stage(draw, updates=250, entropy=0.01, final_entropy=0.0, **shared),
        ]

    def rollout(self, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Trajectory:
        """Place each problem op by op.

        Raises:
            InfeasibleError: the weights of a problem fit in no way that was found.
        """
        played = [self._play(graph, rows, rng) for graph, rows in self._grouped(instances)]
        valid = np.zeros((max(len(one.made.ops) for one in played), len(instances)), bool)
        visited: list[NDArray[np.int32]] = [np.empty((0, 0), np.int32)] * len(instances)
        for one in played:
            valid[: len(one.made.ops), one.rows] = True
            for row, placement in zip(one.rows.tolist(), one.placements, strict=True):
                visited[row] = placement[None]
        return Trajectory(valid, visited, played)

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return minus the cost of the placement, at the last step."""
        rewards = np.zeros(trajectory.valid.shape)
        last = trajectory.valid.sum(axis=0) - 1
        rewards[last, np.arange(len(last))] = [-cost[0] for cost in costs]
        return rewards

    def score(self, trajectory: Trajectory) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor, Tensor]]:
        """Score decisions: sums of the log-probabilities, and of the entropies, of an op and of its device."""
        for one in trajectory.decisions:
            for steps in _parts(one):
                log, entropy = self._scored(one, one.made, steps)
                at = np.repeat(np.arange(steps.start, steps.stop), len(one.rows))
                yield at, np.tile(one.rows, len(at) // len(one.rows)), log.flatten(), entropy.flatten()

    def loss(
        self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator, teacher: str | None = None
    ) -> Tensor:
        """Return the loss of ``imitation``: the policy acts, and the teacher's answer is what it should have been.

        DOPPLER, Appendix J: the mean over decisions of minus the log-probabilities of the teacher's op, and of its device for
        that op, in the state that the policy is in.

        Raises:
            UsageError: another kind, or there is no such teacher.
        """
        if kind != "imitation":
            raise UsageError(f"The agent 'doppler' has no training '{kind}'; it has reinforce and imitation.")
        answering = find_teacher(teacher or self.teachers[kind][0])
        total, count = torch.zeros(()), 0
        for graph, rows in self._grouped(instances):
            one = self._play(graph, rows, rng, answering)
            assert one.taught is not None  # noqa: S101
            for steps in _parts(one):
                log, _ = self._scored(one, one.taught, steps)
                total, count = total - log.sum(), count + log.numel()
        return total / count

    def greedy_placement(self, problem: Problem) -> NDArray[np.int32]:
        """Return the placement, ``int32[V]``, of what both policies like best. Raises InfeasibleError."""
        instance = ProblemInstance(problem, lambda placements: np.zeros(len(placements)), 1.0)
        ((graph, rows),) = self._grouped([instance])
        placement: NDArray[np.int32] = self._play(graph, rows, None).placements[0]
        return placement

    def _grouped(self, instances: Sequence[ProblemInstance]) -> list[tuple[Graph, NDArray[np.intp]]]:
        """Graphs of the different problems, and the numbers of their instances."""
        rows: dict[Problem, list[int]] = {}
        for number, instance in enumerate(instances):
            rows.setdefault(instance.problem, []).append(number)
        for problem in rows:
            if problem not in self._graphs:
                self._graphs[problem] = Graph.of(problem)
        return [(self._graphs[problem], np.array(numbers)) for problem, numbers in rows.items()]

    @torch.no_grad()
    def _play(
        self, graph: Graph, rows: NDArray[np.intp], rng: np.random.Generator | None, teacher: Teacher | None = None
    ) -> _Played:
        """Play an episode in each row; without a generator by the likeliest answers. A teacher is asked at every step."""
        problem, count = graph.problem, len(rows)
        size, devices = len(problem), problem.devices
        encoded, state = self._network.encode(graph), EpisodeState(problem, count)
        select, at = encoded.select.expand(count, -1).numpy(), torch.arange(count)
        placed = torch.zeros(count, devices, self.width)
        explore = self.explore if self.network.training else 0.0
        candidates = np.empty((size, count, size), bool)
        made = _Answers.empty(size, count, devices)
        taught = None if teacher is None else _Answers.empty(size, count, devices)
        for t in range(size):
            candidates[t] = state.candidates
            if teacher is not None and taught is not None:
                ops, chosen = teacher.decide(graph, state)
                _write(taught, t, ops, chosen, allowed(state, ops), graph.device_features(state, ops))
            if self.select == "learned":
                ops = self._drawn(select, state.candidates, explore, rng)
            else:
                ops = longest_to_exit(graph, state)
            able, features = allowed(state, ops), graph.device_features(state, ops)
            if self.place == "learned":
                logits = self._network.place(encoded.node[torch.from_numpy(ops)], placed, torch.from_numpy(features))
                chosen = self._drawn(logits.numpy(), able, explore, rng)
            else:
                chosen = earliest(state, ops, finish=False)
            _write(made, t, ops, chosen, able, features)
            state.place(ops, chosen)
            placed[at, torch.from_numpy(chosen)] += encoded.placed[torch.from_numpy(ops)]
        for row, placement in enumerate(state.placement):
            if not fits(problem, placement):
                state.placement[row] = repair(problem, placement)
        return _Played(graph, rows, candidates, made, taught, state.placement)

    def _drawn(
        self, logits: NDArray[np.float32], able: NDArray[np.bool_], explore: float, rng: np.random.Generator | None
    ) -> NDArray[np.intp]:
        """Decide in each row: ``intp[R]`` of ``float32[R, K]`` logits."""
        best: NDArray[np.intp] = np.where(able, logits, -np.inf).argmax(axis=1)
        if rng is None:
            return best
        chosen = best
        if not (self.greedy and self.network.training):
            chosen = draw_choice(torch.from_numpy(np.array(logits)), able, rng)
        if explore > 0:
            any_of = np.where(able, rng.random(able.shape), -1.0).argmax(axis=1)
            chosen = np.where(rng.random(len(chosen)) < explore, any_of, chosen)
        return chosen

    def _scored(self, played: _Played, answers: _Answers, steps: slice) -> tuple[Tensor, Tensor]:
        """Score answers in the states of some steps, as the network is now: ``float32[T, R]`` twice.

        The episodes may have gone on with other answers.
        """
        encoded = self._network.encode(played.graph)
        log = entropy = torch.zeros(answers.ops[steps].shape)
        if self.select == "learned":
            candidates = played.candidates[steps]
            chosen, spread = score_choice(encoded.select.expand(candidates.shape), candidates, answers.ops[steps])
            log, entropy = log + chosen, entropy + spread
        if self.place == "learned":
            before = slice(0, steps.stop - 1)
            moved = encoded.placed[torch.from_numpy(played.made.ops[before])]
            where = torch.from_numpy(played.made.devices[before])[..., None, None].expand(-1, -1, 1, self.width)
            each = torch.zeros(steps.stop, len(played.rows), played.graph.problem.devices, self.width)
            placed = torch.cat([each[:1], each[1:].scatter(2, where, moved[:, :, None])]).cumsum(0)[steps]
            node, features = encoded.node[torch.from_numpy(answers.ops[steps])], torch.from_numpy(answers.features[steps])
            logits = self._network.place(node, placed, features)
            chosen, spread = score_choice(logits, answers.allowed[steps], answers.devices[steps])
            log, entropy = log + chosen, entropy + spread
        return log, entropy


def _write(
    answers: _Answers,
    t: int,
    ops: NDArray[np.intp],
    devices: NDArray[np.intp],
    able: NDArray[np.bool_],
    features: NDArray[np.float32],
) -> None:
    answers.ops[t], answers.devices[t], answers.allowed[t], answers.features[t] = ops, devices, able, features


def _parts(played: _Played) -> Iterator[slice]:
    """Steps that are scored at a time."""
    steps, rows, size = played.candidates.shape
    each = rows * (size + 64 * played.graph.problem.devices)
    many = max(1, _NUMBERS_AT_A_TIME // each)
    for first in range(0, steps, many):
        yield slice(first, min(steps, first + many))
