"""EnumerativeOptimizer: the shards of one tensor op after the other, spread over the devices with the fewest transfers."""

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
_TIE = 1e-9  # weight of a device's work beside transfers: it decides only between equal ones


@dataclass(frozen=True)
class Enumerative:
    """Spread the shards of each tensor op over the devices, where their inputs take least time to get; a baseline of DOPPLER.

    Yao et al., *DOPPLER*, Appendix A and Algorithm 4. Meta-ops come in topological order; of each, first the shards are placed
    and then the ops that combine what they made. All ways to spread such a set evenly over the devices are enumerated, and the
    one with the least sum of transfer times is taken. It looks at neither the time that ops take nor those that read them.

    Sets are known by the names of ops (:func:`parallel_sets`), as :mod:`placeit.workloads.tensors` gives them. An op of any
    other model is a set of its own and follows its inputs, so there is little to be had of it there.

    Differs from the paper, where there are as many shards as devices: of ``n`` ops a device gets ``n / D`` at most, rounded up
    (more where other devices cannot run them). Branches of the enumeration that can be no better are left out, which changes
    nothing; after ``limit`` steps it ends with the best so far. A tensor that an op placed before has brought to a device costs
    nothing more there. Equal sums go to the devices with the least work so far. Ops are also spread over devices that conflict,
    which is of no use there.
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
        here = np.zeros((int(problem.edge_tensor.max(initial=-1)) + 1, devices), bool)  # where a tensor is already
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
    """Ops that one op became when it was cut, in topological order of these sets; ops that were not cut are sets of one.

    Their names differ only in what is between brackets: ``AB[i0,j1]``, ``AB[i1,j0]``; ``AB[0,1] formation``. Sets of which one
    would have to run both before and after another, or of which one op reads another, are no shards: they come apart.
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
        if name is None:  # each op waits for none itself that is the first in topological order
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
    """The first of the edges of each tensor."""
    return [int(edges[i]) for i in np.unique(tensor[edges], return_index=True)[1]]


def _spread(seconds: NDArray[np.float64], limit: int) -> NDArray[np.int32]:
    """Place ops evenly on devices with the least sum of ``float64[n, D]``, infinite where one cannot run: ``int32[n]``."""
    devices = np.empty(len(seconds), np.int32)
    _core.spread(seconds, limit, devices)
    return devices
