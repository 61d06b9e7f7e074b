"""List how two placements differ, and simulate each move from one to the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from placeit.core.errors import UsageError, naming
from placeit.core.jsonable import jsonable_dict
from placeit.core.placement import Placement
from placeit.measuring.incumbent import compared
from placeit.measuring.statistics import Ratio
from placeit.optimizer.candidates import interval
from placeit.optimizer.compare import Comparison
from placeit.optimizer.trials import Trials
from placeit.planning.profiled import Profiled
from placeit.workbench import Workbench

__all__ = ["Difference", "Moved", "check_differing", "diff"]


@dataclass(frozen=True)
class Moved:
    """A group that is on different devices in two placements.

    Attributes:
        ops: names of its ops.
        src: its device in the first placement.
        dst: its device in the second placement.
        simulated_s: simulated seconds of a request if only this group of the first placement moves; None if it cannot move
            alone.
        change_s: ``simulated_s`` less the simulated time of the first placement, both planned again.
        refused: why it cannot move alone; None if it can.
    """

    ops: tuple[str, ...]
    src: str
    dst: str
    simulated_s: float | None
    change_s: float | None
    refused: str | None


@dataclass(frozen=True)
class Difference:
    """Result of :func:`diff`.

    Attributes:
        model: path of the model.
        names: names of the two placements.
        simulated_s: simulated seconds of a request, for each placement.
        replanned_s: simulated seconds of a request with the segments planned again, for each placement.
        same_segments: whether both run as the same segments.
        moved: groups that are on different devices; the group whose move alone saves most comes first.
        measured: a race of both placements; None if they were not raced.
        profiled: when costs were measured; None if they are estimates.
    """

    model: str
    names: tuple[str, str]
    simulated_s: tuple[float, float]
    replanned_s: tuple[float, float]
    same_segments: bool
    moved: tuple[Moved, ...]
    measured: Comparison | None
    profiled: Profiled | None

    @property
    def change_s(self) -> float:
        """Seconds that all moves together add to a simulated request, planned again before and after."""
        return self.replanned_s[1] - self.replanned_s[0]

    @property
    def failed(self) -> dict[str, str | None]:
        """Why each placement failed in the race, by name; None if it did not fail."""
        rows = () if self.measured is None else self.measured.candidates
        return {one.name: one.failed for one in rows if one.name in self.names}

    @property
    def speedup(self) -> Ratio | None:
        """Measured time of the first placement over the second's; None unless both were measured."""
        if self.measured is None:
            return None
        first, second = (next(one.measured for one in self.measured.candidates if one.name == name) for name in self.names)
        return compared(first, second)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict, as ``placeit diff --json`` prints it, where names are paths of files."""
        measured, ratio = None, self.speedup
        if self.measured is not None:
            rows = {one.name: one for one in self.measured.candidates}
            measured = {
                "rounds": self.measured.rounds,
                "placements": [
                    {
                        "name": name,
                        "measured_s": None if (found := rows[name].measured) is None else found.median,
                        "ci_s": interval(found),
                        "failed": rows[name].failed,
                    }
                    for name in self.names
                ],
                "speedup": None if ratio is None else {"ratio": ratio.ratio, "ci": interval(ratio)},
                "interrupted": self.measured.interrupted,
            }
        return jsonable_dict(
            {
                "model": self.model,
                "placements": [
                    {"name": name, "simulated_s": simulated, "replanned_s": replanned}
                    for name, simulated, replanned in zip(self.names, self.simulated_s, self.replanned_s, strict=True)
                ],
                "same_segments": self.same_segments,
                "moved": [asdict(one) for one in self.moved],
                "change_s": self.change_s,
                "measured": measured,
                "profiled": None if self.profiled is None else self.profiled.to_dict(),
            }
        )


def diff(session: Workbench, first: Placement, second: Placement, *, names: tuple[str, str]) -> Difference:
    """Return how two placements differ, and what each move from the first to the second would change.

    Args:
        session: the model on the devices, profiled (:meth:`placeit.Session.profile`).
        first: a placement of the model's ops. Groups that a placement divides must be split (:meth:`placeit.Session.divide`).
        second: the other placement.
        names: names of the two placements.

    Raises:
        UsageError: a placement has replicas or uses a device that the session does not have, or the session was not profiled.
        PlacementError: a placement does not fit the model, the devices or their memory; names the placement.
    """
    check_differing(session, dict(zip(names, (first, second), strict=True)))
    with naming(names[0]):
        before = Trials(session, first)
    with naming(names[1]):
        after = Trials(session, second)
    grouping, devices = session.grouping, session.cluster.names
    changed = np.flatnonzero(before.groups != after.groups).tolist()
    moved = []
    for g in changed:
        to = int(after.groups[g])
        alone = before.move("group", [g], to)
        ends = devices[before.groups[g]], devices[to]
        moved.append(Moved(grouping.members(g), *ends, alone.simulated_s, alone.change_s, alone.refused))
    segments = before.plan.segment_of, after.plan.segment_of
    return Difference(
        model=str(session.model.path),
        names=names,
        simulated_s=(before.plan.schedule.makespan, after.plan.schedule.makespan),
        replanned_s=(before.replanned_s, after.replanned_s),
        same_segments=bool(np.array_equal(*segments)),
        moved=tuple(sorted(moved, key=lambda one: np.inf if one.change_s is None else one.change_s)),
        measured=None,
        profiled=session.costs.profiled,
    )


def check_differing(session: Workbench, placements: Mapping[str, Placement]) -> None:
    """Raise UsageError unless all placements (by name) can be compared group by group."""
    for name, placement in placements.items():
        if placement.replicas:
            raise UsageError(f"{name} has replicas, which are not told apart here: race it with `placeit compare`.")
        if session.home_of(placement) is not session:
            where = ", ".join(set(placement.as_dict().values()))
            raise UsageError(f"{name} has the whole model on {where}, without groups: race it with `placeit compare`.")
