"""Convert between placements of ops, as files keep them, and placements of groups, as plans use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.core.errors import PlacementError
from placeit.core.graph import OpGraph
from placeit.core.placement import Placement
from placeit.planning.coarsen import LARGEST, Grouping, coarsen
from placeit.planning.pins import divided, group_devices, held, pinned_ops
from placeit.planning.segments import Costs, Plan

__all__ = ["Placing"]


@dataclass(frozen=True, eq=False)
class Placing:
    """A grouping of a model's ops, and the devices on which the groups are to be placed.

    Attributes:
        grouping: ops and groups.
        devices: the devices' names.
        pinned: ``int32[V]``, the device that each op has to be on; -1 for an op that is not pinned.
        together: sets of ops that need one device.
    """

    grouping: Grouping
    devices: tuple[str, ...]
    pinned: NDArray[np.int32]
    together: Sequence[Sequence[str]] = ()

    @classmethod
    def of(
        cls,
        graph: OpGraph,
        devices: tuple[str, ...],
        *,
        pins: Mapping[str, str],
        max_groups: int,
        together: Sequence[Sequence[str]],
        pairs: Sequence[Sequence[str]] = (),
        memory: Sequence[float] = (),
    ) -> Self:
        """Group the ops of a model; a group whose ops are pinned to several devices is split.

        Args:
            graph: the model's graph.
            devices: the devices' names.
            pins: device names by op names or globs of them.
            max_groups: largest number of groups, before any is split.
            together: sets of ops that need one device.
            pairs: sets of ops that are in one group unless pins or placements separate them.
            memory: bytes of each device's memory.

        Raises:
            UsageError: a pin names an unknown device, matches no op, or contradicts another pin.
            PlacementError: ops that need one device are pinned to several.
        """
        pinned = pinned_ops(pins, graph.names, devices)
        grouping = coarsen(graph, max_groups=max_groups, keep_together=together, pairs=pairs, largest=LARGEST, memory=memory)
        return cls(divided(grouping, pinned, together), devices, pinned, together)

    def on(self, devices: tuple[str, ...]) -> Self:
        """Return the same groups, without pins, for other devices."""
        return replace(self, devices=devices, pinned=np.full_like(self.pinned, -1))

    def able(self) -> NDArray[np.bool_]:
        """Return which ops may be on which devices according to the pins: ``bool[V, D]``."""
        pinned = self.pinned[:, None]
        able: NDArray[np.bool_] = (pinned == -1) | (pinned == np.arange(len(self.devices)))
        return able

    def held(self, costs: Costs) -> Costs:
        """Return costs that let a pinned group run only where it is pinned. Raises InfeasibleError if it cannot run there."""
        return held(costs, self.grouping, self.pinned)

    def divided(self, placement: Placement, *, by_segments: bool = False) -> Self:
        """Split groups whose ops a placement has on different devices or, ``by_segments``, in different segments.

        Raises:
            PlacementError: the placement does not fit the model or the devices, or separates ops that need one device.
        """
        graph = self.grouping.graph
        parts = placement.for_ops(graph.names, self.devices, graph.structure, graph.hash)
        if by_segments and (segments := placement.segments_for(graph.names)) is not None:
            parts = segments
        return replace(self, grouping=divided(self.grouping, parts, self.together))

    def divided_by(self, kinds: NDArray[np.int32]) -> Self:
        """Split groups with ops of different kinds, ``int32[V]``, unless that separates ops that need one device."""
        try:
            return replace(self, grouping=divided(self.grouping, kinds, self.together))
        except PlacementError:
            return self

    def groups_of(self, placement: Placement) -> NDArray[np.int32]:
        """Return the device of each group, ``int32[G]``, matched by the names of ops and devices.

        Raises:
            PlacementError: the placement belongs to another model, does not cover this one, uses an unknown device, separates
                ops of one group, or has an op on another device than it is pinned to.
        """
        grouping, graph = self.grouping, self.grouping.graph
        devices = placement.for_ops(graph.names, self.devices, graph.structure, graph.hash)
        first = np.full(len(grouping.groups), -1, np.int32)
        for v, (group, device) in enumerate(zip(grouping.group_of.tolist(), devices.tolist(), strict=True)):
            if first[group] < 0:
                first[group] = device
            elif first[group] != device:
                raise PlacementError(
                    f"Op '{graph.names[v]}' is on {self.devices[device]}, but the ops before it that it belongs with are on "
                    f"{self.devices[first[group]]}: ops of a group share a device (see `placeit inspect --groups`)."
                )
        wanted = group_devices(grouping, self.pinned)
        wrong = np.flatnonzero((wanted >= 0) & (wanted != first))
        if len(wrong):
            group = int(wrong[0])
            op = int(np.flatnonzero((grouping.group_of == group) & (self.pinned >= 0))[0])
            raise PlacementError(
                f"The placement has op '{graph.names[op]}' on {self.devices[first[group]]}, and it is pinned to "
                f"{self.devices[wanted[group]]}."
            )
        return first

    def segments_of(self, placement: Placement) -> NDArray[np.int32] | None:
        """Return the placement's segment of each group, ``int32[G]``; None without segments, or if a segment cuts a group."""
        of_op = placement.segments_for(self.grouping.graph.names)
        if of_op is None:
            return None
        of = np.zeros(len(self.grouping.groups), np.int32)
        of[self.grouping.group_of] = of_op
        return of if (of[self.grouping.group_of] == of_op).all() else None

    def placement(self, groups: ArrayLike | Placement, plan: Plan | None = None) -> Placement:
        """Return the placement of ops, given each group's device; with a plan, its segments are added.

        Args:
            groups: ``int32[G]``, or a placement of the problem whose ops are the groups.
            plan: the plan.

        Raises:
            PlacementError: these are not the numbers of a device for each group.
        """
        group_of, graph, count = self.grouping.group_of, self.grouping.graph, len(self.grouping.groups)
        chosen = np.asarray(groups.devices if isinstance(groups, Placement) else groups, np.int32)
        if chosen.shape != (count,) or not ((chosen >= 0) & (chosen < len(self.devices))).all():
            got = f"{', '.join(map(str, chosen.ravel()[:9].tolist()))}{', ...' if chosen.size > 9 else ''}"
            raise PlacementError(
                f"A placement of this model's {count} groups is {count} device numbers, 0 to {len(self.devices) - 1}; "
                f"got {got or 'none'}."
            )
        return Placement(
            graph.names, chosen[group_of], self.devices, graph.structure, None if plan is None else plan.segment_of[group_of]
        )
