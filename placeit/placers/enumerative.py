"""EnumerativeOptimizer: spread the shards of each tensor op over the devices with the fewest transfers."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import option
from placeit.placers.feasibility import fits, repair

__all__ = ["Enumerative", "parallel_sets"]

_CUT = re.compile(r"\[[^\[\]]*\]")
_TIE = 1e-9  # weight of a device's work compared with transfers: it decides only between equal transfers


@dataclass(frozen=True)
class Enumerative:
    """Spread the shards of each tensor op over the devices, where their inputs take least time to get; a baseline of DOPPLER.

    Yao et al., *DOPPLER*, Appendix A and Algorithm 4. Meta-ops come in topological order; of each, first the shards are placed
    and then the ops that combine their results. All ways to spread such a set evenly over the devices are enumerated, and the
    one with the least sum of transfer times is taken. Neither the time of ops nor the ops that read the results count.

    Sets are recognized by the names of ops (:func:`parallel_sets`) of tensor programs. In any other model
    each op is a set by itself and follows its inputs, so this placer has little to gain there.

    Differs from the paper, which has as many shards as devices: of ``n`` ops a device gets at most ``n / D``, rounded up (more
    where other devices cannot run them). Branches of the enumeration that cannot be better are skipped, which changes nothing;
    after ``limit`` steps the best so far is taken. A tensor that an op placed before has brought to a device costs nothing
    there. Equal sums go to the devices with the least work so far. Ops are also spread over devices that conflict, though that
    does not help.
    """

    limit: int = option(200_000, "steps of the enumeration for one set of shards", least=1, most=10**9)

    def place(
        self,
        problem: Problem,
        cost: CostFunction,  # noqa: ARG002
        *,
        seed: int,  # noqa: ARG002
        evaluations: int | None,  # noqa: ARG002
        deadline: float | None = None,  # noqa: ARG002
    ) -> NDArray[np.int32]:
        """Return the placement; the cost function and the seed are not used.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        devices, into = problem.devices, problem.predecessors
        placement = np.full(len(problem), -1, np.int32)
        here = np.zeros((int(problem.edge_tensor.max(initial=-1)) + 1, devices), bool)  # devices that already hold a tensor
        load = np.zeros(devices)
        for ops in parallel_sets(problem):
            seconds = np.where(problem.feasible[ops], 0.0, np.inf)
            read = [into.edge[into.ptr[v] : into.ptr[v + 1]] for v in ops]
            for row, edges in zip(seconds, read, strict=True):
                for e in _first_of_each(problem.edge_tensor, edges):
                    row += np.where(here[problem.edge_tensor[e]], 0.0, problem.comm(e)[placement[problem.edges[e, 0]]])
            seconds += _TIE * (load + problem.compute[ops])
            placement[ops] = _spread(seconds, self.limit)
            for v, edges in zip(ops, read, strict=True):
                here[problem.edge_tensor[edges], placement[v]] = True
                load[placement[v]] += problem.compute[v, placement[v]]
        return placement if fits(problem, placement) else repair(problem, placement)


def parallel_sets(problem: Problem) -> list[list[int]]:
    """Return the sets of ops that one op became when it was cut, in topological order; an op that was not cut is one set.

    The names of a set differ only between brackets: ``AB[i0,j1]``, ``AB[i1,j0]``; ``AB[0,1] formation``. Ops are not shards if
    one of them reads another, or if their set would have to run both before and after another set: then each is one set.
    """
    label = [_CUT.sub("[]", name) if _CUT.search(name) else f"op {v}" for v, name in enumerate(problem.op_names)]
    turn = np.empty(len(problem), np.int64)
    turn[problem.order] = np.arange(len(problem))
    left: dict[str, list[int]] = {}
    for v in problem.order.tolist():
        left.setdefault(label[v], []).append(v)
    waiting = np.bincount(problem.edges[:, 1], minlength=len(problem))
    out, sets = problem.successors, []
    while left:
        able = (name for name, ops in left.items() if not waiting[ops].any())
        name = next(able, None)
        if name is None:  # every set waits for another: take apart the set that is first in topological order
            first = min(left, key=lambda name: turn[left[name][0]])
            for v in left.pop(first):
                left[f"op {v}"] = [v]
            continue
        ops = left.pop(name)
        sets.append(ops)
        for v in ops:
            np.subtract.at(waiting, problem.edges[out.edge[out.ptr[v] : out.ptr[v + 1]], 1], 1)
    return sets


def _first_of_each(tensor: NDArray[np.int32], edges: NDArray[np.int32]) -> list[int]:
    """Return the first edge of each tensor."""
    return [int(edges[i]) for i in np.unique(tensor[edges], return_index=True)[1]]


def _spread(seconds: NDArray[np.float64], limit: int) -> NDArray[np.int32]:
    """Spread ops evenly over devices at the least sum of ``float64[n, D]`` (``inf``: cannot run); return ``int32[n]``."""
    devices = np.empty(len(seconds), np.int32)
    _core.spread(seconds, limit, devices)
    return devices
