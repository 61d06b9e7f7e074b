"""Check the memory for the states of a decoder's longest texts, on the devices of the ops that read them."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Model
from placeit.core.cluster import Cluster
from placeit.core.errors import InfeasibleError, PlacementError, UsageError
from placeit.core.graph import OpGraph
from placeit.core.units import about_bytes
from placeit.core.weights import held_bytes
from placeit.placers.feasibility import FEWER_STEPS, PACKING_STEPS, pack, packed
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.devices.base import BufferSpec
from placeit.serving.convoy import MASK
from placeit.serving.sequences import OF_DEVICE

__all__ = ["Texts"]


@dataclass(frozen=True, eq=False)
class Texts:
    """The longest texts of a decoder, for whose states every placement has room beside the weights.

    Attributes:
        model: path of the decoder.
        tokens: of each text.
        count: number of texts.
        fixed: ``float64[V]``, bytes of the states of a text that have the same size at any length, by the op that reads them.
        growing: ``float64[V]``, bytes for each token of a text.
    """

    model: str
    tokens: int
    count: int
    fixed: NDArray[np.float64]
    growing: NDArray[np.float64]

    @classmethod
    def of(cls, model: Model, count: int) -> Self | None:
        """Return the longest texts of a model; None unless it is a decoder that is placed for texts of several lengths.

        Raises:
            UsageError: there is no text, or there are several and the model is not such a decoder.
        """
        if count < 1:
            raise UsageError(f"A placement has room for {count} texts; it must be at least 1.")
        mask = next((spec.limits for spec in model.inputs if spec.name == MASK and spec.limits is not None), None)
        if mask is None or not model.states:
            if count == 1:
                return None
            raise UsageError(f"{model.path} is not a decoder that is placed with --context: leave out the number of texts.")
        fixed, growing = np.zeros(len(model.graph)), np.zeros(len(model.graph))
        for state in model.states:
            sizes = state.limits or tuple((size, size) for size in state.shape)
            size = BufferSpec(tuple(high for low, high in sizes if low == high), state.dtype).nbytes
            grows = sum(low < high for low, high in sizes[1:])
            if state.op in model.graph.index and grows <= 1:
                (growing if grows else fixed)[model.graph.index[state.op]] += size
        return cls(str(model.path), mask[-1][1], count, fixed, growing)

    def bytes(self, tokens: int | None = None) -> NDArray[np.float64]:
        """Return the memory for the states of all texts beside weights, ``float64[V]``, including a part that stays free.

        Args:
            tokens: of each text; None for the longest ones.
        """
        each = self.fixed + self.growing * (self.tokens if tokens is None else tokens)
        return np.asarray(self.count * each / OF_DEVICE, np.float64)

    def check(self, graph: OpGraph, placement: NDArray[np.int32], cluster: Cluster) -> None:
        """Raise PlacementError if a device has room for the weights but not for the states, and say how long texts may be.

        Args:
            graph: the decoder's graph.
            placement: ``int32[V]``, the device of each op.
            cluster: the devices.
        """
        memory = np.array([device.memory_bytes for device in cluster.devices])
        room = OF_DEVICE * (memory - held_bytes(graph.bytes_once, graph.shared, placement[None], len(cluster))[0])
        fixed, growing = (self.count * np.bincount(placement, one, len(cluster)) for one in (self.fixed, self.growing))
        fits = np.full(len(cluster), np.inf)
        np.divide(room - fixed, growing, out=fits, where=growing > 0)
        tight = int(fits.argmin())
        if (room >= 0).all() and fits[tight] < self.tokens:
            least = max(0, int(fits[tight]))
            raise PlacementError(
                f"{self.model} is placed for {self._description}. Their state takes "
                f"{about_bytes(fixed[tight] + growing[tight] * self.tokens)} on {cluster.names[tight]}, which has room for "
                f"{about_bytes(room[tight])} of state beside the weights there: texts of at most {least} tokens fit. Place the "
                "model for a shorter --context, or more of it on other devices."
            )

    def check_room(self, grouping: Grouping, able: NDArray[np.bool_], cluster: Cluster) -> None:
        """Check, before any placement is tried, whether some placement has room for the states.

        Args:
            grouping: the decoder's ops in groups.
            able: ``bool[V, D]``, which ops may be on which devices.
            cluster: the devices.

        Raises:
            InfeasibleError: no placement was found that has; the message says how long texts may be.
        """
        groups = np.ones((len(grouping.groups), len(cluster)), bool)
        np.logical_and.at(groups, grouping.group_of, able)
        if not groups.any(axis=1).all():  # such groups are divided later
            return
        weights = grouping.groups.bytes_once
        problem = Segmenter(grouping, Costs.zero(len(groups), cluster).where(groups)).problem()

        def fits(tokens: int, steps: int = FEWER_STEPS) -> bool:
            states = np.bincount(grouping.group_of, self.bytes(tokens), len(groups))
            return packed(replace(problem, param_bytes=weights + states), steps) is not None

        if fits(self.tokens, PACKING_STEPS):
            return
        pack(replace(problem, param_bytes=weights))  # raises an error if not even the weights fit
        longest = bisect.bisect_left(range(self.tokens), True, key=lambda tokens: not fits(tokens)) - 1
        held = ", ".join(f"{device.name} {about_bytes(device.memory_bytes)}" for device in cluster.devices)
        fits_then = f"Texts of at most {longest} tokens fit" if longest > 0 else "Not even texts of a token fit"
        fewer = "" if self.count == 1 else "fewer --texts, "
        raise InfeasibleError(
            f"No placement of {self.model} was found that has room for {self._description}: their states take "
            f"{about_bytes(OF_DEVICE * self.bytes().sum())} beside {about_bytes(weights.sum())} of weights, and devices may "
            f"hold {held}. {fits_then}: give a shorter --context, {fewer}or more memory."
        )

    @property
    def _description(self) -> str:
        return f"texts of {self.tokens} tokens" if self.count == 1 else f"{self.count} texts of {self.tokens} tokens"
