"""Rewards of agents that improve a placement step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placeit.learning.agent import Trajectory

__all__ = ["savings"]


def savings(trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the reduction in cost by each step, ``float64[T, B]``.

    It is for agents that visit a start placement and then a placement for each decision.

    Args:
        trajectory: the trajectory, in which each problem's decisions are at its first steps, without gaps.
        costs: for each problem ``float64[S]``, costs of the visited placements; NaN if unknown.
    """
    rewards = np.zeros(trajectory.valid.shape)
    with np.errstate(invalid="ignore"):  # between two infeasible placements
        for b, path in enumerate(costs):
            rewards[: len(path) - 1, b] = path[:-1] - path[1:]
    return rewards
