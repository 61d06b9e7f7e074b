"""The best placements that an agent has met, and parts of them to decide about anew (large neighbourhood search; Shaw 1998)."""

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

_MAX_PROBLEMS = 100  # problems whose placements are kept
_LARGEST = 0.25  # largest part, as a share of the ops
_SPREAD = 0.8  # probability that a part grows over an edge
_TOGETHER = 0.3  # probability that a part is moved to one device as a whole
_WORSE = 0.003  # mean of the relative increase in cost up to which the search goes on from a new placement
_BACK = 0.01  # probability that the search goes back to the best placement


class Neighbours(NamedTuple):
    """Placements of which a part is to be decided about anew.

    Attributes:
        kept: ``int32[R, V]``, devices of the ops that stay, or were moved together; -1 for those that are to be placed.
        worse: relative increase in cost, over the placement that they come from, up to which the search goes on from a new one.
    """

    kept: NDArray[np.int32]
    worse: float


class _Met(NamedTuple):
    placement: NDArray[np.int32]
    cost: float


@dataclass(eq=False)
class Best:
    """The best placements of up to a hundred problems, and the ones whose neighbours are tried now, by key of the problem."""

    best: dict[str, _Met] = field(default_factory=dict)
    now: dict[str, _Met] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Best:
        """Restore from tensors that :meth:`tensors` returned."""
        kinds: dict[str, dict[str, _Met]] = {"best": {}, "now": {}}
        for name, row in tensors.items():
            kind, _, key = name.partition(".")
            kinds[kind][key] = _Met(row[1:].numpy().astype(np.int32), float(row[0]))
        return cls(**kinds)

    def tensors(self) -> dict[str, Tensor]:
        """Return ``float64[1 + V]`` for each placement: its cost, then its devices."""
        both = [(f"best.{key}", met) for key, met in self.best.items()] + [(f"now.{key}", met) for key, met in self.now.items()]
        return {name: torch.from_numpy(np.concatenate([[met.cost], met.placement])) for name, met in both}

    def meet(self, problem: Problem, placements: NDArray[np.int32], costs: NDArray[np.float64], worse: float = 0.0) -> None:
        """Take ``int32[R, V]`` placements into account, with ``float64[R]`` costs; NaN for unknown costs."""
        key, known = problem.key, np.flatnonzero(~np.isnan(costs))
        if not len(known) or (key not in self.best and len(self.best) >= _MAX_PROBLEMS):
            return
        least = known[costs[known].argmin()]
        if key not in self.best or costs[least] < self.best[key].cost:
            self.best[key] = _Met(placements[least].copy(), float(costs[least]))
        if key not in self.now:
            self.now[key] = self.best[key]
        others = known[(placements[known] != self.now[key].placement).any(axis=1)]
        if len(others):
            least = others[costs[others].argmin()]
            if costs[least] <= self.now[key].cost * (1.0 + worse):
                self.now[key] = _Met(placements[least].copy(), float(costs[least]))

    def placement(self, problem: Problem) -> NDArray[np.int32]:
        """Return the best placement of a problem. Raises UsageError if none has been met."""
        if problem.key not in self.best:
            raise UsageError(
                "No placement of the problem has been met yet, so there is no best one to imitate: put a stage of 'reinforce' "
                "before it, with the same cost."
            )
        return self.best[problem.key].placement

    def neighbours(self, problem: Problem, count: int, rng: np.random.Generator) -> Neighbours | None:
        """Draw a connected part of the ops for each of ``count`` episodes, to be decided about anew.

        In some episodes the whole part is moved to one device, as far as it can run there. Returns None if no placement of the
        problem has been met, or there is nothing to decide.
        """
        key = problem.key
        if key not in self.now or len(problem) < 2 or problem.devices < 2:
            return None
        if rng.random() < _BACK:
            self.now[key] = self.best[key]
        kept = np.repeat(self.now[key].placement[None], count, axis=0)
        largest = max(2.0, _LARGEST * len(problem))
        for row in kept:
            part = _part(problem, int(np.exp(rng.uniform(0.0, np.log(largest)))), rng)
            together, device = rng.random() < _TOGETHER, int(rng.integers(problem.devices))
            row[part] = np.where(problem.feasible[part, device], device, -1) if together else -1
        return Neighbours(kept, _WORSE * float(rng.exponential()))


def _part(problem: Problem, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw up to ``size`` ops that are connected."""
    into, out, edges = problem.predecessors, problem.successors, problem.edges
    part = [int(rng.integers(len(problem)))]
    met, front = set(part), list(part)
    while front and len(part) < size:
        v = front.pop(int(rng.integers(len(front))))
        before = edges[into.edge[into.ptr[v] : into.ptr[v + 1]], 0]
        after = edges[out.edge[out.ptr[v] : out.ptr[v + 1]], 1]
        for w in rng.permutation(np.concatenate([before, after])).tolist():
            if len(part) < size and w not in met and rng.random() < _SPREAD:
                met.add(w)
                part.append(w)
                front.append(w)
    return np.array(part)
