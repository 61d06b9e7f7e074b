"""Inputs of DOPPLER's policies (Yao et al., *DOPPLER*, Appendix D): static features of ops, dynamic features of devices.

**Terms.** In the paper, an op's t-path runs from the op to an *exit*, and its b-path to an *entry* (section 5.2). Elsewhere in
placeit, as in the literature on list scheduling, the b-level is the length of the path to an exit. So the paper's t-level is
called b-level elsewhere.

Differs from the paper: costs are seconds, not floating-point operations and bytes times a factor. Static features do not depend
on devices, and use HEFT's mean costs (:mod:`placeit.placers.list_scheduling`). The state of an episode uses the costs on the
devices that were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from placeit import _core
from placeit.core.errors import PlacementError
from placeit.core.problem import Problem
from placeit.core.problem_checks import cannot_run
from placeit.placers.list_scheduling import downward_ranks, mean_comm, mean_compute, upward_ranks
from placeit.simulator.tables import compiled

__all__ = [
    "DEVICE_FEATURES",
    "HOPS",
    "NODE_FEATURES",
    "EpisodeState",
    "Paths",
    "StaticFeatures",
    "device_sums",
    "path_sums",
    "static_features",
]

NODE_FEATURES = ("compute", "incoming communication", "outgoing communication", "t-level", "b-level")
"""Columns of the static features (D.1), seconds."""
DEVICE_FEATURES = ("load", "load of predecessors", "first start of inputs", "last end of inputs", "earliest start")
"""Columns of the dynamic features (D.2), seconds."""
HOPS = 4
"""Longest walk that counts in the affinity of ops, in edges."""


class Paths(NamedTuple):
    """A path from each op of a graph, as pairs of an op and a member of its path; the op itself is the first member.

    Attributes:
        op: ``int64[N]``, the op at which the path starts.
        member: ``int64[N]``, an op on the path.
    """

    op: NDArray[np.int64]
    member: NDArray[np.int64]

    @property
    def longest(self) -> int:
        """Number of ops on the longest path."""
        return int(np.bincount(self.op, minlength=1).max())


@dataclass(frozen=True, eq=False)
class StaticFeatures:
    """Features of a graph before anything is placed.

    Attributes:
        nodes: ``float64[V, 5]``, :data:`NODE_FEATURES`.
        edges: ``float64[E]``, mean seconds to move the tensor of an edge.
        to_exit: the longest path from each op to an exit: the paper's t-path.
        to_entry: the longest path from each op back to an entry: the paper's b-path.
    """

    nodes: NDArray[np.float64]
    edges: NDArray[np.float64]
    to_exit: Paths
    to_entry: Paths


def static_features(problem: Problem) -> StaticFeatures:
    """Compute the features of D.1. Among several longest paths, the path along the first edge in ``problem.edges`` is used.

    Levels include the op's own seconds, since both paths start with it. Every edge counts, even if several carry one tensor.
    """
    seconds, comm = mean_compute(problem), mean_comm(problem)
    tails, heads = problem.edges[:, 0], problem.edges[:, 1]
    incoming, outgoing = (np.bincount(ends, comm, len(problem)) for ends in (heads, tails))
    to_exit, to_entry = upward_ranks(problem), downward_ranks(problem) + seconds
    after = _longest_neighbour(tails, heads, comm + to_exit[heads], len(problem))
    before = _longest_neighbour(heads, tails, comm + to_entry[tails], len(problem))
    nodes = np.stack([seconds, incoming, outgoing, to_exit, to_entry], axis=1)
    return StaticFeatures(nodes, comm, _paths(after), _paths(before))


def _longest_neighbour(
    ops: NDArray[np.int32], others: NDArray[np.int32], length: NDArray[np.float64], count: int
) -> NDArray[np.int64]:
    """Return each op's neighbour along its longest edge, the first in a tie; -1 for an op without edges."""
    following = np.full(count, -1, np.int64)
    order = np.lexsort((-np.arange(len(ops)), length))  # the last write wins: the longest edge, the first in a tie
    following[ops[order]] = others[order]
    return following


def _paths(following: NDArray[np.int64]) -> Paths:
    """Return the path from each op, given the op that follows each op on it; -1 at the end."""
    op = member = np.arange(len(following))
    pairs = []
    while len(op):
        pairs.append((op, member))
        member = following[member]
        op, member = op[member >= 0], member[member >= 0]
    found = np.concatenate([np.stack(pair) for pair in pairs], axis=1) if pairs else np.empty((2, 0), np.int64)
    return Paths(found[0], found[1])


def path_sums(embeddings: Tensor, paths: Paths) -> Tensor:
    """Sum the embeddings of the ops along each op's path (section 5.2); gradients flow.

    Args:
        embeddings: ``[..., V, F]``.
        paths: of the graph.

    Returns:
        ``[..., V, F]``.
    """
    op, member = (torch.from_numpy(numbers).to(embeddings.device) for numbers in paths)
    return torch.zeros_like(embeddings).index_add(-2, op, embeddings.index_select(-2, member))


def device_sums(embeddings: Tensor, placement: NDArray[np.int32], devices: int) -> Tensor:
    """Sum the embeddings of the ops that are placed on each device (section 5.2); gradients flow.

    Args:
        embeddings: ``[V, F]``, shared by all episodes, or ``[B, V, F]``.
        placement: ``int32[B, V]``, -1 for ops that are not placed yet.
        devices: number of devices, ``D``.

    Returns:
        ``[B, D, F]``.
    """
    on = torch.from_numpy(placement[:, None, :] == np.arange(devices)[None, :, None])
    return on.to(embeddings) @ embeddings


def affinity(problem: Problem) -> _core.Affinity:
    """Compute the probability that a random walk of 1 to :data:`HOPS` edges, in either direction, leads from an op to another.

    A walk follows an edge with a probability in proportion to its mean transfer time. If no transfer takes time, all edges are
    equally likely. Probabilities below 0.001 are left out, and so are walks that return to their start.

    Returns:
        Rows of a sparse matrix: ``ptr``, ``int64[V + 1]``, the start of each op's row; ``op``, ``int64[N]``, the ops from which
        walks reach the row's op; ``share``, ``float32[N, HOPS]``, the share of their walks that end at the row's op.
    """
    count, comm = len(problem), mean_comm(problem)
    weights = comm if comm.any() else np.ones(len(comm))
    tails, heads = problem.edges.T.astype(np.int64)
    start, end = np.concatenate([tails, heads]), np.concatenate([heads, tails])
    order = np.argsort(start, kind="stable")
    ptr = np.searchsorted(start[order], np.arange(count + 1))
    weight = np.concatenate([weights, weights])[order]
    total = np.bincount(start[order], weight, count)[start[order]]
    probability = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    return _core.affinity(ptr, end[order], probability)


class Tables(NamedTuple):
    """A problem as compiled code reads it, with the :func:`affinity` of its ops."""

    problem: _core.Tables
    affinity: _core.Affinity

    @classmethod
    def of(cls, problem: Problem, *, near: bool = True) -> Tables:
        """Compute the affinity of a problem's ops; with ``near=False``, all affinities are zero."""
        if near:
            return cls(compiled(problem), affinity(problem))
        return cls(compiled(problem), _core.affinity(np.zeros(len(problem) + 1, np.int64), np.empty(0, np.int64), np.empty(0)))


class Arrays(NamedTuple):
    """The attributes of an :class:`EpisodeState` for compiled code.

    In addition, ``waiting``, ``int32[B, V]``, is the number of inputs of an op whose producers are not placed.
    """

    placement: NDArray[np.int32]
    candidates: NDArray[np.bool_]
    waiting: NDArray[np.int32]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    load: NDArray[np.float64]
    free: NDArray[np.float64]
    used: NDArray[np.float64]
    near: NDArray[np.float32]


class EpisodeState:
    """State of episodes on one problem: placements so far, and start and finish times by a list scheduler's estimate.

    An op starts when all ops that were placed earlier on its device, or on a conflicting device, have ended, and its inputs
    have arrived over links without contention. :class:`placeit.placers.critical_path.CriticalPath` uses the same estimate.

    Args:
        problem: the problem.
        episodes: number of episodes, ``B``.
        tables: tables of the problem; None to compute them.

    Attributes:
        placement: ``int32[B, V]``, -1 where an op is not placed yet.
        candidates: ``bool[B, V]``, ops that are not placed, but whose predecessors are.
        start: ``float64[B, V]``, seconds, of ops that are placed.
        finish: ``float64[B, V]``, seconds.
        load: ``float64[B, D]``, seconds of all ops on a device.
        free: ``float64[B, D]``, time at which all ops on a device, and on devices that conflict with it, have ended.
        used: ``float64[B, D]``, bytes of weights on a device.
        near: ``float32[B, D, V, HOPS]``, sum of the :func:`affinity` of each op to the ops on a device.
    """

    def __init__(self, problem: Problem, episodes: int, tables: Tables | None = None) -> None:
        ops, devices = len(problem), problem.devices
        self.problem = problem
        self.tables = Tables.of(problem) if tables is None else tables
        self.placement = np.full((episodes, ops), -1, np.int32)
        waiting = np.repeat(np.diff(problem.predecessors.ptr).astype(np.int32)[None], episodes, axis=0)
        self.candidates = waiting == 0
        self.start, self.finish = np.zeros((episodes, ops)), np.zeros((episodes, ops))
        self.load, self.free, self.used = (np.zeros((episodes, devices)) for _ in range(3))
        self.near = np.zeros((episodes, devices, ops, HOPS), np.float32)
        at = (self.placement, self.candidates, waiting, self.start, self.finish, self.load, self.free, self.used, self.near)
        self.arrays = Arrays(*at)

    def __len__(self) -> int:
        return len(self.placement)

    def features(self, ops: ArrayLike) -> NDArray[np.float64]:
        """Compute the features of D.2 of all devices for a candidate of each episode.

        Starts and ends of inputs cover the op's predecessors on the device; both are zero if it has no predecessor there.

        Args:
            ops: ``int[B]``.

        Returns:
            ``float64[B, D, 5]``, :data:`DEVICE_FEATURES`.

        Raises:
            PlacementError: an op is no candidate of its episode.
        """
        features = np.zeros((len(self), self.problem.devices, len(DEVICE_FEATURES)))
        _core.device_features(*self.tables, self.arrays, self._checked(ops), features)
        return features

    def able(self, ops: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each device can run a candidate of each episode and has room for its weights: ``bool[B, D]``.

        Raises:
            PlacementError: an op is no candidate of its episode.
        """
        chosen = self._checked(ops)
        fits: NDArray[np.bool_] = self.used + self.problem.param_bytes[chosen][:, None] <= self.problem.memory
        return fits & self.problem.feasible[chosen]

    def place(self, ops: ArrayLike, devices: ArrayLike) -> None:
        """Place a candidate of each episode.

        Args:
            ops: ``int[B]``.
            devices: ``int[B]``.

        Raises:
            PlacementError: an op is no candidate of its episode, or a device cannot run it; then no op is placed.
        """
        chosen, on = self._checked(ops), np.asarray(devices).astype(np.int64)
        if on.shape != chosen.shape or on.min(initial=0) < 0 or on.max(initial=0) >= self.problem.devices:
            raise PlacementError(f"Expected a device number of 0..{self.problem.devices - 1} for each of {len(self)} episodes.")
        for b in np.flatnonzero(~self.problem.feasible[chosen, on]):
            problem, v = self.problem, chosen[b]
            raise cannot_run(problem.op_names[v], on[b], problem.feasible[v], problem.device_names)
        _core.place_ops(*self.tables, self.arrays, chosen, on)

    def _checked(self, ops: ArrayLike) -> NDArray[np.int64]:
        """Return ops as an array after checking that each is a candidate of its episode. Raises PlacementError."""
        chosen = np.asarray(ops).astype(np.int64)
        if chosen.shape != (len(self),) or chosen.min(initial=0) < 0 or chosen.max(initial=0) >= len(self.problem):
            raise PlacementError(f"Expected an op number of 0..{len(self.problem) - 1} for each of {len(self)} episodes.")
        for b in np.flatnonzero(~self.candidates[np.arange(len(self)), chosen]):
            why = "is placed already" if self.placement[b, chosen[b]] >= 0 else "reads what is not placed yet"
            raise PlacementError(f"Op '{self.problem.op_names[chosen[b]]}' is no candidate of episode {b}: it {why}.")
        return chosen
