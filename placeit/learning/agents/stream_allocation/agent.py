"""The agent of the stream allocation: an episode is a whole placement, written op by op in breadth-first order."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.core.registry import check_size
from placeit.learning.agent import ProblemInstance, Trajectory
from placeit.learning.agents.choice import draw_choice, log_probabilities, score_choice
from placeit.learning.agents.stream_allocation.network import Encoded, Graphs, Network
from placeit.learning.training.stages import Draw, Stage
from placeit.placers.annealing import Annealing
from placeit.placers.exact import alike
from placeit.placers.feasibility import fits, repair
from placeit.placers.list_scheduling import mean_compute

__all__ = ["StreamAllocationAgent"]

_FEATURES = 5
_GOOD = 0.8
_KEPT = 8
_MIN_COST = 1e-9  # in multiples of the unit: a problem in which nothing takes time has a reward, too


@dataclass(frozen=True, eq=False)
class _Seen:
    """Features of a problem, with ops in the order in which they are placed.

    Attributes:
        order: ``intp[V]``, the op of each step.
        features: ``float32[V, F]``.
        upstream: ``float32[V, V]``, as in :class:`Graphs`.
        downstream: ``float32[V, V]``.
        devices: ``intp[D]``, devices that the network's outputs stand for: all, or the ones that compute the graph fastest.
        feasible: ``bool[V, D]``.
        rivals: ``bool[D, D]``, equal devices with lower numbers: a device stays empty as long as one of its rivals is.
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
    """Outputs chosen at each step, ``intp[R, V]``, and the outputs that were allowed, ``bool[R, V, D]``."""

    problems: Sequence[Problem]
    chosen: NDArray[np.intp]
    allowed: NDArray[np.bool_]


class StreamAllocationAgent:
    """The graph-aware encoder-decoder (Ni et al. 2020). An episode is one decision: a whole placement.

    The reward is one over the cost in units: the relative throughput at the highest rate that could be hoped for. In training,
    a placement that was good (reward above 0.8) is kept in a memory of its problem, and one episode of each problem in an
    update repeats one of them; episodes explore by drawing placements at random.

    Differs from the paper: an op is described by its compute, by the tensors that it sends and receives, and by its depth, in
    multiples of the seconds that one request would take of each device if work were shared out evenly; of equal devices, only
    the first empty one may be chosen, so that each placement is written in one way only; a device without room is barred, and a
    placement that cannot be completed so is repaired; by default it learns by imitation of placements that simulated annealing
    found.

    Args:
        devices: outputs of the network. Of more devices, the ones that compute the graph fastest are used; the rest stay empty.
        width: of embeddings and of the decoder; even. 512 in the paper.
        encoder: ``graph``, or ``lstm`` for the ablation without graph encoding (B of Table 1).
        upstream: whether the decoder sees the devices of the ops upstream (F2 of Table 1).

    Raises:
        UsageError: an argument out of its range.
    """

    name: ClassVar[str] = "stream-allocation"
    version: ClassVar[int] = 1
    network: nn.Module

    def __init__(self, devices: int = 5, width: int = 128, encoder: str = "graph", upstream: bool = True) -> None:
        check_size("agent", self.name, "devices", devices, 1, 1000)
        check_size("agent", self.name, "width", width, 2, 4096)
        if width % 2:
            raise UsageError(f"'width' of the agent '{self.name}' is {width}; it must be even.")
        if encoder not in ("graph", "lstm"):
            raise UsageError(f"The agent '{self.name}' has no encoder '{encoder}'; its encoders are graph, lstm.")
        self.devices, self.width, self.encoder, self.upstream = devices, width, encoder, upstream
        self.network = self._network = Network(_FEATURES, devices, width, graph=encoder == "graph", upstream=upstream)
        self.explore = 0.0
        self._seen: weakref.WeakKeyDictionary[Problem, _Seen] = weakref.WeakKeyDictionary()
        self._taught: weakref.WeakKeyDictionary[Problem, NDArray[np.intp]] = weakref.WeakKeyDictionary()
        self._memory: dict[str, list[tuple[float, NDArray[np.intp]]]] = {}

    @property
    def config(self) -> Mapping[str, bool | int | float | str]:
        """Arguments that make an agent of the same shape."""
        return {name: getattr(self, name) for name in ("devices", "width", "encoder", "upstream")}

    def default_stages(self, draw: Draw) -> list[Stage]:
        """Return a stage of imitation of simulated annealing.

        Differs from the paper, which learns by REINFORCE alone, with a graph an update and 100,800 updates (:meth:`reinforce`).
        After imitation, REINFORCE makes the placement that the policy likes best a little better and the best of several
        samples worse, as these differ less.
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
        """Return the paper's stage: up to four episodes of a graph, one from its memory, compared with their mean (Eq. 4).

        Args:
            draw: gives the problems.
            updates: 100,800 in the paper.
            problems: of an update, 1 in the paper.
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
        """Write a placement of each problem; several instances with one problem are several samples.

        Raises:
            InfeasibleError: the weights of a problem fit in no way that was found.
        """
        problems = [instance.problem for instance in instances]
        forced: dict[int, NDArray[np.intp] | None] = {}
        if self.network.training:
            if self.explore > 0:
                forced = {int(row): None for row in np.flatnonzero(rng.random(len(problems)) < self.explore)}
            last = {problem: row for row, problem in enumerate(problems)}
            for problem, row in last.items():
                kept = self._memory.get(problem.key)
                if kept:
                    forced[row] = kept[int(rng.integers(len(kept)))][1]
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
        """Score whole placements: sums over their ops."""
        decisions: _Decisions = trajectory.decisions
        log, entropy = self._score(decisions)
        rows = np.arange(len(decisions.problems))
        yield np.zeros(len(rows), np.intp), rows, log, entropy

    def loss(self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Tensor:
        """Return minus the mean log-probability, per op, of placements that simulated annealing finds (``imitation``).

        They are found once for each problem. Raises UsageError for another kind.
        """
        if kind != "imitation":
            raise UsageError(f"The agent '{self.name}' has no training '{kind}'; it has 'imitation' and 'reinforce'.")
        problems = [instance.problem for instance in instances]
        for instance in instances:
            if instance.problem not in self._taught:
                found = Annealing(evaluations=10_000).place(instance.problem, instance.cost, seed=0, evaluations=None)
                self._taught[instance.problem] = self._written(instance.problem, found)
        forced = {row: self._taught[problem] for row, problem in enumerate(problems)}
        log, _ = self._score(self._decide(problems, rng, forced, draw=False))
        return -(log / torch.tensor([float(len(problem)) for problem in problems])).mean()

    def greedy_placement(self, problem: Problem) -> NDArray[np.int32]:
        """Return the placement whose devices are the likeliest one by one, ``int32[V]``. Raises InfeasibleError."""
        return self._placements(self._decide([problem], None, {}))[0]

    def memory(self) -> Mapping[str, Tensor]:
        """Return the good placements of each problem, and their rewards."""
        kept = {}
        for key, placements in self._memory.items():
            kept[f"{key}.chosen"] = torch.from_numpy(np.stack([chosen for _, chosen in placements]))
            kept[f"{key}.reward"] = torch.tensor([reward for reward, _ in placements], dtype=torch.float64)
        return kept

    def meet(self, problem: Problem, placements: NDArray[np.int32], costs: NDArray[np.float64]) -> None:
        """Remember placements that are good."""
        for placement, cost in zip(placements, costs.tolist(), strict=True):
            if cost < 1.0 / _GOOD:
                self._remember(problem, self._written(problem, placement), 1.0 / max(cost, _MIN_COST))

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`memory` returned."""
        self._memory = {}
        for name, rewards in memory.items():
            key, _, part = name.rpartition(".")
            if part == "reward":
                chosen = memory[f"{key}.chosen"].numpy().astype(np.intp)
                self._memory[key] = list(zip(rewards.tolist(), chosen, strict=True))

    def _remember(self, problem: Problem, chosen: NDArray[np.intp], reward: float) -> None:
        chosen = chosen[: len(problem)]
        kept = self._memory.get(problem.key, [])
        if not reward > _GOOD or any(np.array_equal(chosen, other) for _, other in kept):
            return
        best = sorted([*kept, (reward, chosen.copy())], key=lambda one: -one[0])
        self._memory[problem.key] = best[:_KEPT]

    def _written(self, problem: Problem, placement: NDArray[np.int32]) -> NDArray[np.intp]:
        """Return the outputs, ``intp[V]``, that write a placement; equal devices are numbered in the order of their first op.

        An op on a device without an output, as other placers may leave it, is written as the first output.
        """
        seen = self._see(problem)
        number = {int(device): output for output, device in enumerate(seen.devices)}
        name: dict[int, int] = {}
        chosen = np.zeros(len(problem), np.intp)
        for t, op in enumerate(seen.order.tolist()):
            output = number.get(int(placement[op]), 0)
            if output not in name:
                family = [output, *np.flatnonzero(seen.rivals[output]), *np.flatnonzero(seen.rivals[:, output])]
                name[output] = min(set(map(int, family)) - set(name.values()))
            chosen[t] = name[output]
        return chosen

    def _see(self, problem: Problem) -> _Seen:
        known = self._seen.get(problem)
        if known is None:
            known = self._seen[problem] = _look_at(problem, self.devices)
        return known

    def _encode(self, problems: Sequence[Problem]) -> Encoded:
        """Encode each different problem once; return a row for each element of ``problems``."""
        number = {problem: p for p, problem in enumerate(dict.fromkeys(problems))}
        ops = max(map(len, number))
        features = torch.zeros(len(number), ops, _FEATURES)
        upstream, downstream = torch.zeros(len(number), ops, ops), torch.zeros(len(number), ops, ops)
        lengths = torch.tensor([len(problem) for problem in number])
        for problem, p in number.items():
            seen, size = self._see(problem), len(problem)
            features[p, :size] = torch.from_numpy(seen.features)
            upstream[p, :size, :size] = torch.from_numpy(seen.upstream)
            downstream[p, :size, :size] = torch.from_numpy(seen.downstream)
        graphs = Graphs(features, upstream, downstream, torch.arange(ops) >= lengths[:, None], lengths)
        return self._network.encode(graphs).rows(torch.tensor([number[problem] for problem in problems]))

    def _score(self, decisions: _Decisions) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each placement and the entropy of its steps, ``float32[R]``."""
        encoded = self._encode(decisions.problems)
        logits = self._network.steps(encoded, torch.from_numpy(decisions.chosen))
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
        """Write placements.

        Args:
            problems: one for each row.
            rng: generator to draw from; None to take the likeliest outputs.
            forced: outputs of rows that are given, by row; None for a row that is drawn at random.
            draw: False if all rows are given.
        """
        seen = [self._see(problem) for problem in problems]
        rows, ops, width = np.arange(len(problems)), max(map(len, problems)), self.devices
        feasible, weight = np.ones((len(rows), ops, width), bool), np.zeros((len(rows), ops))
        rivals, room = np.zeros((len(rows), width, width), bool), np.zeros((len(rows), width))
        chosen = np.zeros((len(rows), ops), np.intp)
        for row, (problem, one) in enumerate(zip(problems, seen, strict=True)):
            size, devices = len(problem), len(one.devices)
            feasible[row, :size] = False
            feasible[row, :size, :devices] = one.feasible
            weight[row, :size] = problem.param_bytes[one.order]
            rivals[row, :devices, :devices] = one.rivals
            room[row, :devices] = problem.memory[one.devices]
        random = [row for row, how in forced.items() if how is None]
        written = {row: how for row, how in forced.items() if how is not None}
        given = list(written)
        for row, how in written.items():
            chosen[row, : len(problems[row])] = how
        allowed = np.zeros((len(rows), ops, width), bool)
        used = np.zeros((len(rows), width), bool)
        encoded = self._encode(problems) if draw else None
        state = encoded.state if encoded else None
        for t in range(ops):
            first = feasible[:, t] & ~(rivals & ~used[:, None, :]).any(axis=2)
            roomy = first & (weight[:, t, None] <= room)
            allowed[:, t] = np.where(roomy.any(axis=1, keepdims=True), roomy, first)
            allowed[given, t, chosen[given, t]] = True
            if encoded is not None and state is not None:
                logits, state = self._network.step(encoded, t, torch.from_numpy(chosen), state)
                logits[random] = 0.0
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
        placements = []
        for problem, chosen in zip(decisions.problems, decisions.chosen, strict=True):
            seen, placement = self._see(problem), np.empty(len(problem), np.int32)
            placement[seen.order] = seen.devices[np.minimum(chosen[: len(problem)], len(seen.devices) - 1)]
            placements.append(placement if fits(problem, placement) else repair(problem, placement))
        return placements


def _look_at(problem: Problem, most: int) -> _Seen:
    ops, work = len(problem), mean_compute(problem)
    tail, head = problem.edges.T
    depth = np.zeros(ops, np.int64)
    for v in problem.order.tolist():
        before = tail[problem.predecessors.edge[problem.predecessors.ptr[v] : problem.predecessors.ptr[v + 1]]]
        depth[v] = 1 + depth[before].max(initial=-1)
    order = np.argsort(depth, kind="stable")
    step = np.empty(ops, np.intp)
    step[order] = np.arange(ops)
    missing = (~problem.feasible).sum(axis=0)
    fast = np.lexsort((np.where(problem.feasible, problem.compute, 0.0).sum(axis=0), missing))[:most]
    devices = np.sort(fast)
    off = ~np.eye(problem.devices, dtype=bool)
    latency, pace = (0.0, 0.0) if not off.any() else (problem.latency[off].mean(), (1.0 / problem.bandwidth[off]).mean())
    moving = latency + problem.edge_bytes * pace
    share = max(float(work.sum()) / len(devices), float(work.max())) or 1.0
    features = np.zeros((ops, _FEATURES))
    features[step, 0] = work / share
    features[step, 1] = np.bincount(tail, moving, ops) / share
    features[step, 2] = np.bincount(head, moving, ops) / share
    widest = np.zeros(ops)
    np.maximum.at(widest, tail, moving)
    features[step, 3] = widest / share
    features[step, 4] = depth / max(1, depth.max())
    features[:, :4] = np.log1p(4.0 * features[:, :4])
    upstream = np.zeros((ops, ops), np.float32)
    upstream[step[head], step[tail]] = 1.0
    downstream = upstream.T.copy()
    feasible = problem.feasible[order][:, devices]
    family = alike(problem)[devices]
    rivals = np.tril(family[:, None] == family[None, :], -1)
    return _Seen(
        order,
        features.astype(np.float32),
        upstream / np.maximum(1.0, upstream.sum(axis=1, keepdims=True)),
        downstream / np.maximum(1.0, downstream.sum(axis=1, keepdims=True)),
        devices,
        np.where(feasible.any(axis=1, keepdims=True), feasible, True),
        rivals,
    )
