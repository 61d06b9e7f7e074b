"""HDP's placer (Mirhoseini et al. 2018), the "RNN-based placer" of GiPH: a sequence-to-sequence model writes a placement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from placeit.core.errors import UsageError
from placeit.core.graph import unique_rows
from placeit.core.problem import Problem
from placeit.core.registry import check_size
from placeit.learning.agent import Agent, ProblemInstance, Trajectory
from placeit.learning.agents.attention import AttentionDecoder, State, encode_both_ways
from placeit.learning.agents.choice import draw_choice, score_choice
from placeit.learning.registry import fresh
from placeit.placers.feasibility import repair
from placeit.placers.list_scheduling import mean_compute

__all__ = ["HdpAgent"]

_NUMBERS_AT_A_TIME = 1 << 22  # numbers in memory while placements are scored, about
_MAX_SIZE = 100_000  # of an option
_MAX_WEIGHTS = 100_000_000  # of a network


class _Network(AttentionDecoder):
    """Bi-LSTM encoder over the ops in topological order, and LSTM decoder with attention that writes a device for each op.

    The decoder starts from the encoder's last state, and reads the encoder's output for each op.

    Args:
        inputs: number of features of an op.
        devices: number of outputs.
        hidden: width of the decoder, and of both directions of the encoder together.
    """

    def __init__(self, inputs: int, devices: int, hidden: int) -> None:
        super().__init__(hidden, devices, hidden)
        self.encoder = nn.LSTM(inputs, hidden // 2, bidirectional=True, batch_first=True)


class _Batch:
    """Padded arrays of problems, with ops in topological order; rows with the same problem share its features.

    Attributes:
        which: ``int64[R]``, number of each row's problem among the distinct problems.
        lengths: ``int64[P]``, number of ops of each problem.
        features: ``float32[P, V, F]``.
        feasible: ``bool[P, V, D]``; True in the padding, so that a device can be drawn there.
        weights: ``float64[P, V]``, bytes.
        memory: ``float64[P, D]``, bytes.
    """

    def __init__(self, problems: Sequence[Problem], agent: HdpAgent) -> None:
        numbers = {problem: number for number, problem in enumerate(dict.fromkeys(problems))}
        self.which = np.array([numbers[problem] for problem in problems])
        self.lengths = np.array([len(problem) for problem in numbers])
        shape = (len(numbers), int(self.lengths.max()))
        self.features = np.zeros((*shape, agent.inputs), np.float32)
        self.feasible = np.zeros((*shape, agent.devices), bool)
        self.weights = np.zeros(shape)
        self.memory = np.zeros((len(numbers), agent.devices))
        for problem, number in numbers.items():
            ops, order = len(problem), problem.order
            self.features[number, :ops] = agent.features(problem)
            self.feasible[number, :ops, : problem.devices] = problem.feasible[order]
            self.feasible[number, ops:] = True
            self.weights[number, :ops] = problem.param_bytes[order]
            self.memory[number, : problem.devices] = problem.memory

    def absent(self, rows: NDArray[np.intp]) -> Tensor:
        """Return whether each position is padding, ``bool[R, V]``."""
        return torch.from_numpy(np.arange(self.features.shape[1]) >= self.lengths[self.which[rows]][:, None])


@dataclass(frozen=True, eq=False)
class _Decisions:
    """Devices drawn for the ops in topological order, ``[R, V]``, and the devices that were allowed, ``[R, V, D]``."""

    batch: _Batch
    chosen: NDArray[np.intp]
    allowed: NDArray[np.bool_]


class HdpAgent(Agent):
    """HDP's placer. An episode is one decision: a whole placement, whose reward is minus its cost.

    Features of an op are taken from GiPH, Appendix B.7: one-hot of its hardware requirement (here: of the set of devices that
    can run it), compute, bytes of its out-edges in edge order, and its row of the adjacency matrix in topological order. So the
    size of the network depends on the size of its problems, and it is meant only for the problems on which it was trained, as
    in the paper.

    Differs from the papers: compute is the mean over devices; costs are divided by their means over the problem, and rewards by
    the instance's unit; the decoder also reads the encoder's output for the op that it places; a device without room for the
    op's weights is not allowed. If no device has room, the op goes to any device that can run it, and the whole placement is
    repaired.

    Args:
        ops: maximum number of ops of a problem.
        devices: maximum number of devices.
        degree: maximum number of out-edges of an op.
        types: maximum number of distinct sets of devices that can run an op.
        hidden: width of the network; even.

    Raises:
        UsageError: a size is out of its range.
    """

    name, version = "hdp", 1
    network: _Network

    def __init__(self, ops: int = 100, devices: int = 20, degree: int = 64, types: int = 100, hidden: int = 64) -> None:
        if min(ops, devices, types, hidden) < 1 or degree < 0 or hidden % 2:
            raise UsageError(
                f"The sizes of HDP's network must be positive and its width even; got ops={ops}, devices={devices}, "
                f"degree={degree}, types={types}, hidden={hidden}."
            )
        weights = 4 * hidden * (types + 1 + degree + ops + hidden + 2) + hidden * (devices + 1) // 2
        weights += 4 * hidden * (3 * hidden + 2) + hidden * (3 * hidden + 1) + devices * (hidden + 1)
        sizes = {"ops": ops, "devices": devices, "degree": degree, "types": types, "hidden": hidden}
        for option_name, size in sizes.items():
            check_size("agent", "hdp", option_name, size, 0, _MAX_SIZE)
        if weights > _MAX_WEIGHTS:
            listed = ", ".join(f"{option_name}={size}" for option_name, size in sizes.items())
            raise UsageError(f"A network of HDP with {listed} has {weights:,} weights; the limit is {_MAX_WEIGHTS:,}.")
        self.ops, self.devices, self.degree, self.types, self.hidden = ops, devices, degree, types, hidden
        self.inputs = types + 1 + degree + ops
        self.network = _Network(self.inputs, devices, hidden)

    @classmethod
    def for_problem(cls, problem: Problem, hidden: int, seed: int) -> HdpAgent:
        """Return an untrained agent of the size that a problem needs."""
        ops, devices, degree, types = _sizes(problem)
        return fresh(cls, seed, ops=ops, devices=devices, degree=degree, types=types, hidden=hidden)

    def features(self, problem: Problem) -> NDArray[np.float32]:
        """Return ``float32[V, F]``, the features of each op, in topological order."""
        ops = len(problem)
        rank = np.argsort(problem.order)
        _, kinds = unique_rows(problem.feasible)
        out = problem.successors
        tail, head = rank[problem.edges[out.edge]].T
        number = np.arange(len(tail)) - np.repeat(out.ptr[:-1], np.diff(out.ptr))  # of an edge among its op's out-edges
        features = np.zeros((ops, self.inputs), np.float32)
        features[rank, kinds] = 1.0
        features[rank, self.types] = _relative(mean_compute(problem))
        features[tail, self.types + 1 + number] = _relative(problem.edge_bytes[out.edge])
        features[tail, self.types + 1 + self.degree + head] = 1.0
        return features

    def rollout(self, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Trajectory:
        """Draw a placement for each instance; several instances of one problem are several samples.

        Raises:
            UsageError: a problem is larger than the network.
            InfeasibleError: no feasible placement is found.
        """
        problems = [instance.problem for instance in instances]
        decisions, visited = self._decide(problems, rng), []
        for problem, devices in zip(problems, decisions.chosen, strict=True):
            placement = np.empty(len(problem), np.int32)
            placement[problem.order] = devices[: len(problem)]
            visited.append(repair(problem, placement)[None])
        return Trajectory(np.ones((1, len(problems)), bool), visited, decisions)

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:  # noqa: ARG002
        """Return minus the cost of each placement."""
        return -np.stack(costs, axis=1)

    def score(self, trajectory: Trajectory) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor, Tensor]]:
        """Score whole placements, by sums over their ops; the size of a part is limited by the memory that attention takes.

        The entropy is the sum over ops of the entropy of the op's device, given the devices drawn before. This sum is an
        unbiased estimate of the entropy of the placement.
        """
        decisions: _Decisions = trajectory.decisions
        batch, chosen = decisions.batch, decisions.chosen
        rows, ops = chosen.shape
        before = np.concatenate([np.full((rows, 1), self.devices), chosen[:, :-1]], axis=1)
        size = max(1, _NUMBERS_AT_A_TIME // (ops * max(ops, 8 * self.hidden)))
        for part in np.split(np.arange(rows), range(size, rows, size)):
            encoded, state = self._encode(batch, part)
            absent = batch.absent(part)
            logits, _ = self.network.decode(encoded, encoded, absent, torch.from_numpy(before[part]), state)
            log, entropy = score_choice(logits, decisions.allowed[part], chosen[part])
            log, entropy = log.masked_fill(absent, 0.0).sum(dim=1), entropy.masked_fill(absent, 0.0).sum(dim=1)
            yield np.zeros(len(part), np.intp), part, log, entropy

    def _encode(self, batch: _Batch, rows: NDArray[np.intp]) -> tuple[Tensor, State]:
        """Encode each distinct problem once; return the encoder's output and state for each row."""
        problems, index = np.unique(batch.which[rows], return_inverse=True)
        features, lengths = torch.from_numpy(batch.features[problems]), torch.from_numpy(batch.lengths[problems])
        encoded, state = encode_both_ways(self.network.encoder, features, lengths)
        number = torch.from_numpy(index.reshape(-1))
        return encoded[number], (state[0][:, number], state[1][:, number])

    @torch.no_grad()
    def _decide(self, problems: Sequence[Problem], rng: np.random.Generator) -> _Decisions:
        """Draw a device for each op of each problem. Raises UsageError if a problem is larger than the network."""
        names, limits = ("ops", "devices", "degree", "types"), (self.ops, self.devices, self.degree, self.types)
        for problem in problems:
            for name, size, limit in zip(names, _sizes(problem), limits, strict=True):
                if size > limit:
                    raise UsageError(
                        f"This HDP policy was made for problems with {name} up to {limit}, and one has {size}: its network "
                        f"has the size of its problems. Make it with {name}={size}, or let the placer 'hdp' make its own."
                    )
        batch = _Batch(problems, self)
        rows, ops = np.arange(len(problems)), batch.features.shape[1]
        which = batch.which
        encoded, state = self._encode(batch, rows)
        absent = batch.absent(rows)
        room = batch.memory[which]
        chosen = np.zeros((len(rows), ops), np.intp)
        allowed = np.zeros((len(rows), ops, self.devices), bool)
        before = np.full(len(rows), self.devices)
        for t in range(ops):
            current, previous = encoded[:, t : t + 1], torch.from_numpy(before[:, None])
            logits, state = self.network.decode(current, encoded, absent, previous, state)
            feasible, weight = batch.feasible[which, t], batch.weights[which, t]
            with_room = feasible & (weight[:, None] <= room)
            allowed[:, t] = np.where(with_room.any(axis=1, keepdims=True), with_room, feasible)
            before = chosen[:, t] = draw_choice(logits[:, 0], allowed[:, t], rng)
            room[rows, before] -= weight
        return _Decisions(batch, chosen, allowed)


def _sizes(problem: Problem) -> tuple[int, int, int, int]:
    """Return the numbers of ops, of devices, of out-edges of an op (the maximum), and of distinct sets of feasible devices."""
    types = len(unique_rows(problem.feasible)[0])
    return len(problem), problem.devices, int(np.diff(problem.successors.ptr).max()), types


def _relative(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return costs in multiples of their mean."""
    total = costs.sum()
    return costs * (len(costs) / total) if total > 0 else costs
