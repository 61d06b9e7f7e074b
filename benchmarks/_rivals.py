"""Placers of others, to compare with by ``placeit bench run --placer benchmarks._rivals:MEtf``.

They are Baechi's m-ETF and m-SCT (Jeon et al., Baechi: Fast Device Placement of Machine Learning Graphs, SoCC 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver import pywraplp

from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import option
from placeit.placers.feasibility import repair
from placeit.placers.list_scheduling import mean_comm, mean_compute

__all__ = ["MEtf", "MSct"]

_FAVOURITE = 0.2  # below this value of the relaxed program, a child is its parent's favourite


@dataclass(frozen=True)
class MEtf:
    """Memory-constrained earliest task first: again and again the ready op and the device with room where it starts first.

    Differs from the paper, where devices are equal: of equal starts, the pair that finishes first is taken.
    """

    by: str = option("start", "time that is least for the next pair: start, or finish")

    def place(
        self,
        problem: Problem,
        cost: CostFunction,  # noqa: ARG002
        *,
        seed: int,  # noqa: ARG002
        evaluations: int | None,  # noqa: ARG002
        deadline: float | None = None,  # noqa: ARG002
    ) -> NDArray[np.int32]:
        """Return the placement; the cost function is not used. Raises InfeasibleError."""
        return _earliest(problem, self.by, self.favourites(problem))

    def favourites(self, problem: Problem) -> dict[int, int]:  # noqa: ARG002
        """Return the op for which the device of an op waits, by the latter; there are none."""
        return {}


@dataclass(frozen=True)
class MSct(MEtf):
    """Memory-constrained small communication times: like :class:`MEtf`, where a device waits for its last op's favourite child.

    The favourite child of an op comes from a linear program whose variables are the edges that cross. While the device of an op
    waits for it, the device takes only ops that are not delayed by transfers.
    """

    def favourites(self, problem: Problem) -> dict[int, int]:
        """Return the favourite child of each op that has one, by the relaxed program of Hanen and Munier (1995)."""
        ops, edges, seconds = range(len(problem)), problem.edges.tolist(), mean_compute(problem)
        unit, moved = seconds.sum(), mean_comm(problem, apart=True)
        solver = pywraplp.Solver.CreateSolver("GLOP")
        start, makespan = [solver.NumVar(0, solver.infinity(), "") for _ in ops], solver.NumVar(0, solver.infinity(), "")
        crosses = [solver.NumVar(0, 1, "") for _ in edges]
        for v in ops:
            solver.Add(start[v] + seconds[v] / unit <= makespan)
            for end in (0, 1):
                mine = [crosses[e] for e, edge in enumerate(edges) if edge[end] == v]
                solver.Add(sum(mine) >= len(mine) - 1)
        for (tail, head), one, by in zip(edges, crosses, moved, strict=True):
            solver.Add(start[tail] + seconds[tail] / unit + by / unit * one <= start[head])
        solver.Minimize(makespan)
        if solver.Solve() != solver.OPTIMAL:
            return {}
        return {tail: head for (tail, head), one in zip(edges, crosses, strict=True) if one.solution_value() < _FAVOURITE}


def _earliest(problem: Problem, by: str, favourite: dict[int, int]) -> NDArray[np.int32]:
    devices, rows = problem.devices, np.arange(problem.devices)
    place, finish = np.full(len(problem), -1, np.int32), np.zeros(len(problem))
    free, last, held = np.zeros(devices), [-1] * devices, np.zeros(devices)
    waiting = np.bincount(problem.edges[:, 1], minlength=len(problem))
    ready = {int(v) for v in np.flatnonzero(waiting == 0)}
    while ready:
        pairs = []
        for v in sorted(ready):
            arrival = np.zeros(devices)
            for e in np.flatnonzero(problem.edges[:, 1] == v):
                u = problem.edges[e, 0]
                arrival = np.maximum(arrival, finish[u] + np.where(rows == place[u], 0.0, problem.comm(e)[place[u]]))
            start = np.maximum(free, arrival)
            room = held + problem.param_bytes[v] <= problem.memory
            for d in np.flatnonzero(problem.feasible[v] & (room | ~(room & problem.feasible[v]).any())):
                child = favourite.get(last[d], -1)
                kept = child >= 0 and child != v and place[child] < 0 and arrival[d] > free[d]
                end = start[d] + problem.compute[v, d]
                pairs.append((kept, *((start[d], end) if by == "start" else (end, start[d])), v, int(d), end))
        *_, v, d, end = min(pairs)
        place[v], finish[v], free[d], last[d] = d, end, end, v
        held[d] += problem.param_bytes[v]
        ready.remove(v)
        for head in problem.edges[problem.edges[:, 0] == v, 1].tolist():
            waiting[head] -= 1
            if not waiting[head]:
                ready.add(head)
    return repair(problem, place)
