"""Layered layout of task graphs: each op is to the right of all ops that it reads.

The steps follow Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System Structures" (1981).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Drawing", "draw"]

_SWEEPS = 6  # passes over all layers, for ordering and for placing
_DRIFT_LAYERS = 200  # layers before and after over which the drift of long graphs is averaged
_MAX_ROUTED = 24  # maximum number of layers through which an edge is routed; a longer edge is a straight line


@dataclass(frozen=True, eq=False)
class Drawing:
    """The positions of the ops of a task graph, and the lines of its edges.

    Attributes:
        x: ``float64[V]``, the layer of each op.
        y: ``float64[V]``, the position of each op in its layer; positions in one layer are at least 1 apart.
        lines: the corners of each edge, ``float64[K, 2]``, from producer to consumer.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    lines: list[NDArray[np.float64]]


def draw(nodes: int, edges: Sequence[tuple[int, int]]) -> Drawing:
    """Return the layout of a task graph from left to right.

    Args:
        nodes: number of ops.
        edges: producer and consumer of each edge, ``producer < consumer``.
    """
    layer = _layers(nodes, edges)
    paths = [[u, v] for u, v in edges]
    for path in paths:  # an edge over several layers has a corner in each
        first, last = layer[path[0]], layer[path[1]]
        if 1 < last - first <= _MAX_ROUTED:
            path[1:1] = range(len(layer), len(layer) + last - first - 1)
            layer.extend(range(first + 1, last))
    before: list[list[int]] = [[] for _ in layer]
    after: list[list[int]] = [[] for _ in layer]
    for path in paths:
        if layer[path[-1]] - layer[path[0]] <= _MAX_ROUTED:
            for u, v in itertools.pairwise(path):
                before[v].append(u)
                after[u].append(v)
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for v, at in enumerate(layer):
        rows[at].append(v)
    y = _order(rows, before, after)
    for sweep in range(_SWEEPS):
        near = (before, after)[sweep % 2]
        for row in rows if sweep % 2 == 0 else reversed(rows):
            _place(row, near, y)
    corners = (
        np.column_stack([np.array(layer, float), np.array(y, float) - _drift(rows, y)[layer]]) if layer else np.zeros((0, 2))
    )
    return Drawing(corners[:nodes, 0], corners[:nodes, 1], [corners[path] for path in paths])


def _layers(nodes: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each op: right after the ops that it reads. An op without inputs is right before its first reader."""
    layer, reads = [0] * nodes, [False] * nodes
    for u, v in sorted(edges, key=lambda edge: edge[1]):
        layer[v] = max(layer[v], layer[u] + 1)
        reads[v] = True
    soonest = [nodes] * nodes
    for u, v in edges:
        soonest[u] = min(soonest[u], layer[v])
    return [found if reads[v] or soonest[v] == nodes else soonest[v] - 1 for v, found in enumerate(layer)]


def _order(rows: list[list[int]], before: list[list[int]], after: list[list[int]]) -> list[float]:
    """Sort each layer in place by the mean positions of neighbours (barycentre method), and return the positions."""
    y = [0.0] * len(before)
    for row in rows:
        for i, v in enumerate(row):
            y[v] = i - (len(row) - 1) / 2
    for sweep in range(_SWEEPS):
        near = (before, after)[sweep % 2]
        for row in rows if sweep % 2 == 0 else reversed(rows):
            if len(row) > 1:
                wanted = {v: sum(y[u] for u in near[v]) / len(near[v]) if near[v] else y[v] for v in row}
                row.sort(key=wanted.__getitem__)
                for i, v in enumerate(row):
                    y[v] = i - (len(row) - 1) / 2
    return y


def _drift(rows: list[list[int]], y: list[float]) -> NDArray[np.float64]:
    """Return the moving average of positions, to be subtracted. Whole numbers keep straight lines straight."""
    middle = np.cumsum([0.0, *(float(np.mean([y[v] for v in row])) for row in rows)])
    ends = np.arange(len(rows))
    first, last = np.maximum(ends - _DRIFT_LAYERS, 0), np.minimum(ends + _DRIFT_LAYERS + 1, len(rows))
    drift: NDArray[np.float64] = np.round((middle[last] - middle[first]) / (last - first))
    return drift


def _place(row: list[int], near: list[list[int]], y: list[float]) -> None:
    """Move the ops of a layer as close to the mean of their neighbours as their order and a distance of 1 allow.

    This is an isotonic least-squares regression by pooling adjacent violators.
    """
    pools: list[tuple[float, int]] = []
    for i, v in enumerate(row):
        wanted, count = (sum(y[u] for u in near[v]) / len(near[v]) if near[v] else y[v]) - i, 1
        while pools and pools[-1][0] > wanted:
            other, others = pools.pop()
            wanted = (wanted * count + other * others) / (count + others)
            count += others
        pools.append((wanted, count))
    i = 0
    for place, count in pools:
        for v in row[i : i + count]:
            y[v] = place + i
            i += 1
