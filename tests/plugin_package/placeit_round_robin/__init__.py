"""A sample plug-in: a placer that deals ops to devices like cards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.placers import CostFunction, option
from placeit.placers.feasibility import repair


@dataclass(frozen=True)
class RoundRobin:
    """Deal ops to devices in topological order, some at a time."""

    hand: int = option(1, "ops that go to a device before it is the next one's turn")

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        placement = np.empty(len(problem), np.int32)
        placement[problem.order] = np.arange(len(problem)) // self.hand % problem.devices
        return repair(problem, placement)
