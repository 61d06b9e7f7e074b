"""EnumerativeOptimizer: spread the shards of each tensor op over the devices with the fewest transfers."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import option
from placeit.placers.feasibility import repair

__all__ = ["Enumerative", "parallel_sets"]

_SHARD = re.compile(r"\[[^\[\]]*\]")  # the part of an op's name that tells shards apart
_TIE = 1e-9  # weight of a device's work compared with transfers: it decides only between equal transfers


@dataclass(frozen=True)
class Enumerative:
    """Spread the shards of each tensor op over the devices, where their inputs take least time to get; a baseline of DOPPLER.

    Source: Yao et al., *DOPPLER*, Appendix A and Algorithm 4. Meta-ops are placed in topological order: first the shards of a
    meta-op, then the ops that combine their results. All ways to spread such a set evenly over the devices are enumerated, and
    the way with the shortest total transfer time is chosen. Compute times and the readers of the results do not count.

    Sets are recognized by the names that ops have in tensor programs (:func:`parallel_sets`). In any other model, each op is a
    set of one and follows its inputs, so this placer gains little there.

    Differs from the paper, which has as many shards as devices: of ``n`` ops a device gets at most ``n / D``, rounded up, or
    more if other devices cannot run them. Branches of the enumeration that cannot be better are skipped, which does not change
    the result. After ``limit`` steps the best way so far is chosen. A tensor that is already on a device, because an earlier op
    read it there, costs nothing. Ties go to the devices with the least work so far. Ops are also spread over devices that
    conflict, though that does not help.
    """

    limit: int = option(200_000, "steps of the enumeration for one set of shards", least=1, most=10**9)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the placement, without using the cost function or the seed. Raises InfeasibleError."""
        devices = problem.devices
        placement = np.full(len(problem), -1, np.int32)
        here = np.zeros((int(problem.edge_tensor.max(initial=-1)) + 1, devices), bool)  # devices that already hold a tensor
        load = np.zeros(devices)
        for ops in parallel_sets(problem):
            seconds = np.where(problem.feasible[ops], 0.0, np.inf)
            read = [problem.predecessors.row(v) for v in ops]
            for row, edges in zip(seconds, read, strict=True):
                for e in edges[np.unique(problem.edge_tensor[edges], return_index=True)[1]].tolist():
                    row += np.where(here[problem.edge_tensor[e]], 0.0, problem.comm(e)[placement[problem.edges[e, 0]]])
            seconds += _TIE * (load + problem.compute[ops])
            spread = np.empty(len(ops), np.int32)
            _core.spread(seconds, self.limit, spread)
            placement[ops] = spread
            for v, edges in zip(ops, read, strict=True):
                here[problem.edge_tensor[edges], placement[v]] = True
                load[placement[v]] += problem.compute[v, placement[v]]
        return repair(problem, placement)


def parallel_sets(problem: Problem) -> list[list[int]]:
    """Return sets of ops that are shards of one op, in topological order; an op that was not cut is a set of one.

    The names in a set differ only between brackets: ``AB[i0,j1]``, ``AB[i1,j0]``; ``AB[0,1] formation``. If one of these ops
    reads another, or if the set would have to run both before and after another set, each op is a set of one.
    """
    label = [_SHARD.sub("[]", name) if _SHARD.search(name) else f"op {v}" for v, name in enumerate(problem.op_names)]
    position = np.argsort(problem.order)
    pending: dict[str, list[int]] = {}
    for v in problem.order.tolist():
        pending.setdefault(label[v], []).append(v)
    missing_inputs = np.bincount(problem.edges[:, 1], minlength=len(problem))
    sets = []
    while pending:
        ready = (name for name, ops in pending.items() if not missing_inputs[ops].any())
        name = next(ready, None)
        if name is None:  # every set waits for another: take apart the set that is first in topological order
            first = min(pending, key=lambda name: position[pending[name][0]])
            for v in pending.pop(first):
                pending[f"op {v}"] = [v]
            continue
        ops = pending.pop(name)
        sets.append(ops)
        for v in ops:
            np.subtract.at(missing_inputs, problem.edges[problem.successors.row(v), 1], 1)
    return sets
