"""Input arrays of Placeto's network for several problems at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit.core.problem import Problem, once_per_problem
from placeit.placers.list_scheduling import mean_compute

__all__ = ["FEATURES", "SUMMARIES", "Batch"]

FEATURES = 5
"""Number of features of an op: mean compute time, mean output bytes, device, whether it is the current op, and whether it is
placed (GiPH, Appendix B.7)."""
SUMMARIES = 4
"""Number of summaries of a state: over the current op, its ancestors, its descendants, and the other ops."""


@dataclass(frozen=True, eq=False)
class _StaticFeatures:
    """Features of a problem that do not depend on the placement.

    Attributes:
        costs: ``float32[V, 2]``, mean compute time and mean bytes of an out-edge, in multiples of their means over the graph.
        rank: ``int64[V]``, position of an op in the order of visits.
        relation: ``uint8[V, V]``, relation of an op (column) to the op that is being placed (row): 0 the op itself, 1 an
            ancestor, 2 a descendant, 3 neither.
    """

    costs: NDArray[np.float32]
    rank: NDArray[np.int64]
    relation: NDArray[np.uint8]


@once_per_problem
def _static_features(problem: Problem) -> _StaticFeatures:
    ops = len(problem)
    tails = problem.edges[:, 0]
    size = np.bincount(tails, problem.edge_bytes, ops) / np.maximum(np.bincount(tails, minlength=ops), 1)
    costs = np.stack([mean_compute(problem), size], axis=1)
    mean = costs.mean(axis=0)
    relative = (costs / np.where(mean > 0, mean, 1.0)).astype(np.float32)
    return _StaticFeatures(relative, np.argsort(problem.order), _relation(problem))


def _relation(problem: Problem) -> NDArray[np.uint8]:
    """Return the relation between all pairs of ops, ``uint8[V, V]``; see :class:`_StaticFeatures`."""
    above = np.zeros((len(problem), len(problem)), bool)
    for v in problem.order.tolist():
        before = problem.edges[problem.predecessors.row(v), 0]
        above[v] = above[before].any(axis=0)
        above[v, before] = True
    relation = np.full(above.shape, 3, np.uint8)
    relation[above], relation[above.T] = 1, 2
    np.fill_diagonal(relation, 0)
    return relation


class Batch:
    """Problems as one disjoint graph with ``B`` rows; rows with the same problem share its data.

    Args:
        problems: the problem of each row.
        devices: number of outputs of the network.

    Attributes:
        sizes: ``int64[B]``, number of ops of each row.
        first: ``int64[B]``, index of each row's first op in a placement of all rows, ``int32[N]``.
    """

    def __init__(self, problems: Sequence[Problem], devices: int) -> None:
        numbers = {problem: number for number, problem in enumerate(dict.fromkeys(problems))}
        static = [_static_features(problem) for problem in numbers]
        ops = np.array([len(problem) for problem in numbers])
        self._which = np.array([numbers[problem] for problem in problems])
        self._devices = devices
        self._edge_count = np.array([len(problem.edges) for problem in numbers])
        self._node_start, self._edge_start, self._relation_start = _starts(ops), _starts(self._edge_count), _starts(ops**2)
        self._costs = np.concatenate([features.costs for features in static])
        self._rank = np.concatenate([features.rank for features in static])
        self._order = np.concatenate([problem.order for problem in numbers]).astype(np.int64)
        self._relation = np.concatenate([features.relation.ravel() for features in static])
        self._edges = np.concatenate([problem.edges for problem in numbers]).astype(np.int64)
        self._feasible = np.zeros((ops.sum(), devices), bool)
        self._memory = np.full((len(numbers), devices), np.inf)
        for problem, number in numbers.items():
            begin = self._node_start[number]
            self._feasible[begin : begin + len(problem), : problem.devices] = problem.feasible
            self._memory[number, : problem.devices] = problem.memory
        self._weights = np.concatenate([problem.param_bytes for problem in numbers])
        self.sizes = ops[self._which]
        self.first = _starts(self.sizes)
        self._nodes = _ranges(self._node_start[self._which], self.sizes)
        self._row = np.repeat(np.arange(len(problems)), self.sizes)

    def op(self, steps: NDArray[np.intp], rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the op that each row places at a step; after its last op, a row starts again with its first."""
        ops: NDArray[np.int64] = self._order[self._node_start[self._which[rows]] + steps % self.sizes[rows]]
        return ops

    def allowed(self, placement: NDArray[np.int32], ops: NDArray[np.int64], rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return ``bool[S, D]``: devices that can run an op and have room for it; its current device is always allowed."""
        which = self._which[rows]
        nodes = self._node_start[which] + ops
        used = np.bincount(
            self._row * self._devices + placement, self._weights[self._nodes], len(self._which) * self._devices
        ).reshape(-1, self._devices)
        able: NDArray[np.bool_] = self._feasible[nodes] & (used[rows] + self._weights[nodes, None] <= self._memory[which])
        able[np.arange(len(rows)), placement[self.first[rows] + ops]] = True
        return able

    def states(self, path: NDArray[np.int32], steps: NDArray[np.intp], rows: NDArray[np.intp]) -> tuple[Tensor, ...]:
        """Return the network's inputs for rows at steps.

        Args:
            path: ``int32[T, N]``, the placements before each step.
            steps: ``intp[S]``.
            rows: ``intp[S]``.
        """
        which, sizes = self._which[rows], self.sizes[rows]
        state = np.repeat(np.arange(len(rows)), sizes)
        nodes = _ranges(self._node_start[which], sizes)
        relation = self._relation[_ranges(self._relation_start[which] + self.op(steps, rows) * sizes, sizes)]
        features = np.empty((len(nodes), FEATURES), np.float32)
        features[:, :2] = self._costs[nodes]
        # one number, as in the paper; a device has the same number whatever the number of devices
        features[:, 2] = (path[steps[state], _ranges(self.first[rows], sizes)] + 1) / self._devices
        features[:, 3] = relation == 0
        features[:, 4] = self._rank[nodes] < (steps % sizes)[state]
        count = self._edge_count[which]
        edges = self._edges[_ranges(self._edge_start[which], count)] + np.repeat(_starts(sizes), count)[:, None]
        tail, head = torch.from_numpy(edges.T.copy())
        return torch.from_numpy(features), tail, head, torch.from_numpy(SUMMARIES * state + relation)


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.cumsum(counts) - counts


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the concatenated ranges from ``starts[i]`` to ``starts[i] + counts[i]``."""
    return np.repeat(starts - _starts(counts), counts) + np.arange(counts.sum())
