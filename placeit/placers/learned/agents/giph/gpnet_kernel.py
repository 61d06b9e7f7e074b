"""Compiled parts of :mod:`placeit.placers.learned.agents.giph.gpnet`: updates after a change of the placement."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit
from placeit.simulator.kernel import WEIGHTS_ONLY, makespan_kernel
from placeit.simulator.tables import Tables
from placeit.simulator.workspace import Workspace

_NONE = np.empty(0)
FEATURES = 8
"""Columns that :func:`observe` writes for a node: see :data:`placeit.placers.learned.agents.giph.gpnet.NODE_FEATURES`."""


class GpNetRows(NamedTuple):
    """One problem's part of a batch of gpNets; rows of nodes and edges are those of the batch."""

    options: NDArray[np.int32]  # [V, D] each row: devices that the op can run on, then anything
    choices: NDArray[np.int32]  # [V] how many of them there are
    node: NDArray[np.int64]  # [V, D] row of the node (v, d), by d; pivots only: the op's row whatever d
    edges: NDArray[np.int32]  # [E, 2]
    first: NDArray[np.int64]  # [E] first row of a task edge
    size: NDArray[np.float64]  # [E] seconds that an edge's bytes take on the mean link
    bandwidth: NDArray[np.float64]  # [D, D] over the mean
    latency: NDArray[np.float64]  # [D, D]
    cut: NDArray[np.float64]  # [E, D], or [0, D] if it is zero everywhere
    seconds: NDArray[np.float64]  # [V, D]
    unit: float  # seconds of an average op; what times are divided by


@jit
def _squash(x: float) -> float:
    return float(np.log1p(x)) if x >= 0 else -float(np.log1p(-x))


@jit
def _write(
    layout: GpNetRows,
    e: int,
    row: int,
    source: int,
    target: int,
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
    x: NDArray[np.float32],
) -> None:
    """Write the gpNet edge of task edge ``e`` between two devices."""
    i, j = layout.edges[e]
    src[row], dst[row] = layout.node[i, source], layout.node[j, target]
    if source == target:
        x[row, 0], x[row, 1], x[row, 2], x[row, 3] = _squash(layout.size[e] / layout.unit), 0.0, 0.0, 0.0
        return
    bandwidth = layout.bandwidth[source, target]
    transfer = layout.latency[source, target] + layout.size[e] / bandwidth
    if len(layout.cut):
        transfer += layout.cut[e, source] + layout.cut[e, target]
    x[row, 0] = _squash(layout.size[e] / layout.unit)
    x[row, 1] = 1.0 / (1.0 + bandwidth)
    x[row, 2] = _squash(layout.latency[source, target] / layout.unit)
    x[row, 3] = _squash(transfer / layout.unit)


@jit
def connect(
    layout: GpNetRows,
    place: NDArray[np.int32],
    changed: NDArray[np.int32],
    pivots: bool,
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
    x: NDArray[np.float32],
) -> None:
    """Write the gpNet edges of some task edges (Algorithm gpNet, lines 13 to 20).

    A task edge (i, j) has the rows (pivot of i) -> (j, d) for every d, then (i, d) -> (pivot of j) for every d but i's own.

    Args:
        layout: of the problem.
        place: ``int32[V]``.
        changed: task edges to write.
        pivots: only edges between two pivots: one row for each task edge.
        src: ``int64[M]``, receives nodes.
        dst: ``int64[M]``, receives nodes.
        x: ``float32[M, 4]``, receives edge features.
    """
    for e in changed:
        i, j = layout.edges[e]
        row = layout.first[e]
        if pivots:
            _write(layout, e, row, place[i], place[j], src, dst, x)
            continue
        for k in range(layout.choices[j]):
            _write(layout, e, row, place[i], layout.options[j, k], src, dst, x)
            row += 1
        for k in range(layout.choices[i]):
            if layout.options[i, k] != place[i]:
                _write(layout, e, row, layout.options[i, k], place[j], src, dst, x)
                row += 1


@jit
def _transfer(tables: Tables, p: int, source: int, target: int) -> float:
    """Seconds that the edge at a position adds between two devices."""
    if source == target:
        return 0.0
    link = tables.link[source, target]
    seconds = float(link.latency + tables.edge[p].size / link.bandwidth)
    if len(tables.cut):
        seconds += tables.cut[p, source] + tables.cut[p, target]
    return seconds


@jit
def observe(
    tables: Tables, layout: GpNetRows, place: NDArray[np.int32], pivots: bool, ws: Workspace, x: NDArray[np.float32]
) -> float:
    """Simulate a placement, write the schedule features of the nodes, and return the makespan.

    Args:
        tables: of the problem.
        layout: of the problem.
        place: ``int32[V]``, feasible.
        pivots: only nodes of the placement: one for each op.
        ws: workspace of the problem.
        x: ``float32[N, FEATURES]``; columns from 3 on are written.
    """
    makespan = makespan_kernel(tables, place, _NONE, 0, 0, 0.0, np.uint64(0), WEIGHTS_ONLY, ws)
    ops, devices = layout.seconds.shape
    op, edge, node = tables.op, tables.edge, ws.node
    # latest finish that keeps the makespan, on the schedule as it is: successors and the next op of the device wait for it
    tail = np.zeros(ops)
    after = np.full(ops, -1, np.int32)
    last = np.full(devices, -1, np.int32)
    start = np.empty(ops)
    for v in range(ops):
        start[v] = node[v].start
    by_start = np.argsort(start, kind="mergesort")
    for v in by_start:
        d = place[v]
        if last[d] >= 0:
            after[last[d]] = v
        last[d] = v
    load = np.zeros(devices)
    for v in range(ops):
        load[place[v]] += layout.seconds[v, place[v]]
    for t in range(ops - 1, -1, -1):
        v = by_start[t]
        d = place[v]
        longest = 0.0
        if after[v] >= 0:
            longest = tail[after[v]]
        for p in range(op[v].first, op[v + 1].first):
            w = edge[p].head
            longest = max(longest, tail[w] + _transfer(tables, p, d, place[w]))
        tail[v] = layout.seconds[v, d] + longest
    arrival = np.empty(devices)
    leaving = np.empty(devices)
    for v in range(ops):
        here = place[v]
        arrival[:] = 0.0
        leaving[:] = 0.0
        for i in range(op[v].in_first, op[v + 1].in_first):
            p = edge[i].into
            u = edge[p].tail
            done = node[u].finish
            for k in range(1 if pivots else layout.choices[v]):
                d = here if pivots else layout.options[v, k]
                arrival[d] = max(arrival[d], done + _transfer(tables, p, place[u], d))
        for p in range(op[v].first, op[v + 1].first):
            w = edge[p].head
            for k in range(1 if pivots else layout.choices[v]):
                d = here if pivots else layout.options[v, k]
                leaving[d] = max(leaving[d], tail[w] + _transfer(tables, p, d, place[w]))
        slack = makespan - node[v].start - tail[v]
        for k in range(1 if pivots else layout.choices[v]):
            d = here if pivots else layout.options[v, k]
            row = layout.node[v, d]
            x[row, 3] = _squash((arrival[d] - node[v].start) / layout.unit)
            # the longest path through the op, were it on d and nothing waited there; and with what it runs among now
            through = arrival[d] + layout.seconds[v, d] + leaving[d] - makespan
            x[row, 4] = _squash(through / layout.unit)
            x[row, 5] = _squash(slack / layout.unit)
            x[row, 6] = (load[d] - (layout.seconds[v, d] if d == here else 0.0)) / max(makespan, 1e-300)
            x[row, 7] = 1.0 if d == here else 0.0
    return makespan
