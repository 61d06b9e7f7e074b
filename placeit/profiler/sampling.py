"""Choose the groups to measure as separate segments, and predict the cut costs of the others from theirs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placeit.core.graph import OpGraph
from placeit.planning.coarsen import Grouping

__all__ = ["alike", "border_bytes", "choose", "predict"]

# distances: no kind of op in common; twice the bytes; other neighbours; equal groups, since measured times vary
_OTHER_KINDS, _OTHER_SIZE, _OTHER_BORDER, _EQUAL = 4.0, 0.5, 0.5, 0.1
_FARTHEST = 8.0  # largest distance of two groups
_NEAR = 3.0  # rate at which the weight of a measured group falls with its distance
_FREE = 0.5  # number of programs that a group counts as at least, even if it adds none


def alike(grouping: Grouping, channels_last: frozenset[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return distances of groups by the costs of their borders, ``float64[G, G]``, and the borders' bytes, ``float64[G]``.

    Two groups are near if they have the same kinds of ops, tensors of the same kinds at their borders (the kind of op at the
    other end, and the layout), and as many bytes there.

    Args:
        grouping: groups of ops.
        channels_last: tensors of the task graph that cross borders in channels-last layout.
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
        _OTHER_KINDS * (1 - common[row_of][:, row_of])
        + _OTHER_SIZE * np.abs(size[:, None] - size)
        + _OTHER_BORDER * (border_of[:, None] != border_of)
        + _EQUAL * ~np.eye(count, dtype=bool)
    )
    return np.asarray(np.minimum(distance, _FARTHEST), np.float64), bytes_


def border_bytes(groups: OpGraph) -> NDArray[np.float64]:
    """Return the bytes of the tensors that each group writes for other groups or reads from them: ``float64[G]``."""
    bytes_ = np.bincount(groups.tensor_op, groups.tensor_bytes, len(groups)).astype(np.float64)
    np.add.at(bytes_, groups.edges[:, 1], groups.tensor_bytes[groups.edge_tensor])
    return bytes_


def choose(distance: NDArray[np.float64], weight: NDArray[np.float64], *, most: float, gap: float) -> NDArray[np.bool_]:
    """Choose the groups to measure alone, so that each group is like one of them: ``bool[G]``.

    Groups are in topological order, and the groups between two chosen ones run as one segment. The choice is greedy: it takes
    the group that most reduces the weighted distances of all groups to a chosen one, per additional program (the facility
    location problem).

    Args:
        distance: ``float64[G, G]``, how unlike groups are.
        weight: ``float64[G]``, how much each group matters.
        most: most programs; at least one group is chosen in any case.
        gap: programs of each run of groups that are not chosen.
    """
    chosen, nearest, programs = np.zeros(len(weight), bool), np.full(len(weight), _FARTHEST), gap
    while True:
        closed = np.concatenate([[True], chosen, [True]])
        more = 1 + gap * (2.0 - closed[:-2] - closed[2:] - 1)  # a group may split a run in two, or be the last one of a run
        gain = (weight[:, None] * np.maximum(0.0, nearest[:, None] - distance)).sum(axis=0) / np.maximum(more, _FREE)
        gain[chosen | ((programs + more > most) & chosen.any())] = 0.0
        g = int(gain.argmax())
        if gain[g] <= 0:
            return chosen
        chosen[g], programs = True, programs + more[g]
        nearest = np.minimum(nearest, distance[:, g])


def predict(
    cut: NDArray[np.float64], known: NDArray[np.bool_], distance: NDArray[np.float64], bytes_: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Predict the cut costs of all groups from the known ones, by the bytes of their borders: ``float64[G]``.

    The weight of a known group falls with its distance.

    Args:
        cut: ``float64[G]``, seconds.
        known: ``bool[G]``, the groups whose cut costs are known, at least one.
        distance: ``float64[G, G]``, how unlike groups are.
        bytes_: ``float64[G]``, bytes of their borders.
    """
    near = distance[:, known]
    share = np.exp(-_NEAR * (near - near.min(axis=1, keepdims=True)))
    sizes = share @ bytes_[known]
    rate = np.divide(share @ cut[known], sizes, out=np.zeros(len(cut)), where=sizes > 0)
    return np.where(known, cut, rate * bytes_)
