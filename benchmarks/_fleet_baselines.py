"""Assignments of a fleet by simple rules, which the joint planner (``placeit.workload.assigning``) is compared with."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from placeit.workload.assigning import MAX_LATE, Assignment, Planner, _Draft
from placeit.workload.fleet import Demand, Fleet, total

__all__ = ["WAYS", "Way", "planner"]

Way: TypeAlias = Literal["joint", "round robin", "best fit", "declared", "each alone"]
WAYS: tuple[Way, ...] = get_args(Way)

_DECLARED = 0.7  # share of a node's time that is given away where loads are declared


def planner(fleet: Fleet, demand: Demand, rates: NDArray[np.float64], way: Way) -> Planner:
    """Return the joint planner, or a baseline."""
    return Planner(fleet, demand, rates) if way == "joint" else _Baseline(fleet, demand, rates, way)


class _Baseline(Planner):
    """Takes a node for a model if it would keep the limit alone there, and fills it as if it had no other model.

    A node that holds the model is filled before another one is taken. ``round robin`` takes nodes in turn, ``best fit`` the
    node with the least memory left, ``declared`` does so among nodes that are busy for less than 70 % of their time, and
    ``each alone`` takes the node that answers first.
    """

    _stages = ((MAX_LATE, np.inf),)

    def __init__(self, fleet: Fleet, demand: Demand, rates: NDArray[np.float64], way: Way) -> None:
        super().__init__(fleet, demand, rates)
        self.way, self._turn = way, 0

    def _place(self, draft: _Draft, source: int, remaining: float, tolerance: float, late: float, max_cost: float) -> float:  # noqa: ARG002
        near = self._near_nodes(int(self.demand.site[source]))
        needs, model, nodes = self._needs(source, near), int(self.demand.model[source]), near.nodes
        tried = draft.alive[nodes] & (needs.wait > 0)
        while remaining > tolerance:
            own = draft.instance_rates(model, nodes)
            room = self.max_load(needs.wait, needs.part, late) / needs.part - np.maximum(own, 0.0)
            if self.way == "declared":
                room = np.minimum(room, (_DECLARED - draft.load[nodes]) / needs.part)
            room = self._within_links(draft, near, model, room)
            able = tried & (room > tolerance) & ((own >= 0) | (draft.free_memory[nodes] >= needs.weights))
            if not able.any():
                return remaining
            if self.way == "each alone":
                rank = -needs.wait * needs.parts
            elif self.way == "round robin":
                rank = ((nodes - self._turn) % len(self.fleet.names)).astype(np.float64)
            else:
                rank = draft.free_memory[nodes] - needs.weights
            best = int(np.argmin(np.where(able, np.where(own >= 0, -np.inf, rank), np.inf)))
            taken = self._assign(
                draft, source, near, needs, best, able & (own < 0), np.where(room > tolerance, np.minimum(room, remaining), 0.0)
            )
            tried[best] &= taken > 0
            remaining -= taken
            self._turn = int(nodes[best]) + 1 if taken > 0 else self._turn
        return 0.0

    def _kept_shares(self, kept: Assignment, wait: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG002
        own = total(kept.instance, kept.rate, len(kept.model))[kept.instance]
        most = self.max_load(kept.wait, kept.part[kept.instance]) / kept.part[kept.instance]
        return np.minimum(1.0, most / np.maximum(own, 1e-300))
