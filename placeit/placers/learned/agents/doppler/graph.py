"""A problem as DOPPLER's network reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit.core.problem import Problem
from placeit.placers.learned.agents.doppler.features import DEVICE_FEATURES, NODE_FEATURES, EpisodeState, Paths, static_features

__all__ = ["DEVICE_INPUTS", "OP_INPUTS", "Graph"]

OP_INPUTS, DEVICE_INPUTS = len(NODE_FEATURES), len(DEVICE_FEATURES) + 1
_T_LEVEL, _B_LEVEL = 3, 4
EARLIEST_START = 4


@dataclass(frozen=True, eq=False)
class Graph:
    """Static features of a problem, as tensors, in units that make another graph look alike.

    Attributes:
        problem: the problem.
        ops: ``float32[V, 5]``, features of D.1: costs in multiples of the mean compute of an op, levels in multiples of the
            longest path.
        edges: ``float32[E, 1]``, communication in the same unit as costs.
        tail: ``int64[E]``, producers.
        head: ``int64[E]``, consumers.
        to_exit: the paper's t-paths.
        to_entry: the paper's b-paths.
        seconds_to_exit: ``float64[V]``, length of the t-path.
        unit: seconds that all devices take for all ops if they share them evenly: the unit of device features.
    """

    problem: Problem
    ops: Tensor
    edges: Tensor
    tail: Tensor
    head: Tensor
    to_exit: Paths
    to_entry: Paths
    seconds_to_exit: NDArray[np.float64]
    unit: float

    @classmethod
    def of(cls, problem: Problem) -> Graph:
        """Compute the features of a problem."""
        static = static_features(problem)
        compute = static.nodes[:, 0]
        scale = np.full(OP_INPUTS, compute.mean() or 1.0)
        scale[[_T_LEVEL, _B_LEVEL]] = static.nodes[:, _T_LEVEL].max() or 1.0
        tail, head = torch.from_numpy(problem.edges.T.astype(np.int64))
        return cls(
            problem,
            torch.from_numpy((static.nodes / scale).astype(np.float32)),
            torch.from_numpy((static.edges / scale[0]).astype(np.float32)[:, None]),
            tail,
            head,
            static.to_exit,
            static.to_entry,
            static.nodes[:, _T_LEVEL],
            float(compute.sum()) / problem.devices or 1.0,
        )

    def device_features(self, state: EpisodeState, ops: NDArray[np.intp]) -> NDArray[np.float32]:
        """Features of the devices for a candidate of each episode, ``float32[B, D, 6]``.

        Those of D.2, in multiples of :attr:`unit`, and, for devices that are not alike, the op's compute there; zero where it
        cannot run.
        """
        compute = np.where(self.problem.feasible, self.problem.compute, 0.0)[ops]
        features = np.concatenate([state.features(ops), compute[..., None]], axis=2)
        return (features / self.unit).astype(np.float32)


def allowed(state: EpisodeState, ops: NDArray[np.intp]) -> NDArray[np.bool_]:
    """``bool[B, D]``, devices that can run a candidate and have room for it; if none has room, all that can run it."""
    able = state.able(ops)
    there: NDArray[np.bool_] = np.where(able.any(axis=1, keepdims=True), able, state.problem.feasible[ops])
    return there
