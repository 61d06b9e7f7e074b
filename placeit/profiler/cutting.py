"""Divide a model into segments for profiling, and place the segments on devices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placeit.planning.coarsen import Grouping
from placeit.profiler.sampling import border_distances, choose, predict

__all__ = ["Cutting"]


class Cutting:
    """Segments of a model for profiling: each cut-off group is a segment, and so are the groups between two of them.

    Initially, all groups are cut off.

    Args:
        grouping: groups of ops.
        can: ``bool[G, D]``, the devices that can run each group.
        computes: ``bool[G]``, False for groups that only pass inputs or outputs of the model through.
        channels_last: tensors of the task graph that are in channels-last layout between segments.

    Attributes:
        cut: ``bool[G]``, the groups that are separate segments.
        quick: ``bool[D]``, the devices that run the segments between cut-off groups.
        distance: ``float64[G, G]``, distances of groups (:func:`placeit.profiler.sampling.border_distances`).
        bytes: ``float64[G]``, bytes of the tensors at each group's border.
    """

    def __init__(
        self, grouping: Grouping, can: NDArray[np.bool_], computes: NDArray[np.bool_], channels_last: frozenset[int]
    ) -> None:
        self.grouping, self.can, self.computes = grouping, can, computes
        self.groups, self.devices = can.shape
        self.distance, self.bytes = border_distances(grouping, channels_last)
        self.cut = np.ones(self.groups, bool)
        self.quick = np.ones(self.devices, bool)

    def choose(self, max_programs: float) -> None:
        """Choose the groups to cut off, so that there are at most ``max_programs`` segments to compile."""
        these = np.flatnonzero(self.computes)
        self.cut = np.zeros(self.groups, bool)
        near = self.distance[np.ix_(these, these)]
        self.cut[these] = choose(near, self.bytes[these], max_programs=max_programs, gap=int(self.quick.sum()))

    def predicted(self, cost: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Predict the cut costs of all groups, ``float64[G]``, from the costs of the ``known`` ones."""
        return predict(cost, known, self.distance, self.bytes)

    def segments(self) -> NDArray[np.int32]:
        """Return the segment of each group, ``int32[G]``. Groups that different devices can run are in different segments."""
        other = (self.can[1:] != self.can[:-1]).any(axis=1)
        return np.concatenate([[0], np.cumsum(self.cut[1:] | self.cut[:-1] | other)]).astype(np.int32)

    def _able(self, segment_of: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return the devices that run each segment, ``bool[S, D]``; between cut-off groups, only devices in ``quick``."""
        can = np.ones((int(segment_of.max()) + 1, self.devices), bool)
        np.logical_and.at(can, segment_of, self.can)
        single = np.zeros(len(can), bool)
        single[segment_of[self.cut]] = True
        able = can & (single[:, None] | self.quick)
        return np.where(able.any(axis=1, keepdims=True), able, can)

    def on(self, segment_of: NDArray[np.int32], d: int) -> NDArray[np.int32]:
        """Place each segment on ``d`` if it runs there, else on the first device that runs it: ``int32[S]``."""
        able = self._able(segment_of)
        return np.array(np.where(able[:, d], d, able.argmax(axis=1)), np.int32)

    def apart(self, segment_of: NDArray[np.int32], turn: int) -> NDArray[np.int32]:
        """Place segments on other devices than their producers where possible: ``int32[S]``. Each turn uses the next device."""
        able = self._able(segment_of)
        level = np.zeros(len(able), np.int64)
        between = {(u, v) for u, v in segment_of[self.grouping.groups.edges].tolist() if u != v}
        for u, v in sorted(between):  # in a topological order
            level[v] = max(level[v], level[u] + 1)
        order = (level[:, None] + turn + np.arange(self.devices)) % self.devices
        first = np.take_along_axis(able, order, axis=1).argmax(axis=1)
        return np.array(order[np.arange(len(able)), first], np.int32)
