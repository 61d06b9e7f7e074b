"""Candidates of a search: proposed placements, and the facts known about them so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from placeit.core.placement import Placement
from placeit.core.units import milliseconds
from placeit.devices.own_modes import OwnMode
from placeit.measuring.check import OutputDifference
from placeit.measuring.statistics import Measurement, Ratio
from placeit.optimizer.candidate_state import Failed, Proposed, Ran, Skipped, State
from placeit.planning.placing import Placing
from placeit.planning.segments import Plan
from placeit.workbench import Workbench

__all__ = [
    "NOT_RUN",
    "Beside",
    "Candidate",
    "Facts",
    "OtherDevices",
    "RaceResult",
    "interval",
    "known_value",
    "measured_median",
    "value_of",
]


NOT_RUN = OutputDifference(math.nan, math.nan, not_checked="it was not run", not_finite=math.nan)
"""Output error of a candidate that was not run."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A placement and the facts known about it. A new fact makes a new instance (``dataclasses.replace``).

    Attributes:
        name: unique among the candidates.
        placer: name of the placer that proposed it; ``single`` for a whole model on one device.
        plan: its segments, as they were simulated and measured; a session of the same model on the same devices can run them.
        placing: the model's groups, and the devices that this candidate can use.
        simulated_s: seconds that the simulator predicted before this candidate was measured, to compare with ``measured``; None
            for a plain device, for which nothing was profiled.
        simulated_value: the objective in the same simulation, in the objective's unit.
        plain: whether it is the whole model on a plain device: all core sets of the cluster as one device, as a program
            without placeit uses them (:func:`placeit.devices.plain.plain_devices`).
        of: for a single device in another precision, which cannot be chosen: name of the same candidate in the requested
            precision; else None.
        twin: for a split with compiled segments, on the same cores: name of the same split with eager ones; else None.
        reference: for a reference, which cannot be chosen: OpenVINO's mode and devices; else None.
        used: for a reference, the devices that OpenVINO reported as used; empty if it did not run or OpenVINO reports none.
        given: whether the caller gave it to the search as a starting placement.
        start: name of the candidate that its search started from; None if its placer was given no start.
        replicas: plans on other devices, which serve whole requests as ``plan`` does; for throughput only.
        refused: why the compiler of a device refused segments of ``plan``, which run op by op, by their numbers.
        output_error: difference between its outputs and the outputs of the whole model on one device; None if it was not run.
        state: whether it is only proposed, was skipped or measured, or has failed, with the facts of that state.
    """

    name: str
    placer: str
    plan: Plan
    placing: Placing = field(repr=False)
    simulated_s: float | None
    simulated_value: float | None
    plain: bool = False
    of: str | None = None
    twin: str | None = None
    reference: OwnMode | None = None
    used: tuple[str, ...] = ()
    given: bool = False
    start: str | None = None
    replicas: tuple[Plan, ...] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    output_error: OutputDifference | None = None
    state: State = field(default_factory=Proposed)

    def __repr__(self) -> str:
        facts = [] if self.simulated_s is None else [f"simulated {milliseconds(self.simulated_s)}"]
        if self.measured is not None:
            facts.append(f"measured {milliseconds(self.measured.median)}")
        if (why := self.failed or self.not_run) is not None:
            facts.append(why)
        return f"<Candidate {self.name} ({self.placer}): {'; '.join([self.placement.ops_by_device, *facts])}>"

    @property
    def runs(self) -> Ran | None:
        """Its state if it was measured, else None."""
        return self.state if isinstance(self.state, Ran) else None

    @property
    def measured(self) -> Measurement | None:
        """Seconds of its runs in the last race (:attr:`Ran.measured`); None if it was not measured."""
        return None if self.runs is None else self.runs.measured

    @property
    def value(self) -> Measurement | None:
        """The objective in the same runs (:attr:`Ran.value`); None if it was not measured."""
        return None if self.runs is None else self.runs.value

    @property
    def inner_s(self) -> float | None:
        """Median seconds of single requests without the caller's wait (:attr:`Ran.inner_s`); None if unknown."""
        return None if self.runs is None else self.runs.inner_s

    @property
    def joules(self) -> Measurement | None:
        """Joules of the same runs by meters; None if there are none."""
        return None if self.runs is None else self.runs.joules

    @property
    def modelled(self) -> Measurement | None:
        """Joules of the same runs by the power model; None if they were not computed."""
        return None if self.runs is None else self.runs.modelled

    @property
    def cost(self) -> float | None:
        """The objective in a form that compares across races (:attr:`Ran.cost`); None if it is unknown."""
        return None if self.runs is None else self.runs.cost

    @property
    def steady(self) -> bool:
        """False if the ratio that ``cost`` is from changed for good during the race."""
        return self.runs is None or self.runs.steady

    @property
    def segment_s(self) -> NDArray[np.float64] | None:
        """Median seconds of each segment, ``float64[S]``; None if unknown."""
        return None if self.runs is None else self.runs.segment_s

    @property
    def race(self) -> int | None:
        """Index of its last race in ``Optimized.races``; None if it took part in none."""
        return None if self.runs is None else self.runs.race

    @property
    def final(self) -> bool:
        """True if its last race was the deciding one."""
        return self.runs is not None and self.runs.final

    @property
    def earlier(self) -> bool:
        """True if it was measured by an earlier search (``resume``)."""
        return isinstance(self.state, Ran | Failed) and self.state.earlier

    @property
    def failed(self) -> str | None:
        """Why it failed; None if it did not."""
        return self.state.reason if isinstance(self.state, Failed) else None

    @property
    def no_room(self) -> bool:
        """True if it failed because its devices do not have enough memory for it."""
        return isinstance(self.state, Failed) and self.state.no_room

    @property
    def not_run(self) -> str | None:
        """Why it was skipped; None if it was not."""
        return self.state.reason if isinstance(self.state, Skipped) else None

    @property
    def late(self) -> bool:
        """True if it was skipped because it could not be compiled in time."""
        return isinstance(self.state, Skipped) and self.state.late

    @cached_property
    def groups(self) -> NDArray[np.int32]:
        """Device of each group, ``int32[G]``; for replicas, in the first of them."""
        return self.plan.group_devices

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All plans that serve whole requests: ``plan`` and the replicas."""
        return (self.plan, *self.replicas)

    @cached_property
    def placement(self) -> Placement:
        """Device and segment of every op."""
        first, *others = (self.placing.placement(plan.group_devices, plan) for plan in self.plans)
        return replace(first, replicas=tuple(others))

    @property
    def may_be_chosen(self) -> bool:
        """True if it can be the answer: a placement in the requested precision, not a row for comparison only."""
        return self.of is None and self.reference is None

    @property
    def segments(self) -> int:
        """Number of segments that run a program, over all plans."""
        return sum(len(plan.programs) for plan in self.plans)

    def to_dict(self) -> dict[str, Any]:
        """Return the candidate as a dict for JSON output."""
        return {
            "name": self.name,
            "placer": self.placer,
            "plain": self.plain,
            "simulated_s": self.simulated_s,
            "measured_s": None if self.measured is None else self.measured.median,
            "ci_s": interval(self.measured),
            "inner_s": self.inner_s,
            "race": self.race,
            "simulated_value": self.simulated_value,
            "value_from_runs": None if self.value is None else self.value.median,
            "value_ci": interval(self.value),
            "joules_measured": None if self.joules is None else self.joules.median,
            "joules_modelled": None if self.modelled is None else self.modelled.median,
            "devices": self.placement.counts(),
            "segments": self.segments,
            "replicas": len(self.plans),
            "output_error": (self.output_error or NOT_RUN).to_dict(),
            "measured_earlier": self.earlier,
            "failed": self.failed,
            "not_run": self.not_run,
            "refused": [{"segment": s, "why": why} for s, why in self.refused.items()],
        }


class Facts(TypedDict, total=False):
    """Facts that a search learns about a candidate in any state, by attribute name of :class:`Candidate`."""

    plan: Plan
    replicas: tuple[Plan, ...]
    used: tuple[str, ...]
    given: bool
    refused: Mapping[int, str]
    output_error: OutputDifference | None


@dataclass(frozen=True, eq=False)
class OtherDevices:
    """Devices that run a candidate and are not in the cluster, or not in the requested precision.

    Attributes:
        session: the same model on these devices.
        busy: ``float64[D]``, 1 for each device of the cluster that is busy while a single device runs, 0 for the others; for
            several devices, a row of these for each of them.
    """

    session: Workbench
    busy: NDArray[np.float64]

    @property
    def is_onnxruntime(self) -> bool:
        """True if the candidate is plain ONNX Runtime."""
        return self.session.cluster.devices[0].plain


@dataclass(frozen=True, eq=False)
class RaceResult:
    """The result of a race.

    Attributes:
        what: purpose of the race, as the progress display showed it.
        rounds: number of rounds that count.
        measured: latency in it, by name, of all candidates that took part and did not fail.
        disturbed: number of these rounds in which other work disturbed the machine.
        left_out: number of further rounds, which were disturbed and do not count.
    """

    what: str
    rounds: int
    measured: Mapping[str, Measurement]
    disturbed: int = 0
    left_out: int = 0


@dataclass(frozen=True, eq=False)
class Beside:
    """A comparison only: a way to run the model that cannot be chosen, measured beside a candidate.

    Attributes:
        row: facts about this way, in the form of a candidate.
        ratio: its time over the candidate's time in the same rounds, with the interval; None if they have no common round.
    """

    row: Candidate
    ratio: Ratio | None

    def to_dict(self, **facts: object) -> dict[str, Any]:
        """Return it as a dict for JSON output, with additional ``facts``."""
        ratio = None if self.ratio is None else self.ratio.ratio
        return self.row.to_dict() | facts | {"ratio": ratio, "ratio_ci": interval(self.ratio)}


def measured_median(candidate: Candidate) -> float:
    """Return the median seconds of a candidate; ``inf`` if it was not measured."""
    return math.inf if candidate.measured is None else candidate.measured.median


def value_of(candidate: Candidate) -> float:
    """Return the objective of a candidate, comparable across races where possible; ``inf`` if it was not measured."""
    if candidate.value is None:
        return math.inf
    return candidate.value.median if candidate.cost is None else candidate.cost


def known_value(candidate: Candidate, scale: float = 1.0) -> float:
    """Return a candidate's measured objective, or else the simulated one times ``scale``; ``inf`` if it has neither."""
    simulated = math.inf if candidate.simulated_value is None else candidate.simulated_value * scale
    return simulated if candidate.value is None else candidate.value.median


def interval(of: Measurement | Ratio | None) -> tuple[float | None, float | None]:
    """Return the ends of a confidence interval; (None, None) if nothing was measured."""
    return (None, None) if of is None else (of.ci_low, of.ci_high)
