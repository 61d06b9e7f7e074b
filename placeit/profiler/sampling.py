"""Choose the groups to measure as segments of their own, and derive the cut costs of the others from theirs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placeit.core.graph import OpGraph
from placeit.planning.coarsen import Grouping

__all__ = ["alike", "border_bytes", "choose", "predict"]

# distances: no kind of op in common, twice the bytes, other neighbours; and of equal groups, since measured times vary
_OTHER_KINDS, _OTHER_SIZE, _OTHER_BORDER, _EQUAL = 4.0, 0.5, 0.5, 0.1
_FARTHEST = 8.0  # no two groups are more unlike than that
_NEAR = 3.0  # how fast the weight of a measured group falls with its distance
_FREE = 0.5  # what a group counts at least that costs no further program


def alike(grouping: Grouping, channels_last: frozenset[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Say how unlike groups are, by what their borders cost: ``float64[G, G]``, and ``float64[G]``, the bytes of their borders.

    Groups are alike if they have the same kinds of ops, tensors of the same kinds at their borders (the kind of op at the other
    end, and the layout), and as many bytes there.

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
    """Bytes of the tensors that each group writes for others, and reads of others: ``float64[G]``."""
    bytes_ = np.bincount(groups.tensor_op, groups.tensor_bytes, len(groups)).astype(np.float64)
    np.add.at(bytes_, groups.edges[:, 1], groups.tensor_bytes[groups.edge_tensor])
    return bytes_


def choose(distance: NDArray[np.float64], weight: NDArray[np.float64], *, most: float, gap: float) -> NDArray[np.bool_]:
    """Choose the groups to measure alone, so that each group is like one of them: ``bool[G]``.

    Groups are in topological order, and those between two chosen ones run as one segment. Greedily takes the group that brings
    the others nearest to a chosen one, by weight and per additional program (the facility location problem).

    Args:
        distance: ``float64[G, G]``, how unlike groups are.
        weight: ``float64[G]``, how much each group matters.
        most: how many programs there may be, at least one group being chosen.
        gap: programs of each run of groups that are not chosen.
    """
    chosen, nearest, programs = np.zeros(len(weight), bool), np.full(len(weight), _FARTHEST), gap
    while True:
        closed = np.concatenate([[True], chosen, [True]])
        more = 1 + gap * (2.0 - closed[:-2] - closed[2:] - 1)  # it may split a run in two, or be all that is left of one
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
    """Predict cut costs of all groups from those of some, by the bytes of their borders: ``float64[G]``.

    Each known group counts the less, the more unlike it is.

    Args:
        cut: ``float64[G]``, seconds.
        known: ``bool[G]``, the groups of which these are known, one at least.
        distance: ``float64[G, G]``, how unlike groups are.
        bytes_: ``float64[G]``, of their borders.
    """
    near = distance[:, known]
    share = np.exp(-_NEAR * (near - near.min(axis=1, keepdims=True)))
    sizes = share @ bytes_[known]
    rate = np.divide(share @ cut[known], sizes, out=np.zeros(len(cut)), where=sizes > 0)
    return np.where(known, cut, rate * bytes_)
