"""HSDAG's agent: an episode is a fixed number of whole placements, each with a new grouping of the ops."""

from __future__ import annotations

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
from placeit.learning.agents.choice import check_devices, draw_choice, log_probabilities, score_choice
from placeit.learning.agents.hsdag.features import node_features, pairs
from placeit.learning.agents.hsdag.networks import Network
from placeit.learning.agents.hsdag.parsing import Parsing, parse, pool, score_edges, spread
from placeit.learning.training.stages import Draw, Stage
from placeit.placers.feasibility import repair

__all__ = ["HsdagAgent"]

_MAX_OPTIONS = {"devices": 10_000, "width": 4096, "steps": 1000, "min_groups": 10_000, "max_groups": 10_000}
_ABLATIONS: Mapping[str, Sequence[str]] = {
    "output_shape": ("output shape",),
    "node_id": ("position",),
    "structure": ("in-degree", "out-degree", "fractal dimension"),
}
_OPS_AT_A_TIME = 1 << 13  # ops of the placements that are scored at once, about
_MIN_SCORE = 1e-6  # added to each score, so that the scores of a group never sum to zero
_MIN_COST = 1e-9  # in multiples of the unit, so that a cost of zero has a finite reward


@dataclass(frozen=True, eq=False)
class _Batch:
    """Problems as one disjoint graph.

    Attributes:
        problems: ``B`` problems.
        features: ``float32[N, WIDTH]``, features of all ops.
        edges: ``int64[E, 2]``, producer and consumer.
        first_op: ``intp[B + 1]``, number of each problem's first op, then the number of ops.
        first_edge: ``intp[B + 1]``, number of each problem's first edge, then the number of edges.
        able: ``bool[N, D]``, whether a device can run an op.
        weights: ``float64[N]``, bytes of an op's weights.
        memory: ``float64[B, D]``, memory of a problem's devices in bytes.
    """

    problems: Sequence[Problem]
    features: Tensor
    edges: NDArray[np.int64]
    first_op: NDArray[np.intp]
    first_edge: NDArray[np.intp]
    able: NDArray[np.bool_]
    weights: NDArray[np.float64]
    memory: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Step:
    """A step of all episodes.

    Attributes:
        update: ``float32[N, W]``, term from earlier steps: the mean over these steps of the embeddings of the ops' groups.
        present: ``bool[E]``, edges that are not dropped.
        parsing: groups of all problems, concatenated.
        owner: ``intp[G]``, the episode of each group.
        allowed: ``bool[G, D]``, devices that are allowed for a group.
        chosen: ``intp[G]``, the device of a group.
    """

    update: Tensor
    present: NDArray[np.bool_]
    parsing: Parsing
    owner: NDArray[np.intp]
    allowed: NDArray[np.bool_]
    chosen: NDArray[np.intp]


class HsdagAgent(Agent):
    """HSDAG's policy: groups by the scores of edges, and a device for each group (Duan et al. 2024).

    Each step of an episode is a whole placement: ops are encoded, every op keeps one edge, connected ops form a group, and the
    mean of a group's embeddings decides its device. Then the embedding of its group is added to each op's embedding, which
    makes the state of the next step (section 2.5). The reward of a step is one over the cost of its placement. Edges are
    dropped only in training episodes.

    Differs from the paper: in the mean of a group, an op is weighted by the score of the edge that it keeps, so that scores
    have gradients if edges are not drawn; the mean over earlier steps is added to an op, since their sum would soon dominate
    the op's own embedding; the number of groups has bounds; a group goes only to devices that can run all its ops, if there are
    any, and a placement that does not fit is repaired. Like Placeto, the policy has an output for each device, so devices are
    distinguished by their numbers only, and problems with fewer devices use the first outputs.

    Args:
        devices: number of outputs of the network, which is the maximum number of devices of a problem.
        width: width of the network's layers.
        steps: steps of an episode.
        dropout: share of the edges that messages do not use, in training episodes.
        min_groups: minimum number of groups, if a problem has as many ops.
        max_groups: maximum number of groups, unless a graph has more connected components.
        sample_edges: whether the edge that an op keeps is drawn in proportion to scores, so that groups have a probability;
            otherwise it is the edge with the highest score.
        symmetric: whether an edge and its reverse are equal, as in the public code: messages go both ways, and an edge's score
            does not depend on its direction.
        output_shape: whether the policy reads output shapes; like the next two options, an ablation of Table 3.
        node_id: whether the policy reads positions in topological order.
        structure: whether the policy reads degrees and fractal dimensions.

    Raises:
        UsageError: an argument is out of its range, or PyTorch Geometric is not installed.
    """

    name, version = "hsdag", 1
    network: Network

    def __init__(
        self,
        devices: int = 8,
        width: int = 128,
        steps: int = 20,
        dropout: float = 0.2,
        min_groups: int = 8,
        max_groups: int = 64,
        sample_edges: bool = False,
        symmetric: bool = False,
        output_shape: bool = True,
        node_id: bool = True,
        structure: bool = True,
    ) -> None:
        self.devices, self.width, self.steps, self.dropout = devices, width, steps, dropout
        self.min_groups, self.max_groups, self.sample_edges = min_groups, max_groups, sample_edges
        self.symmetric = symmetric
        self.output_shape, self.node_id, self.structure = output_shape, node_id, structure
        for option, maximum in _MAX_OPTIONS.items():
            check_size("agent", "hsdag", option, getattr(self, option), 1, maximum)
        check_size("agent", "hsdag", "dropout", dropout, 0, 1)
        if min_groups > max_groups:
            raise UsageError(
                f"The agent 'hsdag' is to make at least {min_groups} and at most {max_groups} groups: 'min_groups' must "
                "not be more than 'max_groups'."
            )
        without = [name for option, names in _ABLATIONS.items() if not getattr(self, option) for name in names]
        self.network = Network(width, devices, symmetric=symmetric)
        self._inputs = once_per_problem(
            lambda problem: (torch.from_numpy(node_features(problem, without)), pairs(problem).astype(np.int64))
        )

    def default_stages(self, draw: Draw) -> list[Stage]:
        """Return a stage of REINFORCE by Eq. 14: the value of a step is its own reward; 4 epochs per update (Table 6).

        Differs from the paper: rewards are normalised over an update, of 4 episodes and not one; there is an entropy bonus,
        which falls to zero, and without which the policy soon prefers one device; gamma, which the paper does not give, is 1;
        the learning rate is 0.001, not 0.0001.
        """
        return [
            Stage(
                draw,
                updates=100,
                problems=1,
                episodes=4,
                epochs=4,
                learning_rate=1e-3,
                gamma=1.0,
                reward_to_go=False,
                baseline="none",
                normalize=True,
                entropy=0.1,
                final_entropy=0.0,
                evaluate_every=5,
            )
        ]

    def rollout(self, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Trajectory:
        """Play an episode of each problem, in which each step is a placement.

        Raises:
            UsageError: a problem has more devices than the network has outputs.
            InfeasibleError: no feasible placement is found.
        """
        batch = self._batch([instance.problem for instance in instances])
        steps, placements = self._play(batch, rng)
        valid = np.ones((self.steps, len(instances)), bool)
        return Trajectory(valid, placements, (batch, steps))

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:  # noqa: ARG002
        """Return one over the cost of each step's placement, in multiples of the unit (section 2.5)."""
        rewards: NDArray[np.float64] = 1.0 / np.maximum(np.stack(costs, axis=1), _MIN_COST)
        return rewards

    def score(self, trajectory: Trajectory) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor, Tensor]]:
        """Score placements, by sums over groups, and over ops whose edges were drawn.

        Groups, dropped edges and terms from earlier steps are taken from the episode, since they are its states.
        """
        batch, steps = trajectory.decisions
        problems, ops = len(batch.problems), len(batch.features)
        count = max(1, _OPS_AT_A_TIME // ops)
        for first in range(0, len(steps), count):
            part = steps[first : first + count]
            repeated, step = self._batch([*batch.problems] * len(part)), _joined(part, batch)
            embedding, log_scores = self._encode(repeated, step.update, step.present)
            pooled = self._pool(embedding, log_scores, step.parsing)
            log, entropy = score_choice(self.network.devices(pooled), step.allowed, step.chosen)
            placements = len(part) * problems
            log, entropy = (_sums(values, step.owner, placements) for values in (log, entropy))
            if self.sample_edges:
                owner = np.repeat(np.arange(placements), np.diff(repeated.first_op))
                edge_log, edge_entropy = score_edges(log_scores, repeated.edges, step.parsing.kept)
                log = log + _sums(edge_log, owner, placements)
                entropy = entropy + _sums(edge_entropy, owner, placements)
            numbers = np.repeat(np.arange(first, first + len(part)), problems)
            yield numbers, np.tile(np.arange(problems), len(part)), log, entropy

    def greedy_placements(self, problem: Problem) -> NDArray[np.int32]:
        """Return the placements of an episode of likeliest decisions, ``int32[steps, V]``.

        Raises:
            UsageError: the problem has more devices than the network has outputs.
            InfeasibleError: no feasible placement is found.
        """
        return self._play(self._batch([problem]), None)[1][0]

    def greedy_placement(self, problem: Problem) -> NDArray[np.int32]:
        """Return the first of :meth:`greedy_placements`, ``int32[V]``. Raises the same errors as that method."""
        first: NDArray[np.int32] = self.greedy_placements(problem)[0]
        return first

    def _batch(self, problems: Sequence[Problem]) -> _Batch:
        """Return problems as one disjoint graph. Raises UsageError if a problem has too many devices."""
        check_devices("HSDAG", self.devices, problems)
        inputs = [self._inputs(problem) for problem in problems]
        first_op, first_edge = (np.cumsum([0, *(len(arrays[part]) for arrays in inputs)]) for part in (0, 1))
        able, memory = np.zeros((first_op[-1], self.devices), bool), np.zeros((len(problems), self.devices))
        for b, problem in enumerate(problems):
            able[first_op[b] : first_op[b + 1], : problem.devices] = problem.feasible
            memory[b, : problem.devices] = problem.memory
        return _Batch(
            problems,
            torch.cat([features for features, _ in inputs]),
            np.concatenate([edges + first for (_, edges), first in zip(inputs, first_op[:-1], strict=True)]),
            first_op,
            first_edge,
            able,
            np.concatenate([problem.param_bytes for problem in problems]),
            memory,
        )

    def _encode(self, batch: _Batch, update: Tensor, present: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        """Return embeddings of ops, and logarithms of edge scores."""
        problem = torch.from_numpy(np.repeat(np.arange(len(batch.problems)), np.diff(batch.first_op)))
        embedding = self.network.encode(batch.features, update, torch.from_numpy(batch.edges[present]), problem)
        return embedding, self.network.log_scores(embedding, torch.from_numpy(batch.edges))

    def _pool(self, embedding: Tensor, log_scores: Tensor, parsing: Parsing) -> Tensor:
        """Return each group's mean embedding, ``float32[G, W]``; an op's weight is the score of the edge that it keeps."""
        keeping = np.flatnonzero(parsing.kept >= 0)
        scores = log_scores[torch.from_numpy(parsing.kept[keeping]), None].exp() + _MIN_SCORE
        weight = embedding.new_ones(len(embedding), 1).index_copy(0, torch.from_numpy(keeping), scores)
        total = pool(weight, parsing.group, parsing.count)
        return pool(embedding * weight, parsing.group, parsing.count) / total

    @torch.no_grad()
    def _play(self, batch: _Batch, rng: np.random.Generator | None) -> tuple[list[_Step], list[NDArray[np.int32]]]:
        """Play an episode of each problem, by likeliest decisions if ``rng`` is None; return the steps and the placements."""
        dropout = self.dropout if self.network.training and rng is not None else 0.0
        placements = [np.empty((self.steps, len(problem)), np.int32) for problem in batch.problems]
        update = torch.zeros(len(batch.features), self.width)
        steps = []
        for t in range(self.steps):
            present = np.ones(len(batch.edges), bool)
            if rng is not None and dropout > 0:
                present = rng.random(len(batch.edges)) >= dropout
            embedding, log_scores = self._encode(batch, update, present)
            parsing, owner = self._parse(batch, log_scores.numpy(), rng if self.sample_edges else None)
            pooled = self._pool(embedding, log_scores, parsing)
            logits, allowed = self.network.devices(pooled), self._allowed(batch, parsing, owner)
            if rng is None:
                chosen = log_probabilities(logits, allowed).numpy().argmax(axis=1)
            else:
                chosen = draw_choice(logits, allowed, rng)
            steps.append(_Step(update, present, parsing, owner, allowed, chosen))
            devices = chosen[parsing.group].astype(np.int32)
            for b, problem in enumerate(batch.problems):
                placements[b][t] = repair(problem, devices[batch.first_op[b] : batch.first_op[b + 1]])
            update = (t * update + spread(pooled, parsing.group)) / (t + 1)
        return steps, placements

    def _parse(
        self, batch: _Batch, log_scores: NDArray[np.float32], rng: np.random.Generator | None
    ) -> tuple[Parsing, NDArray[np.intp]]:
        """Group the ops of each problem; return the groups of all problems, and the number of each group's problem."""
        parsings = []
        for b, problem in enumerate(batch.problems):
            edges = slice(batch.first_edge[b], batch.first_edge[b + 1])
            ends, ops = batch.edges[edges] - batch.first_op[b], len(problem)
            min_groups = min(self.min_groups, ops)
            parsings.append(parse(log_scores[edges], ends, ops, min_groups=min_groups, max_groups=self.max_groups, rng=rng))
        return _united(parsings, batch.first_edge), np.repeat(np.arange(len(parsings)), [one.count for one in parsings])

    def _allowed(self, batch: _Batch, parsing: Parsing, owner: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return ``bool[G, D]``: devices that can run a group and have room for it; if there are none, devices for a part."""
        size = np.bincount(parsing.group, minlength=parsing.count)
        runs = np.stack(
            [np.bincount(parsing.group, weights=column, minlength=parsing.count) for column in batch.able.T], axis=1
        )
        weights = np.bincount(parsing.group, weights=batch.weights, minlength=parsing.count)
        fitting = (runs == size[:, None]) & (weights[:, None] <= batch.memory[owner])
        allowed: NDArray[np.bool_] = np.where(fitting.any(axis=1, keepdims=True), fitting, runs > 0)
        return allowed


def _sums(values: Tensor, owner: NDArray[np.intp], count: int) -> Tensor:
    """Return the sum of the values of each owner, ``[count]``."""
    return values.new_zeros(count).index_add(0, torch.from_numpy(owner), values)


def _joined(steps: Sequence[_Step], batch: _Batch) -> _Step:
    """Concatenate ``T`` steps of ``B`` episodes into one step of ``T * B`` episodes."""
    parsing = _united([step.parsing for step in steps], np.arange(len(steps)) * len(batch.edges))
    return _Step(
        torch.cat([step.update for step in steps]),
        np.concatenate([step.present for step in steps]),
        parsing,
        np.concatenate([step.owner + i * len(batch.problems) for i, step in enumerate(steps)]),
        np.concatenate([step.allowed for step in steps]),
        np.concatenate([step.chosen for step in steps]),
    )


def _united(parsings: Sequence[Parsing], first_edge: NDArray[np.intp]) -> Parsing:
    """Concatenate partitions of graphs into a partition of their disjoint union; ``first_edge`` numbers each graph's edges."""
    first = np.cumsum([0, *(one.count for one in parsings)])
    group = np.concatenate([one.group + offset for one, offset in zip(parsings, first[:-1], strict=True)])
    kept = [np.where(one.kept < 0, -1, one.kept + offset) for one, offset in zip(parsings, first_edge, strict=False)]
    return Parsing(group, int(first[-1]), np.concatenate(kept))
