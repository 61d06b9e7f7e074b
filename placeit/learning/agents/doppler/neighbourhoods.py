"""The best placements that an agent has met, and parts of them to place again (large neighbourhood search; Shaw 1998)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit.core.errors import UsageError
from placeit.core.problem import Problem

__all__ = ["Best", "Neighbours"]

_MAX_PROBLEMS = 100  # problems whose placements are remembered
_MAX_PART = 0.25  # size of a part, as a share of the ops
_GROW = 0.8  # probability that a part grows along an edge
_MOVE_TOGETHER = 0.3  # probability that a whole part is moved to one device
_MEAN_TOLERANCE = 0.003  # mean of the relative increase in cost up to which a new placement is accepted
_RESET = 0.01  # probability that the search returns to the best placement


class Neighbours(NamedTuple):
    """Placements, with a part of the ops to place again.

    Attributes:
        kept: ``int32[R, V]``, devices of the ops that stay, or are moved together; -1 for the ops that are to be placed.
        tolerance: relative increase in cost, over the current placement, up to which a new placement is accepted.
    """

    kept: NDArray[np.int32]
    tolerance: float


class _Valued(NamedTuple):
    """A placement with its cost."""

    placement: NDArray[np.int32]
    cost: float


@dataclass(eq=False)
class Best:
    """The best placements of up to a hundred problems, and the current placements of their searches, by key of the problem."""

    best: dict[str, _Valued] = field(default_factory=dict)
    now: dict[str, _Valued] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Best:
        """Restore from tensors that :meth:`tensors` returned."""
        kinds: dict[str, dict[str, _Valued]] = {"best": {}, "now": {}}
        for name, row in tensors.items():
            kind, _, key = name.partition(".")
            kinds[kind][key] = _Valued(row[1:].numpy().astype(np.int32), float(row[0]))
        return cls(**kinds)

    def tensors(self) -> dict[str, Tensor]:
        """Return ``float64[1 + V]`` for each placement: its cost, then its devices."""
        named = {f"best.{key}": valued for key, valued in self.best.items()}
        named |= {f"now.{key}": valued for key, valued in self.now.items()}
        return {name: torch.from_numpy(np.concatenate([[valued.cost], valued.placement])) for name, valued in named.items()}

    def meet(self, problem: Problem, placements: NDArray[np.int32], costs: NDArray[np.float64], tolerance: float = 0.0) -> None:
        """Update the best and the current placement of a problem from ``int32[R, V]`` placements with ``float64[R]`` costs.

        Args:
            problem: the problem.
            placements: the placements.
            costs: their costs; NaN if unknown.
            tolerance: relative increase in cost up to which one of them becomes the current placement.
        """
        key, known = problem.key, np.flatnonzero(~np.isnan(costs))
        if not len(known) or (key not in self.best and len(self.best) >= _MAX_PROBLEMS):
            return
        lowest = known[costs[known].argmin()]
        if key not in self.best or costs[lowest] < self.best[key].cost:
            self.best[key] = _Valued(placements[lowest].copy(), float(costs[lowest]))
        if key not in self.now:
            self.now[key] = self.best[key]
        others = known[(placements[known] != self.now[key].placement).any(axis=1)]
        if len(others):
            lowest = others[costs[others].argmin()]
            if costs[lowest] <= self.now[key].cost * (1.0 + tolerance):
                self.now[key] = _Valued(placements[lowest].copy(), float(costs[lowest]))

    def placement(self, problem: Problem) -> NDArray[np.int32]:
        """Return the best placement of a problem. Raises UsageError if none has been met."""
        if problem.key not in self.best:
            raise UsageError(
                "No placement of the problem has been met yet, so there is no best one to imitate: put a stage of 'reinforce' "
                "before it, with the same cost."
            )
        return self.best[problem.key].placement

    def neighbours(self, problem: Problem, count: int, rng: np.random.Generator) -> Neighbours | None:
        """Draw a connected part of the ops for each of ``count`` episodes, which is to be placed again.

        In some episodes the whole part is moved to one device, except for ops that cannot run there. Returns None if no
        placement of the problem has been met, or if the problem has a single op or device.
        """
        key = problem.key
        if key not in self.now or len(problem) < 2 or problem.devices < 2:
            return None
        if rng.random() < _RESET:
            self.now[key] = self.best[key]
        kept = np.repeat(self.now[key].placement[None], count, axis=0)
        max_size = max(2.0, _MAX_PART * len(problem))
        for row in kept:
            part = _connected_part(problem, int(np.exp(rng.uniform(0.0, np.log(max_size)))), rng)
            together, device = rng.random() < _MOVE_TOGETHER, int(rng.integers(problem.devices))
            row[part] = np.where(problem.feasible[part, device], device, -1) if together else -1
        return Neighbours(kept, _MEAN_TOLERANCE * float(rng.exponential()))


def _connected_part(problem: Problem, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw up to ``size`` connected ops."""
    part = [int(rng.integers(len(problem)))]
    seen, frontier = set(part), list(part)
    while frontier and len(part) < size:
        v = frontier.pop(int(rng.integers(len(frontier))))
        before, after = problem.edges[problem.predecessors.row(v), 0], problem.edges[problem.successors.row(v), 1]
        for w in rng.permutation(np.concatenate([before, after])).tolist():
            if len(part) < size and w not in seen and rng.random() < _GROW:
                seen.add(w)
                part.append(w)
                frontier.append(w)
    return np.array(part)
