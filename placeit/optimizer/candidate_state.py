"""The state of a candidate: proposed, skipped, measured or failed, with the facts of that state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.measuring.statistics import Measurement

__all__ = ["Failed", "Proposed", "Ran", "Skipped", "State", "StateDict"]

StateDict: TypeAlias = Mapping[str, Any]
"""A state in a story: its ``kind``, and JSON-compatible facts."""


class _State:
    """A state of a candidate; ``kind`` is its name."""

    kind: ClassVar[str]

    def to_dict(self) -> StateDict:
        """Return the state for a story."""
        return {"kind": self.kind, **vars(self)}


@dataclass(frozen=True)
class Proposed(_State):
    """A candidate that was neither run nor skipped yet."""

    kind: ClassVar = "proposed"


@dataclass(frozen=True)
class Skipped(_State):
    """A candidate that is not run.

    Attributes:
        reason: why it was not worth a run, or could not be run.
        late: whether it could not be compiled in time.
    """

    reason: str
    late: bool = False
    kind: ClassVar = "skipped"


@dataclass(frozen=True, eq=False)
class Ran(_State):
    """A candidate that was run, with right outputs.

    Attributes:
        measured: latency, or for throughput seconds per request with many in flight, in the candidate's last race.
        value: the objective in the same runs, and equal to ``measured`` for latency and throughput. Joules come from meters if
            all devices have one (``joules``), and else from a power model and measured busy times (``modelled``).
        joules: joules per request that meters showed in the same runs; None for other objectives, and if a device has no meter.
        modelled: joules of the same runs by the power model; None for other objectives, and if an earlier search metered them.
        cost: the objective in a form that compares across races: the ratio to a candidate of known cost that ran in the same
            rounds, times that cost. None if no candidate of known cost ran in these rounds.
        steady: whether that ratio showed no permanent change during the race.
        segment_s: median seconds of each segment of the plan in these runs, ``float64[S]``; None if unknown.
        inner_s: median seconds of single requests in the same runs, from the start of their lanes to the end of the last
            segment; None if unknown.
        race: index of that race in ``Optimized.races``; times of different races do not compare. None if it took part in none.
        final: whether that race was the deciding one.
        earlier: whether ``measured`` is from an earlier search (``resume``).
    """

    measured: Measurement
    value: Measurement
    joules: Measurement | None = None
    modelled: Measurement | None = None
    cost: float | None = None
    steady: bool = True
    segment_s: NDArray[np.float64] | None = None
    inner_s: float | None = None
    race: int | None = None
    final: bool = False
    earlier: bool = False
    kind: ClassVar = "measured"

    def to_dict(self) -> StateDict:
        """Return the state for a story, with the medians of the runs."""
        return {
            "kind": self.kind,
            "measured_s": self.measured.median,
            "value": self.value.median,
            "cost": self.cost,
            "steady": self.steady,
            "race": self.race,
            "final": self.final,
            "earlier": self.earlier,
        }


@dataclass(frozen=True)
class Failed(_State):
    """A candidate that failed; its measurements no longer count.

    Attributes:
        reason: why it failed.
        no_room: whether its devices do not have enough memory for it.
        earlier: whether an earlier search measured it.
    """

    reason: str
    no_room: bool = False
    earlier: bool = False
    kind: ClassVar = "failed"


State: TypeAlias = Proposed | Skipped | Ran | Failed
