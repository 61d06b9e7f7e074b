"""Outcomes of placements that a measured cost has valued, and the candidates that placements with equal plans share."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.core.errors import PlacementError
from placeit.core.problem import Problem
from placeit.core.problem_checks import device_numbers
from placeit.measuring.statistics import Measurement
from placeit.optimizer.candidates import Candidate
from placeit.optimizer.races import Races
from placeit.planning.segments import Plan, Segmenter

__all__ = ["Asked", "MeasuredOutcome", "Outcomes", "Source"]

_LOG = logging.getLogger("placeit.optimizer.measured_cost")

Source: TypeAlias = Literal["measured", "estimated", "failed", "dropped", "infeasible"]


@dataclass(frozen=True, eq=False)
class MeasuredOutcome:
    """The outcome of valuing a placement.

    Attributes:
        devices: ``int32[G]``, the device of each group.
        value: the objective: seconds, or joules. NaN if the placement failed or its measurement was dropped, ``inf`` if it does
            not fit.
        source: where the value is from. ``measured``. ``estimated``: by the calibrated simulator, never run. ``failed``: at any
            point, or with wrong outputs. ``dropped``: something other than the placement was at fault, or there was no time; it
            is measured when its value is requested again. ``infeasible``: it breaks a limit of the devices.
        reason: why it was not measured; for a measured placement, why its value is the plain median of its runs. None if
            neither applies.
        measured: seconds of the runs, not corrected for the machine's speed at that time; None unless it was measured.
    """

    devices: NDArray[np.int32]
    value: float
    source: Source
    reason: str | None = None
    measured: Measurement | None = None


class Outcomes(dict[str, MeasuredOutcome]):
    """The outcomes so far, by name of the candidate.

    Args:
        races: the races that measure candidates.
    """

    def __init__(self, races: Races) -> None:
        super().__init__()
        self._races = races
        self._said: set[str] = set()  # reasons that were logged as warnings

    def is_known(self, name: str) -> bool:
        """Return whether the outcome of a candidate is final, so that it need not be measured again."""
        return name in self and self[name].source in ("measured", "failed", "infeasible")

    def drop(self, name: str, why: str) -> None:
        """Record that a measurement does not count; it is repeated when the placement is valued again."""
        self._say("The measurement of a placement is dropped", why)
        self[name] = MeasuredOutcome(self._races.known[name].groups, math.nan, "dropped", why)

    def _say(self, what: str, why: str) -> None:
        """Log a message as a warning, or as info if its reason was given before: many placements can share one."""
        _LOG.log(logging.INFO if why in self._said else logging.WARNING, "%s. %s", what, why)
        self._said.add(why)

    def conclude(self, name: str) -> None:
        """Record the current outcome of a candidate."""
        one = self._races.known[name]
        if one.failed is not None:
            self._say("A placement cannot be measured", one.failed)
            source: Source = "infeasible" if one.no_room else "failed"
            self[name] = MeasuredOutcome(one.groups, math.inf if one.no_room else math.nan, source, one.failed)
        elif one.cost is not None and one.steady:
            self[name] = MeasuredOutcome(one.groups, one.cost, "measured", None, one.measured)
        elif one.cost is None and one.value is not None:
            why = "It finds no room beside the anchor, so its value is the plain median of its runs."
            self[name] = MeasuredOutcome(one.groups, one.value.median, "measured", why, one.measured)
        else:
            self.drop(
                name, "The ratio of its time to the anchor's changed for good while it ran: a device became slower or faster."
            )

    def undo(self, candidates: Sequence[Candidate], anchor: Candidate, found: Mapping[str, Measurement]) -> set[str]:
        """Discard the results of candidates whose anchor failed in the same race, and return their names.

        Args:
            candidates: the candidates, as they were before the race.
            anchor: the anchor before the race. If nothing runs any more, it is not at fault, and stays in use.
            found: the measurements of the race.
        """
        races, failed = self._races, self._races.known[anchor.name].failed
        if failed is None:
            return set()
        why = f"The placement that it was compared with failed in the same race: {failed}"
        undone = {one.name for one in candidates if one.name != anchor.name and races.known[one.name].cost is None}
        for one in candidates:
            if one.name in undone:
                races.undo(one, why)
                self.drop(one.name, why)
        if not found and anchor.cost is not None:
            races.undo(anchor, "Nothing runs any more.")
            undone.add(anchor.name)
        return undone


class Asked:
    """Maps placements to candidates: placements with equal plans share one candidate.

    Args:
        races: the races that candidates are entered in.
        segmenter: makes the plans.
        problem: the problem of placing the groups.
    """

    def __init__(self, races: Races, segmenter: Segmenter, problem: Problem) -> None:
        self._races, self._segmenter, self._problem = races, segmenter, problem
        runtime = races.session.runtime
        self._shared = not runtime.pool.transports and len({device.space for device in runtime.devices}) == 1
        self._names: dict[bytes | frozenset[tuple[int, tuple[int, ...]]], str] = {}  # by placement and by plan

    def rows(self, placements: ArrayLike) -> list[NDArray[np.int32]]:
        """Return the rows of placements, ``int32[B, G]``. Raises PlacementError: a wrong length, or an unknown device."""
        what, size = "Placements of these groups are rows of", self._problem.compute.shape
        return [np.array(row) for row in device_numbers(what, placements, *size, rows=True)]

    def refused(self, row: NDArray[np.int32]) -> str | None:
        """Return why a placement does not fit; None if it does."""
        try:
            self._problem.check(row)
        except PlacementError as error:
            return str(error)
        return None

    def left_out(self, row: NDArray[np.int32]) -> MeasuredOutcome:
        """Return the outcome of a placement that was not measured, since it does not fit or there was no time."""
        if (why := self.refused(row)) is not None:
            return MeasuredOutcome(row, math.inf, "infeasible", why)
        return MeasuredOutcome(row, math.nan, "dropped", "There was no time left.")

    def name_of(self, row: NDArray[np.int32], *, planned: bool = True) -> str | None:
        """Return the name of a placement's candidate; None if it does not fit, or has no plan and ``planned`` is False."""
        key = row.tobytes()
        if key not in self._names:
            if not planned or self.refused(row) is not None:
                return None
            self._names[key] = self.enter(self._segmenter.plan(row), "given")
        return self._names[key]

    def enter(self, plan: Plan, placer: str) -> str:
        """Enter a plan as a candidate, unless an equal one is entered; return the name."""
        # a segment that computes nothing passes a tensor on; if all devices share memory, its device makes no difference
        of = plan.programs if self._shared else plan.segments
        key = frozenset((segment.device, segment.groups) for segment in of)
        if key not in self._names:
            name, simulated = f"placement {len(self._races.known) + 1}", self._races.simulated_of(plan)
            self._races.enter(Candidate(name, placer, plan, self._races.session.placing, *simulated))
            self._names[key] = name
        return self._names[key]
