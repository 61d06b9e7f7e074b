"""The interface of placers, and the search state that they share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.problem import CostFunction, Problem

__all__ = ["Incumbent", "Measured", "Placer", "RefiningPlacer", "best", "is_over", "option"]

_CHUNK = 1024  # placements that are valued between two checks of the deadline


@runtime_checkable
class Placer(Protocol):
    """Finds a placement for a problem. A placer is a frozen dataclass whose fields are its options."""

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return ``int32[V]``, a feasible placement.

        Args:
            problem: the problem; never changed.
            cost: values placements, in bulk. A heuristic that needs no cost function ignores it.
            seed: seed of all random draws. The same seed gives the same placement, in any process.
            evaluations: maximum number of placements that ``cost`` may value, zero included; None for the placer's default.
            deadline: time by :func:`placeit.core.clock.now` at which to return the best placement so far; None for no limit.
                After the deadline, a placer still returns its first placement.

        Raises:
            InfeasibleError: no feasible placement is found.
        """
        ...


@dataclass(frozen=True, eq=False)
class Measured:
    """Measured placements, at least one.

    Attributes:
        placements: ``int32[N, V]``, the best first; each is feasible.
        values: ``float64[N]``, measured cost of each, in seconds or the unit of the cost function.
    """

    placements: NDArray[np.int32]
    values: NDArray[np.float64]


@runtime_checkable
class RefiningPlacer(Placer, Protocol):
    """A placer that can continue from measured placements.

    If a placer has no ``refine``, ``place`` is called again with the corrected costs.
    """

    def refine(
        self, problem: Problem, cost: CostFunction, measured: Measured, *, seed: int, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return a feasible placement that is worth measuring, ``int32[V]``; a measured one if nothing better was found.

        Args:
            problem: the problem, with costs that measurements have corrected.
            cost: values placements by these costs.
            measured: placements from which to continue, with their measured values.
            seed: seed of all random draws. The same seed gives the same placement, in any process.
            deadline: time by :func:`placeit.core.clock.now` at which to return the best placement so far; None for no limit.

        Raises:
            InfeasibleError: no feasible placement is found.
        """
        ...


def option(default: Any, help: str, *, least: float = -math.inf, most: float = math.inf) -> Any:  # noqa: A002
    """Declare a field of a placer, with its help text for the command line.

    Args:
        default: a bool, int, float or string.
        help: one line: the effect of the option, and its unit.
        least: minimum of a number.
        most: maximum of a number; a search with a larger value would take more memory or time than any machine has.
    """
    return field(default=default, metadata={"help": help, "range": (least, most)})


class Incumbent:
    """Values placements within a budget, and keeps the best one.

    Args:
        cost: values placements.
        evaluations: maximum number of placements to value; None for no limit.
        deadline: deadline of the search, by :func:`placeit.core.clock.now`; None for no limit.

    Attributes:
        placement: ``int32[V]``, the placement with the lowest cost, the first in a tie; the first one offered if none may be
            valued. Not set before the first offer.
        cost: its cost; ``inf`` before anything was valued.
        left: number of placements that may still be valued.
    """

    placement: NDArray[np.int32]

    def __init__(self, cost: CostFunction, evaluations: int | None, deadline: float | None = None) -> None:
        self._cost, self._deadline = cost, deadline
        self.cost = float("inf")
        self.left: float = float("inf") if evaluations is None else evaluations

    @property
    def over(self) -> bool:
        """Whether the search has to end: no evaluations are left, or the deadline has passed."""
        return self.left <= 0 or is_over(self._deadline)

    def offer(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Value ``int32[B, V]`` placements in order while evaluations are left, and return the costs.

        A placement that could not be measured (NaN) costs ``inf``, so that it is never the best.
        """
        if not hasattr(self, "placement"):
            self.placement = placements[0]
        count = int(min(len(placements), self.left))
        if count < 1:
            return np.empty(0)
        costs = np.nan_to_num(self._cost(placements[:count]), nan=np.inf, posinf=np.inf)
        self.left -= count
        lowest = int(np.argmin(costs))
        if costs[lowest] < self.cost:
            self.placement, self.cost = placements[lowest].copy(), float(costs[lowest])
        return costs


def best(
    cost: CostFunction, candidates: NDArray[np.int32], evaluations: int | None, deadline: float | None = None
) -> NDArray[np.int32]:
    """Return the candidate with the lowest cost, the first in a tie.

    Args:
        cost: values placements.
        candidates: ``int32[B, V]``, at least one, the most promising first.
        evaluations: maximum number of candidates to value; with zero, the first candidate is returned.
        deadline: time by :func:`placeit.core.clock.now` at which to stop valuing; None for no limit.
    """
    incumbent = Incumbent(cost, 0 if len(candidates) == 1 else evaluations, deadline)  # a single candidate needs no valuing
    for first in range(0, len(candidates), _CHUNK):
        incumbent.offer(candidates[first : first + _CHUNK])
        if incumbent.over:
            break
    return incumbent.placement


def is_over(deadline: float | None) -> bool:
    """Return whether a deadline has passed; None never passes."""
    return deadline is not None and clock.now() >= deadline
