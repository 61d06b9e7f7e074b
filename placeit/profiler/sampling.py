"""Choose groups to measure as separate segments, and predict the cut costs of the other groups from them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placeit.core.graph import OpGraph
from placeit.planning.coarsen import Grouping

__all__ = ["border_bytes", "border_distances", "choose", "predict"]

# distances of two groups with no kind of op in common; of twice the bytes; with other neighbours; and of any two groups
_KINDS_WEIGHT, _SIZE_WEIGHT, _BORDER_WEIGHT, _MIN_DISTANCE = 4.0, 0.5, 0.5, 0.1
_MAX_DISTANCE = 8.0  # maximum distance of two groups
_DECAY = 3.0  # the weight of a measured group is exp(-_DECAY * distance)
_MIN_PROGRAMS = 0.5  # minimum number of programs that choosing a group counts as, even if it adds none


def border_distances(grouping: Grouping, channels_last: frozenset[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return distances between groups, ``float64[G, G]``, and the bytes of their borders, ``float64[G]``.

    Two groups are close if their cut costs should be similar: if they have the same kinds of ops, the same kinds of tensors at
    their borders (the kind of op at the other end, and the layout), and the same number of bytes there.

    Args:
        grouping: groups of ops.
        channels_last: tensors of the task graph that are in channels-last layout between segments.
    """
    graph, groups, of = grouping.graph, grouping.groups, grouping.group_of
    count = len(groups)
    kinds = sorted(set(graph.kinds))
    table = np.zeros((count, len(kinds)))
    np.add.at(table, (of, np.searchsorted(kinds, graph.kinds)), 1)
    borders: list[set[tuple[str, str, bool]]] = [set() for _ in range(count)]
    for (u, v), t in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True):
        if of[u] != of[v]:
            borders[of[v]].add(("reads", graph.kinds[u], t in channels_last))
            borders[of[u]].add(("writes", graph.kinds[v], t in channels_last))
    bytes_ = border_bytes(groups)
    rows, row_of = np.unique(table, axis=0, return_inverse=True)
    row_of = row_of.reshape(-1)
    common = np.array([np.minimum(row, rows).sum(axis=1) / np.maximum(row, rows).sum(axis=1) for row in rows])
    border_numbers = {border: i for i, border in enumerate({frozenset(border) for border in borders})}
    border_of = np.array([border_numbers[frozenset(border)] for border in borders])
    size = np.log2(np.maximum(bytes_, 1.0))
    distance = (
        _KINDS_WEIGHT * (1 - common[row_of][:, row_of])
        + _SIZE_WEIGHT * np.abs(size[:, None] - size)
        + _BORDER_WEIGHT * (border_of[:, None] != border_of)
        + _MIN_DISTANCE * ~np.eye(count, dtype=bool)
    )
    return np.asarray(np.minimum(distance, _MAX_DISTANCE), np.float64), bytes_


def border_bytes(groups: OpGraph) -> NDArray[np.float64]:
    """Return the bytes of the tensors that each group writes for other groups or reads from them: ``float64[G]``."""
    bytes_ = np.bincount(groups.tensor_op, groups.tensor_bytes, len(groups)).astype(np.float64)
    np.add.at(bytes_, groups.edges[:, 1], groups.tensor_bytes[groups.edge_tensor])
    return bytes_


def choose(distance: NDArray[np.float64], weight: NDArray[np.float64], *, max_programs: float, gap: float) -> NDArray[np.bool_]:
    """Choose the groups to cut off, so that each group is similar to one of them: ``bool[G]``.

    Groups are in topological order, and the groups between two chosen ones run as one segment. This is a greedy solution of the
    facility location problem: each step chooses the group that most reduces the weighted distances of all groups to their
    nearest chosen group, per additional program.

    Args:
        distance: ``float64[G, G]``, distances between groups.
        weight: ``float64[G]``, importance of each group.
        max_programs: maximum number of programs; at least one group is chosen in any case.
        gap: number of programs for each segment between chosen groups.
    """
    chosen, nearest, programs = np.zeros(len(weight), bool), np.full(len(weight), _MAX_DISTANCE), gap
    while True:
        closed = np.concatenate([[True], chosen, [True]])
        more = 1 + gap * (1.0 - closed[:-2] - closed[2:])  # a group may divide a segment in two, or be the last of one
        gain = (weight[:, None] * np.maximum(0.0, nearest[:, None] - distance)).sum(axis=0) / np.maximum(more, _MIN_PROGRAMS)
        gain[chosen | ((programs + more > max_programs) & chosen.any())] = 0.0
        g = int(gain.argmax())
        if gain[g] <= 0:
            return chosen
        chosen[g], programs = True, programs + more[g]
        nearest = np.minimum(nearest, distance[:, g])


def predict(
    cut: NDArray[np.float64], known: NDArray[np.bool_], distance: NDArray[np.float64], bytes_: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Predict the cut costs of all groups from known ones: ``float64[G]``.

    The cost per byte of a group's border is a mean over the known groups, whose weights decrease with their distance.

    Args:
        cut: ``float64[G]``, seconds.
        known: ``bool[G]``, the groups whose cut costs are known, at least one.
        distance: ``float64[G, G]``, distances between groups.
        bytes_: ``float64[G]``, bytes of the borders of groups.
    """
    near = distance[:, known]
    share = np.exp(-_DECAY * (near - near.min(axis=1, keepdims=True)))
    sizes = share @ bytes_[known]
    rate = np.divide(share @ cut[known], sizes, out=np.zeros(len(cut)), where=sizes > 0)
    return np.where(known, cut, rate * bytes_)
