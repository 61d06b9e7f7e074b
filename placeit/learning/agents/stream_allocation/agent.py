"""The agent of the stream allocation: an episode is a whole placement, written op by op in breadth-first order."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit.core.errors import UsageError
from placeit.core.problem import Problem, once_per_problem
from placeit.core.registry import check_size
from placeit.learning.agent import Agent, ProblemInstance, Trajectory
from placeit.learning.agents.choice import draw_choice, log_probabilities, score_choice
from placeit.learning.agents.stream_allocation.network import Encoded, Graphs, Network
from placeit.learning.training.stages import Draw, Stage
from placeit.placers.annealing import Annealing
from placeit.placers.exact import alike
from placeit.placers.feasibility import repair
from placeit.placers.list_scheduling import fastest_devices, levels, mean_compute

__all__ = ["StreamAllocationAgent"]

_FEATURES = 5  # features of an op
_MIN_REWARD = 0.8  # of placements that are remembered
_MAX_REMEMBERED = 8  # placements of a problem
_MIN_COST = 1e-9  # in multiples of the unit, so that a cost of zero has a finite reward


@dataclass(frozen=True, eq=False)
class _Inputs:
    """Features of a problem, with ops in the order in which they are placed.

    Attributes:
        order: ``intp[V]``, the op of each step.
        features: ``float32[V, F]``.
        upstream: ``float32[V, V]``, as in :class:`Graphs`.
        downstream: ``float32[V, V]``.
        devices: ``intp[D]``, devices of the network's outputs: all, or the ones that compute the graph fastest.
        feasible: ``bool[V, D]``.
        rivals: ``bool[D, D]``, for each output the equal devices of earlier outputs, which must be used before it.
    """

    order: NDArray[np.intp]
    features: NDArray[np.float32]
    upstream: NDArray[np.float32]
    downstream: NDArray[np.float32]
    devices: NDArray[np.intp]
    feasible: NDArray[np.bool_]
    rivals: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Decisions:
    """The outputs chosen at each step, ``intp[R, V]``, and the allowed outputs, ``bool[R, V, D]``."""

    problems: Sequence[Problem]
    chosen: NDArray[np.intp]
    allowed: NDArray[np.bool_]


class StreamAllocationAgent(Agent):
    """The graph-aware encoder-decoder (Ni et al. 2020). An episode is one decision: a whole placement.

    The reward is one over the cost in units, which is the throughput relative to its upper bound. In training, good placements
    (with a reward above 0.8) are remembered for each problem, and one episode of each problem in an update repeats one of them.
    Some episodes explore by random placements.

    Differs from the paper: the features of an op are its compute, the tensors that it sends and receives, and its depth, in
    multiples of the seconds per request of each device if the work is shared evenly; of equal devices, only the first unused
    one may be chosen, so that each placement is written in only one way; a device without room is not allowed, and a placement
    that cannot be completed in this way is repaired; by default the agent imitates placements found by simulated annealing.

    Args:
        devices: number of outputs of the network. If a problem has more devices, the ones that compute the graph fastest are
            used, and the others stay empty.
        width: width of embeddings and of the decoder; even. 512 in the paper.
        encoder: ``graph``, or ``lstm`` for the ablation without graph encoding (B of Table 1).
        upstream: whether the decoder reads the devices of the ops upstream (F2 of Table 1).

    Raises:
        UsageError: an argument is out of its range.
    """

    name, version = "stream-allocation", 1
    network: Network

    def __init__(self, devices: int = 5, width: int = 128, encoder: str = "graph", upstream: bool = True) -> None:
        check_size("agent", self.name, "devices", devices, 1, 1000)
        check_size("agent", self.name, "width", width, 2, 4096)
        if width % 2:
            raise UsageError(f"'width' of the agent '{self.name}' is {width}; it must be even.")
        if encoder not in ("graph", "lstm"):
            raise UsageError(f"The agent '{self.name}' has no encoder '{encoder}'; its encoders are graph, lstm.")
        self.devices, self.width, self.encoder, self.upstream = devices, width, encoder, upstream
        self.network = Network(_FEATURES, devices, width, graph=encoder == "graph", upstream=upstream)
        self.explore = 0.0
        self._inputs_of = once_per_problem(functools.partial(_compute_inputs, max_devices=devices))
        self._targets: weakref.WeakKeyDictionary[Problem, NDArray[np.intp]] = weakref.WeakKeyDictionary()
        self._memory: dict[str, list[tuple[float, NDArray[np.intp]]]] = {}

    def default_stages(self, draw: Draw) -> list[Stage]:
        """Return a stage of imitation of simulated annealing.

        Differs from the paper, which uses only REINFORCE, with one graph per update and 100,800 updates (:meth:`reinforce`).
        After imitation, REINFORCE makes the likeliest placement a little better, but the best of several samples worse, since
        samples differ less.
        """
        return [
            Stage(
                draw,
                kind="imitation",
                updates=4000,
                problems=32,
                learning_rate=1e-3,
                schedule="cosine",
                final_learning_rate=1e-4,
                evaluate_every=250,
            )
        ]

    @staticmethod
    def reinforce(draw: Draw, *, updates: int = 1500, problems: int = 32) -> Stage:
        """Return the paper's stage: four episodes per graph, one of them from its memory; their mean is the baseline (Eq. 4).

        Args:
            draw: draws the problems.
            updates: number of updates; 100,800 in the paper.
            problems: problems per update; 1 in the paper.
        """
        return Stage(
            draw,
            updates=updates,
            problems=problems,
            episodes=4,
            learning_rate=2e-4,
            schedule="linear",
            baseline="problem",
            explore=0.05,
            final_explore=0.0,
            evaluate_every=100,
        )

    def rollout(self, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Trajectory:
        """Write a placement for each instance; several instances of one problem are several samples. Raises InfeasibleError."""
        problems = [instance.problem for instance in instances]
        forced: dict[int, NDArray[np.intp] | None] = {}
        if self.network.training:
            if self.explore > 0:
                forced = {int(row): None for row in np.flatnonzero(rng.random(len(problems)) < self.explore)}
            last = {problem: row for row, problem in enumerate(problems)}
            for problem, row in last.items():
                remembered = self._memory.get(problem.key)
                if remembered:
                    forced[row] = remembered[int(rng.integers(len(remembered)))][1]
        decisions = self._decide(problems, rng, forced)
        return Trajectory(np.ones((1, len(problems)), bool), [row[None] for row in self._placements(decisions)], decisions)

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return one over the cost of each placement; remember the good ones."""
        rewards: NDArray[np.float64] = 1.0 / np.maximum(np.stack(costs, axis=1), _MIN_COST)
        decisions: _Decisions = trajectory.decisions
        for problem, chosen, reward in zip(decisions.problems, decisions.chosen, rewards[0].tolist(), strict=True):
            self._remember(problem, chosen, reward)
        return rewards

    def score(self, trajectory: Trajectory) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor, Tensor]]:
        """Score whole placements, by sums over their ops."""
        decisions: _Decisions = trajectory.decisions
        log, entropy = self._score(decisions)
        rows = np.arange(len(decisions.problems))
        yield np.zeros(len(rows), np.intp), rows, log, entropy

    def loss(self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Tensor:
        """Return the loss of ``imitation``: minus the mean log-probability, per op, of placements found by simulated annealing.

        They are computed once for each problem. Raises UsageError for another kind.
        """
        if kind != "imitation":
            raise UsageError(f"The agent '{self.name}' has no training '{kind}'; it has 'imitation' and 'reinforce'.")
        problems = [instance.problem for instance in instances]
        for instance in instances:
            if instance.problem not in self._targets:
                found = Annealing(evaluations=10_000).place(instance.problem, instance.cost, seed=0, evaluations=None)
                self._targets[instance.problem] = self._outputs_of(instance.problem, found)
        forced = {row: self._targets[problem] for row, problem in enumerate(problems)}
        log, _ = self._score(self._decide(problems, rng, forced, draw=False))
        return -(log / torch.tensor([float(len(problem)) for problem in problems])).mean()

    def greedy_placement(self, problem: Problem) -> NDArray[np.int32]:
        """Return the placement in which each op gets the likeliest device in turn, ``int32[V]``. Raises InfeasibleError."""
        return self._placements(self._decide([problem], None, {}))[0]

    def memory(self) -> Mapping[str, Tensor]:
        """Return the remembered placements of each problem, and their rewards."""
        tensors = {}
        for key, placements in self._memory.items():
            tensors[f"{key}.chosen"] = torch.from_numpy(np.stack([chosen for _, chosen in placements]))
            tensors[f"{key}.reward"] = torch.tensor([reward for reward, _ in placements], dtype=torch.float64)
        return tensors

    def meet(self, problem: Problem, placements: NDArray[np.int32], costs: NDArray[np.float64]) -> None:
        """Remember the good ones of ``int32[S, V]`` placements with ``float64[S]`` costs."""
        for placement, cost in zip(placements, costs.tolist(), strict=True):
            if cost < 1.0 / _MIN_REWARD:
                self._remember(problem, self._outputs_of(problem, placement), 1.0 / max(cost, _MIN_COST))

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`memory` returned."""
        self._memory = {}
        for name, rewards in memory.items():
            key, _, part = name.rpartition(".")
            if part == "reward":
                chosen = memory[f"{key}.chosen"].numpy().astype(np.intp)
                self._memory[key] = list(zip(rewards.tolist(), chosen, strict=True))

    def _remember(self, problem: Problem, chosen: NDArray[np.intp], reward: float) -> None:
        """Add a placement, given by its outputs, to the memory if it is good enough and new."""
        chosen = chosen[: len(problem)]
        remembered = self._memory.get(problem.key, [])
        if not reward > _MIN_REWARD or any(np.array_equal(chosen, other) for _, other in remembered):
            return
        best = sorted([*remembered, (reward, chosen.copy())], key=lambda pair: -pair[0])
        self._memory[problem.key] = best[:_MAX_REMEMBERED]

    def _outputs_of(self, problem: Problem, placement: NDArray[np.int32]) -> NDArray[np.intp]:
        """Return the outputs that write a placement, ``intp[V]``; equal devices are used in the order of their outputs.

        An op on a device without an output, as other placers may place it, is written as the first output.
        """
        inputs = self._inputs_of(problem)
        output_of = {int(device): output for output, device in enumerate(inputs.devices)}
        renamed: dict[int, int] = {}
        chosen = np.zeros(len(problem), np.intp)
        for t, op in enumerate(inputs.order.tolist()):
            output = output_of.get(int(placement[op]), 0)
            if output not in renamed:
                equal = [output, *np.flatnonzero(inputs.rivals[output]), *np.flatnonzero(inputs.rivals[:, output])]
                renamed[output] = min(set(map(int, equal)) - set(renamed.values()))
            chosen[t] = renamed[output]
        return chosen

    def _encode(self, problems: Sequence[Problem]) -> Encoded:
        """Encode each distinct problem once; return a row for each element of ``problems``."""
        number = {problem: p for p, problem in enumerate(dict.fromkeys(problems))}
        ops = max(map(len, number))
        features = torch.zeros(len(number), ops, _FEATURES)
        upstream, downstream = torch.zeros(len(number), ops, ops), torch.zeros(len(number), ops, ops)
        lengths = torch.tensor([len(problem) for problem in number])
        for problem, p in number.items():
            inputs, size = self._inputs_of(problem), len(problem)
            features[p, :size] = torch.from_numpy(inputs.features)
            upstream[p, :size, :size] = torch.from_numpy(inputs.upstream)
            downstream[p, :size, :size] = torch.from_numpy(inputs.downstream)
        graphs = Graphs(features, upstream, downstream, torch.arange(ops) >= lengths[:, None], lengths)
        return self.network.encode(graphs).rows(torch.tensor([number[problem] for problem in problems]))

    def _score(self, decisions: _Decisions) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each placement and the entropy of its steps, ``float32[R]``."""
        encoded = self._encode(decisions.problems)
        logits = self.network.steps(encoded, torch.from_numpy(decisions.chosen))
        log, entropy = score_choice(logits, decisions.allowed, decisions.chosen)
        return log.masked_fill(encoded.absent, 0.0).sum(dim=1), entropy.masked_fill(encoded.absent, 0.0).sum(dim=1)

    @torch.no_grad()
    def _decide(
        self,
        problems: Sequence[Problem],
        rng: np.random.Generator | None,
        forced: Mapping[int, NDArray[np.intp] | None],
        *,
        draw: bool = True,
    ) -> _Decisions:
        """Write a placement for each row.

        Args:
            problems: the problem of each row.
            rng: random generator; None for the likeliest outputs.
            forced: outputs of rows whose placement is given; None for a row whose outputs are drawn uniformly.
            draw: False if the placements of all rows are given.
        """
        rows, ops, width = np.arange(len(problems)), max(map(len, problems)), self.devices
        feasible, weight = np.ones((len(rows), ops, width), bool), np.zeros((len(rows), ops))
        rivals, room = np.zeros((len(rows), width, width), bool), np.zeros((len(rows), width))
        chosen = np.zeros((len(rows), ops), np.intp)
        for row, problem in enumerate(problems):
            inputs = self._inputs_of(problem)
            size, devices = len(problem), len(inputs.devices)
            feasible[row, :size] = False
            feasible[row, :size, :devices] = inputs.feasible
            weight[row, :size] = problem.param_bytes[inputs.order]
            rivals[row, :devices, :devices] = inputs.rivals
            room[row, :devices] = problem.memory[inputs.devices]
        uniform = [row for row, outputs in forced.items() if outputs is None]
        given = [row for row, outputs in forced.items() if outputs is not None]
        for row, outputs in forced.items():
            if outputs is not None:
                chosen[row, : len(problems[row])] = outputs
        allowed = np.zeros((len(rows), ops, width), bool)
        used = np.zeros((len(rows), width), bool)
        encoded = self._encode(problems) if draw else None
        state = encoded.state if encoded else None
        for t in range(ops):
            first = feasible[:, t] & ~(rivals & ~used[:, None, :]).any(axis=2)
            with_room = first & (weight[:, t, None] <= room)
            allowed[:, t] = np.where(with_room.any(axis=1, keepdims=True), with_room, first)
            allowed[given, t, chosen[given, t]] = True
            if encoded is not None and state is not None:
                logits, state = self.network.step(encoded, t, torch.from_numpy(chosen), state)
                logits[uniform] = 0.0
                if rng is None:
                    choice = log_probabilities(logits, allowed[:, t]).numpy().argmax(axis=1)
                else:
                    choice = draw_choice(logits, allowed[:, t], rng)
                choice[given] = chosen[given, t]
                chosen[:, t] = choice
            used[rows, chosen[:, t]] = True
            room[rows, chosen[:, t]] -= weight[:, t]
        return _Decisions(problems, chosen, allowed)

    def _placements(self, decisions: _Decisions) -> list[NDArray[np.int32]]:
        """Return the decided placements, repaired where weights do not fit."""
        placements = []
        for problem, chosen in zip(decisions.problems, decisions.chosen, strict=True):
            inputs, placement = self._inputs_of(problem), np.empty(len(problem), np.int32)
            placement[inputs.order] = inputs.devices[np.minimum(chosen[: len(problem)], len(inputs.devices) - 1)]
            placements.append(repair(problem, placement))
        return placements


def _compute_inputs(problem: Problem, max_devices: int) -> _Inputs:
    """Compute the features of a problem for a network with ``max_devices`` outputs."""
    ops, work = len(problem), mean_compute(problem)
    tail, head = problem.edges.T
    depth = levels(problem)
    order = np.argsort(depth, kind="stable")
    step = np.argsort(order)
    devices = np.sort(fastest_devices(problem.compute)[:max_devices]).astype(np.intp)
    links = ~np.eye(problem.devices, dtype=bool)
    latency, pace = (problem.latency[links].mean(), (1.0 / problem.bandwidth[links]).mean()) if links.any() else (0.0, 0.0)
    transfer = latency + problem.edge_bytes * pace
    share = max(float(work.sum()) / len(devices), float(work.max())) or 1.0
    features = np.zeros((ops, _FEATURES))
    features[step, 0] = work / share
    features[step, 1] = np.bincount(tail, transfer, ops) / share
    features[step, 2] = np.bincount(head, transfer, ops) / share
    longest = np.zeros(ops)
    np.maximum.at(longest, tail, transfer)
    features[step, 3] = longest / share
    features[step, 4] = depth / max(1, depth.max())
    features[:, :4] = np.log1p(4.0 * features[:, :4])
    upstream = np.zeros((ops, ops), np.float32)
    upstream[step[head], step[tail]] = 1.0
    downstream = upstream.T.copy()
    feasible = problem.feasible[order][:, devices]
    classes = alike(problem)[devices]
    rivals = np.tril(classes[:, None] == classes[None, :], -1)
    return _Inputs(
        order,
        features.astype(np.float32),
        upstream / np.maximum(1.0, upstream.sum(axis=1, keepdims=True)),
        downstream / np.maximum(1.0, downstream.sum(axis=1, keepdims=True)),
        devices,
        np.where(feasible.any(axis=1, keepdims=True), feasible, True),
        rivals,
    )
