"""Simulate a placement, and moves of its groups to other devices, by the costs of a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import PlacementError
from placeit.core.placement import Placement
from placeit.core.problem import Problem
from placeit.planning.segments import Plan
from placeit.workbench import Workbench

__all__ = ["Move", "Trials"]


@dataclass(frozen=True)
class Move:
    """The simulated effect of moving a group or a segment to another device.

    Attributes:
        what: ``group`` or ``segment``.
        device: the other device.
        simulated_s: simulated seconds of a request after the move; None if the move is impossible.
        change_s: ``simulated_s`` less the simulated seconds without the move, both planned again; None if it is impossible.
        refused: why it cannot be moved there; None if it can.
    """

    what: str
    device: str
    simulated_s: float | None
    change_s: float | None
    refused: str | None


class Trials:
    """A placement whose moves are simulated.

    Attributes:
        session: the model on the devices.
        segmenter: segmenter with the session's costs.
        problem: the problem of placing the groups.
        groups: ``int32[G]``, the device of each group.
        plan: plan of the placement.
        replanned_s: simulated seconds of a request with the segments planned again.
    """

    def __init__(self, session: Workbench, placement: Placement) -> None:
        self.session, self.segmenter = session, session.segmenter
        self.problem: Problem = self.segmenter.problem()
        self.plan: Plan = session.plan_of(placement, self.segmenter)
        self.groups: NDArray[np.int32] = self.plan.group_devices
        self.replanned_s = float(self.segmenter.seconds(self.groups)[0])

    def move(self, what: str, groups: Sequence[int], device: int) -> Move:
        """Simulate a move of some groups to another device."""
        moved, name = self.groups.copy(), self.session.cluster.names[device]
        moved[list(groups)] = device
        try:
            self.problem.check(moved)
        except PlacementError as error:
            return Move(what, name, None, None, str(error))
        seconds = float(self.segmenter.seconds(moved)[0])
        return Move(what, name, seconds, seconds - self.replanned_s, None)

    def moves(self, what: str, groups: Sequence[int]) -> list[Move]:
        """Simulate moves of some groups from their common device to each other device."""
        here = self.groups[groups[0]]
        return [self.move(what, groups, d) for d in range(len(self.session.cluster)) if d != here]

    def worst(self, count: int) -> list[int]:
        """Return the groups whose best move saves most, or costs least; of equal groups, the slowest comes first."""
        best = []
        for g in np.flatnonzero(self.segmenter.computes).tolist():
            changes = [one.change_s for one in self.moves("group", [g]) if one.change_s is not None]
            best.append((min(changes, default=np.inf), -self.session.costs.core[g, self.groups[g]], g))
        return [g for _, _, g in sorted(best)[:count]]

    def heaviest(self, group: int) -> int:
        """Return the op of a group with the most floating-point operations, of several, the first."""
        graph = self.session.grouping.graph
        return max((graph.index[name] for name in self.session.grouping.members(group)), key=lambda v: graph.flops[v])
