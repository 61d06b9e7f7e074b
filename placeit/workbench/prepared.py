"""Prepared placements: a placement with its plan, and the session that runs it."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from placeit.core.placement import Placement
from placeit.planning.segments import Plan
from placeit.runtime.plan_executor import PlanExecutor, to_serve
from placeit.runtime.runtime import SERVING_PRIORITY
from placeit.workbench.opened import Workbench

__all__ = ["Prepared", "PreparedCache"]

_MAX_CACHED = 16  # prepared placements in a cache


@dataclass(frozen=True, eq=False)
class Prepared:
    """A placement with its plan, ready to be run by a session.

    Attributes:
        placement: placement of the model's ops; its replicas are not prepared.
        home: the session whose devices it runs on.
        plan: its segments.
    """

    placement: Placement
    home: Workbench
    plan: Plan

    @classmethod
    def of(cls, session: Workbench, placement: Placement) -> Self:
        """Plan a placement for the session that runs it (:meth:`Workbench.home_of`).

        Raises:
            PlacementError, UsageError: as by :meth:`Workbench.plan_of`.
        """
        home = session.home_of(placement)
        return cls(placement, home, home.plan_of(placement))

    @property
    def segments(self) -> NDArray[np.int32]:
        """``int32[V]``, the segment of each op."""
        return self.plan.segment_of[self.home.grouping.group_of]

    def to_serve(self, in_flight: int | None = None, priority: int = 0) -> PlanExecutor:
        """Compile the placement for a server, and return its executor.

        Args:
            in_flight: maximum number of requests in flight; None for as many as its highest throughput needs.
            priority: 0 or less; added to the priority of servers.
        """
        best = self.home.best_in_flight(self.plan, 0) or None if in_flight is None else in_flight
        return to_serve(functools.partial(self.home.executor, priority=SERVING_PRIORITY + priority), self.plan, best)


class PreparedCache:
    """Prepares placements for a session, and keeps them until its groups or costs change.

    Args:
        session: the session.
    """

    def __init__(self, session: Workbench) -> None:
        self._session = session
        self._cached: dict[Hashable, Prepared] = {}

    def prepare(self, placement: Placement) -> Prepared:
        """Return a placement without its replicas, prepared. Raises PlacementError or UsageError (:meth:`Prepared.of`)."""
        home, segments = self._session.home_of(placement), placement.segments
        key = (
            *home.planned_with,
            placement.graph_hash,
            placement.op_names,
            placement.device_names,
            placement.devices.tobytes(),
            None if segments is None else segments.tobytes(),
        )
        found = self._cached.get(key)
        if found is None:
            found = self._cached[key] = Prepared(placement, home, home.plan_of(placement))
            if len(self._cached) > _MAX_CACHED:
                self._cached.pop(next(iter(self._cached)))
        return found

    def every(self, placement: Placement) -> list[Prepared]:
        """Return a placement and its replicas, prepared. Raises PlacementError or UsageError (:meth:`Prepared.of`)."""
        return [self.prepare(one) for one in placement.every]
