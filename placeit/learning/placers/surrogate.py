"""A placer that selects the placements to measure during a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import CostFunction, Problem
from placeit.placers.annealing import Annealing

if TYPE_CHECKING:
    from placeit.optimizer.search import Search

__all__ = ["Surrogate"]


@dataclass(frozen=True)
class Surrogate:
    """Measures the placements that a learned model of the machine expects to be best, in a few runs each, before the decision.

    The model is a calibrated simulator with a learned correction. Measuring takes place in ``optimize`` only; elsewhere this
    is the placer ``annealing``.
    """

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the placement of ``annealing`` with its default options."""
        return Annealing().place(problem, cost, seed=seed, evaluations=evaluations, deadline=deadline)

    def explore(self, search: Search) -> None:
        """Measure placements during a search; see :func:`placeit.learning.exploring.explore`."""
        from placeit.learning.exploring import explore

        explore(search)
