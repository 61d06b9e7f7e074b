"""What a placer is, and the registry that finds one by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.problem import Problem

__all__ = ["CostFunction", "Placer"]

CostFunction: TypeAlias = Callable[[NDArray[np.int32]], NDArray[np.float64]]
"""``cost(placements: int32[B, V]) -> float64[B]``, seconds. A simulator and a measured executor look the same."""


class Placer(Protocol):
    """Finds a placement for a problem. A placer is a frozen dataclass whose fields are its options."""

    def place(self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None) -> NDArray[np.int32]:
        """Return ``int32[V]``, a feasible placement.

        Args:
            problem: the problem; never changed.
            cost: values placements, in bulk; a heuristic that needs no cost function ignores it.
            seed: the same seed gives the same placement, in any process.
            evaluations: most placements that ``cost`` may be asked about; None for the placer's own default.
        """
        ...
