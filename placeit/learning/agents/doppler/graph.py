"""The input of DOPPLER's network: the static features of a problem as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit.core.problem import Problem
from placeit.learning.agents.doppler.features import NODE_FEATURES, EpisodeState, Paths, Tables, static_features

__all__ = ["OP_INPUTS", "Graph", "allowed"]

OP_INPUTS = len(NODE_FEATURES)
_T_LEVEL, _B_LEVEL = 3, 4


@dataclass(frozen=True, eq=False)
class Graph:
    """Static features of a problem, as tensors, in relative units that are comparable between graphs.

    Attributes:
        problem: the problem.
        tables: the problem, for compiled code.
        ops: ``float32[V, 5]``, features of D.1: costs in multiples of the mean compute of an op, levels in multiples of the
            longest path.
        edges: ``float32[E, 1]``, communication in the same unit as costs.
        tail: ``int64[E]``, producers.
        head: ``int64[E]``, consumers.
        to_exit: the paper's t-paths.
        to_entry: the paper's b-paths.
        seconds_to_exit: ``float64[V]``, length of the t-path.
        unit: seconds of all ops if all devices share the work evenly: the unit of device features.
    """

    problem: Problem
    tables: Tables
    ops: Tensor
    edges: Tensor
    tail: Tensor
    head: Tensor
    to_exit: Paths
    to_entry: Paths
    seconds_to_exit: NDArray[np.float64]
    unit: float

    @classmethod
    def of(cls, problem: Problem, *, affinity: bool = True) -> Graph:
        """Compute the features of a problem; without ``affinity``, all affinities of ops are zero."""
        static = static_features(problem)
        compute = static.nodes[:, 0]
        scale = np.full(OP_INPUTS, compute.mean() or 1.0)
        scale[[_T_LEVEL, _B_LEVEL]] = static.nodes[:, _T_LEVEL].max() or 1.0
        tail, head = torch.from_numpy(problem.edges.T.astype(np.int64))
        return cls(
            problem,
            Tables.of(problem, near=affinity),
            torch.from_numpy((static.nodes / scale).astype(np.float32)),
            torch.from_numpy((static.edges / scale[0]).astype(np.float32)[:, None]),
            tail,
            head,
            static.to_exit,
            static.to_entry,
            static.nodes[:, _T_LEVEL].copy(),
            float(compute.sum()) / problem.devices or 1.0,
        )


def allowed(state: EpisodeState, ops: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return ``bool[B, D]``: devices that can run a candidate and have room for it; if none has room, all that can run it."""
    able = state.able(ops)
    mask: NDArray[np.bool_] = np.where(able.any(axis=1, keepdims=True), able, state.problem.feasible[ops])
    return mask
