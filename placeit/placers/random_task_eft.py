"""Random task, earliest finish time: the relocation search that is a baseline of GiPH."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, is_over, option
from placeit.placers.feasibility import random_placements
from placeit.simulator.kernel import WEIGHTS_ONLY, makespan_kernel
from placeit.simulator.queues import int64
from placeit.simulator.state import CONTENTION_FREE, FIFO
from placeit.simulator.tables import Tables
from placeit.simulator.workspace import make_workspace

__all__ = ["RandomTaskEft", "earliest_finish_devices"]

_CHUNK = 256


@dataclass(frozen=True)
class RandomTaskEft:
    """From a random placement, repeatedly move a random op to the device where it would finish first.

    The baseline of GiPH (its section 5, "Random task selection + EFT device selection"): HEFT as a policy of search. The
    finish time on a device is that of the earliest idle gap, after the op's inputs have arrived, in the simulated schedule
    of the current placement without the op. An episode has 2|V| steps, as in GiPH.

    Differs from the paper, which leaves open what a step knows: gaps count, and effects on later ops do not.
    """

    episodes: int = option(1, "searches from a random placement", least=1, most=10**6)
    steps_per_op: float = option(2.0, "steps of an episode, per op", least=0, most=1000)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best placement by cost, among as many as may be evaluated.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        found = Incumbent(cost, evaluations, deadline)
        rng = np.random.default_rng(seed)
        steps = round(self.steps_per_op * len(problem))
        for _ in range(self.episodes):
            placement = random_placements(problem, 1, rng)[0]
            path = [placement]
            for op in rng.integers(len(problem), size=steps).tolist():
                if len(path) >= min(_CHUNK, found.left) or is_over(deadline):
                    found.offer(np.stack(path))
                    path = []
                    if found.over:
                        return found.placement
                placement = placement.copy()
                placement[op] = earliest_finish_devices(problem, placement, np.array([op]))[0]
                path.append(placement)
            found.offer(np.stack(path))
        return found.placement


def earliest_finish_devices(problem: Problem, placement: NDArray[np.int32], ops: NDArray[np.integer]) -> NDArray[np.int32]:
    """Device with room for it on which each op would finish first if moved alone; its present one if none is earlier.

    Args:
        problem: the problem.
        placement: ``int32[V]``, feasible.
        ops: ``int[K]``.

    Returns:
        ``int32[K]``.
    """
    from placeit.simulator.tables import tables

    answer = np.empty(len(ops), np.int32)
    _earliest_finish(answer, tables(problem), np.array(placement, np.int32), ops.astype(np.int64))
    return answer


@jit
def _earliest_finish(answer: NDArray[np.int32], tables: Tables, place: NDArray[np.int32], ops: NDArray[np.int64]) -> None:
    workspace = make_workspace(tables, 1)
    makespan_kernel(tables, place, np.empty(0), CONTENTION_FREE, FIFO, 0.0, np.uint64(0), WEIGHTS_ONLY, workspace)
    node, op = workspace.node, tables.op
    count, devices = tables.compute.shape
    start, free = np.empty(count), tables.memory.copy()
    for u in range(count):
        start[u] = node[u].start
        free[place[u]] -= op[u].param_bytes
    by_start = np.argsort(start, kind="mergesort")
    at, done = np.empty(devices), np.empty(devices, np.bool_)
    for k in range(len(ops)):
        v = ops[k]
        here = place[v]
        for d in range(devices):
            done[d] = not (tables.compute[v, d] < np.inf and (d == here or op[v].param_bytes <= free[d]))
            at[d] = 0.0
        for i in range(op[v].in_first, op[v + 1].in_first):
            p = tables.edge[i].into
            u = tables.edge[p].tail
            for d in range(devices):
                seconds = node[u].finish
                if place[u] != d:
                    link = tables.link[place[u], d]
                    seconds += link.latency + tables.edge[p].size / link.bandwidth
                    if len(tables.cut):
                        seconds += tables.cut[p, place[u]] + tables.cut[p, d]
                at[d] = max(at[d], seconds)
        for u in by_start:  # each device's ops in turn, and those that conflict: does this one fit before?
            first = int64(place[u])
            last = first + 1
            if len(tables.conflict):
                first, last = 0, devices
            for d in range(first, last):
                taken = d == place[u] or tables.conflict[place[u] * devices + d]
                if u != v and taken and not done[d]:
                    if at[d] + tables.compute[v, d] <= node[u].start:
                        done[d] = True
                    else:
                        at[d] = max(at[d], node[u].finish)
        answer[k] = here
        least = at[here] + tables.compute[v, here]
        for d in range(devices):
            if (d == here or op[v].param_bytes <= free[d]) and at[d] + tables.compute[v, d] < least:
                least = at[d] + tables.compute[v, d]
                answer[k] = d
