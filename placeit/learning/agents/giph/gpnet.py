"""gpNet (GiPH, section 4.2.1 and Appendix B.1): a task graph, a device network and a placement as one graph.

A node is an op on a device that can run it. A *pivot* is a node of the current placement. An edge follows an edge of the task
graph, and at least one of its ends is a pivot. So every node that is not a pivot is connected to the current nodes of its op's
neighbours. The gpNets of several problems form one disjoint graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.problem import Problem, once_per_problem
from placeit.placers.list_scheduling import levels
from placeit.simulator.tables import compiled

__all__ = ["EDGE_FEATURES", "NODE_FEATURES", "GpNets"]

NODE_FEATURES = (
    "compute requirement",
    "speed",
    "seconds",
    "start-time potential",
    "longest path through",
    "slack",
    "load",
    "pivot",
)
"""Features of a node (v, d). The first four are the paper's (Appendix B.7). The others are computed from the schedule of the
current placement: the longest path through v if it were on d, minus the makespan; the slack of v, by which it may start later
without delaying the end; the share of the makespan for which d computes other ops; whether v is on d. Times are in multiples of
an average op's time. Times and the compute requirement are scaled to sign(x) log(1 + |x|), so that one set of weights serves
problems of any scale."""

EDGE_FEATURES = ("bytes", "bandwidth", "delay", "seconds")
"""Features of an edge (Appendix B.7). Times are in multiples of an average op's time, scaled like the times of nodes. Bytes are
given as their time on a mean link. A bandwidth of b times the mean is given as 1 / (1 + b), which is 0 within a device. The
seconds include cut costs."""

_FIT_STEPS = 20  # alternating least-squares steps that fit requirements of ops and speeds of devices


class GpNets:
    """gpNets of several placements as one disjoint graph.

    The nodes, their levels and the number of edges depend only on the problems. Edges and features that depend on the
    placements are updated by :meth:`set` and :meth:`move`.

    Args:
        problems: ``B`` problems; a problem may occur several times.
        pivots: whether to include only the nodes of the current placement, as GiPH's task selection without gpNet does.

    Attributes:
        problems: the problems.
        nodes: ``float32[N, 8]``, see :data:`NODE_FEATURES`. Nodes are sorted by level: the longest path from an entry, in ops.
        src: ``int64[M]``, source node of an edge.
        dst: ``int64[M]``, target node of an edge, which has a higher level.
        edges: ``float32[M, 4]``, see :data:`EDGE_FEATURES`.
        task_edge: ``int64[M]``, the edge of the task graph that an edge follows, numbered consecutively over all problems.
        node_bounds: ``int64[L + 1]``; the nodes of level l are ``node_bounds[l]`` to ``node_bounds[l + 1] - 1``.
        forward: ``int64[M]``, the edges sorted by the level of their target.
        forward_bounds: ``int64[L + 1]``, bounds in ``forward`` of the edges to level l.
        backward: ``int64[M]``, the edges sorted by the level of their source, the highest first.
        backward_bounds: ``int64[L + 1]``, bounds in ``backward`` of the edges from level L - 1 - l.
        graph: ``int64[N]``, number of the problem of a node.
        op: ``int64[N]``, op of a node, in its problem.
        device: ``int64[N]``, device of a node, in its problem; with ``pivots``, the current device of its op.
        rows: for each problem, its nodes, by op and device.
        placements: for each problem ``int32[V]``.
        makespans: ``float64[B]``, seconds, of the placements; contention-free links, first in, first out.
    """

    def __init__(self, problems: Sequence[Problem], *, pivots: bool = False) -> None:
        self.problems = list(problems)
        self.pivots = pivots
        statics = [_static(problem) for problem in problems]
        choices = [np.ones(len(p), np.int32) if pivots else s.choices for p, s in zip(problems, statics, strict=True)]
        self.graph = np.repeat(np.arange(len(statics)), [int(c.sum()) for c in choices])
        self.op = np.concatenate([np.repeat(np.arange(len(c)), c) for c in choices])
        level = np.concatenate([np.repeat(s.level, c) for s, c in zip(statics, choices, strict=True)])
        order = np.argsort(level, kind="stable")
        count = int(level.max()) + 1
        self.node_bounds = np.searchsorted(level[order], np.arange(count + 1))
        self.graph, self.op = self.graph[order], self.op[order]
        ends = np.cumsum([int(c.sum()) for c in choices])
        self.rows = np.split(np.argsort(order), ends[:-1])

        # each task edge of each problem has a block of edges
        size = np.concatenate(
            [
                np.ones(len(p.edges), np.int64) if pivots else c[p.edges[:, 0]] + c[p.edges[:, 1]] - np.int64(1)
                for p, c in zip(problems, choices, strict=True)
            ]
        )
        self.task_edge = np.repeat(np.arange(len(size)), size)
        first, total = np.cumsum(size) - size, int(size.sum())
        ends_at = [
            np.repeat(np.concatenate([s.level[p.edges[:, side]] for s, p in zip(statics, problems, strict=True)]), size)
            for side in (0, 1)
        ]
        self.forward, self.forward_bounds = _by_level(ends_at[1], count)
        self.backward, self.backward_bounds = _by_level(count - 1 - ends_at[0], count)

        self.src, self.dst = np.zeros(total, np.int64), np.zeros(total, np.int64)
        self.edges = np.zeros((total, len(EDGE_FEATURES)), np.float32)
        self.nodes = np.zeros((len(order), len(NODE_FEATURES)), np.float32)
        self.device = np.zeros(len(order), np.int64)
        self.placements = [np.empty(0, np.int32)] * len(statics)
        self.makespans = np.zeros(len(statics))
        self._nets: list[_core.GpNet] = []
        starts = np.cumsum([0, *(len(p.edges) for p in problems)])
        for b, (problem, static) in enumerate(zip(problems, statics, strict=True)):
            rows = self.rows[b]
            node = np.full((len(problem), problem.devices), -1, np.int64)
            if pivots:
                node[:] = rows[:, None]
            else:
                ops = np.repeat(np.arange(len(problem)), static.choices)
                devices = np.nonzero(problem.feasible)[1]
                node[ops, devices] = rows
                self.device[rows] = devices
                self.nodes[rows, :3] = static.features[ops, devices]
            blocks = first[starts[b] : starts[b + 1]][problem.successors.edge]  # by producer, as compiled code orders edges
            self._nets.append(_core.GpNet(compiled(problem), node, blocks, static.bandwidth, static.unit, pivots))
        self._static = statics

    def __len__(self) -> int:
        return len(self.problems)

    def set(self, number: int, placement: NDArray[np.int32]) -> None:
        """Set the placement of a problem, a feasible ``int32[V]``, and build its edges."""
        self.placements[number] = placement.copy()
        self._show_pivots(number)
        self.makespans[number] = self._nets[number].set(self.placements[number], self)

    def move(self, number: int, op: int, device: int) -> None:
        """Move one op of a problem to a device that can run it; only the edges of the op are updated."""
        self.placements[number][op] = device
        self._show_pivots(number)
        self.makespans[number] = self._nets[number].move(op, self.placements[number], self)

    def _show_pivots(self, number: int) -> None:
        """Update devices and static features of a problem's nodes, if the nodes are pivots only."""
        if self.pivots:
            rows, placement = self.rows[number], self.placements[number]
            self.device[rows] = placement
            self.nodes[rows, :3] = self._static[number].features[np.arange(len(placement)), placement]


class _Static:
    """The parts of a problem's gpNet that do not depend on the placement."""

    def __init__(self, problem: Problem) -> None:
        self.choices = problem.feasible.sum(axis=1).astype(np.int32)
        self.level = levels(problem)
        requirement, speed = _requirement_and_speed(problem)
        unit = float(np.exp(requirement[np.isfinite(requirement)]).mean()) if np.isfinite(requirement).any() else 0.0
        self.unit = unit if unit > 0 else 1.0  # seconds of an average op
        self.features = np.zeros((len(problem), problem.devices, 3), np.float32)
        self.features[:, :, 0] = np.log1p(np.exp(requirement) / self.unit)[:, None]
        self.features[:, :, 1] = speed[None, :]
        self.features[:, :, 2] = np.log1p(np.where(problem.feasible, problem.compute, 0.0) / self.unit)
        apart = ~np.eye(problem.devices, dtype=bool) & np.isfinite(problem.bandwidth)
        # bytes per second of the mean link
        self.bandwidth = 1.0 / float((1.0 / problem.bandwidth[apart]).mean()) if apart.any() else 1.0


_static = once_per_problem(_Static)


def _by_level(level: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order that sorts by level, and the bounds of each level in that order."""
    order = np.argsort(level, kind="stable")
    return order, np.searchsorted(level[order], np.arange(count + 1))


def _requirement_and_speed(problem: Problem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit log seconds[v, d] = requirement[v] - speed[d] by least squares where finite; speeds have mean zero.

    Where times are C / SP, as in the paper, these are exactly log C and log SP, up to a common factor. Ops that take no time
    are left out of the fit, and get a requirement of minus infinity.
    """
    able = problem.feasible & (problem.compute > 0)
    logs = np.log(np.where(able, problem.compute, 1.0))
    requirement, speed = np.zeros(len(problem)), np.zeros(problem.devices)
    per_op, per_device = np.maximum(able.sum(axis=1), 1), np.maximum(able.sum(axis=0), 1)
    for _ in range(_FIT_STEPS):
        requirement = np.where(able, logs + speed, 0.0).sum(axis=1) / per_op
        speed = np.where(able, requirement[:, None] - logs, 0.0).sum(axis=0) / per_device
        speed -= speed.mean()
    requirement[~able.any(axis=1)] = -np.inf
    return requirement, speed
