"""Candidates of a search: proposed placements, and everything that is known about them so far."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError, ExecutionError
from placeit.core.placement import Placement
from placeit.core.problem import Problem
from placeit.devices.host import free_bytes
from placeit.devices.kinds import kind_of
from placeit.devices.own_modes import OwnMode
from placeit.measuring.check import OutputDifference
from placeit.measuring.measure import Measurement, Ratio
from placeit.planning.placing import Placing
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.workbench import Workbench

__all__ = [
    "NOT_RUN",
    "Alone",
    "Beside",
    "Candidate",
    "Facts",
    "Raced",
    "alone_on",
    "in_other_precision",
    "interval",
    "known_value",
    "measured_median",
    "plain_candidates",
    "value_of",
]


NOT_RUN = OutputDifference(math.nan, math.nan, not_checked="it was not run", not_finite=math.nan)
"""Output error of a candidate that was not run."""
_COPIES = 2  # copies of the weights that free memory must hold before plain ONNX Runtime is opened
_log = logging.getLogger("placeit")


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
        plain: whether it is the whole model on a plain device: not a device of the cluster, but all of the cluster's core sets
            as one, as one would use them without placeit (:func:`placeit.devices.plain.plain_devices`).
        of: for a single device in another precision, which cannot be chosen: name of the same candidate in the requested
            precision; else None.
        reference: for a reference, which cannot be chosen: how OpenVINO runs the model by itself; else None.
        used: for a reference, the devices that OpenVINO reported as used; empty if it did not run or OpenVINO reports none.
        given: whether the caller gave it to the search as a starting placement.
        start: name of the candidate that its search started from; None if its placer was given no start.
        replicas: plans on other devices, which serve whole requests as ``plan`` does; for throughput only.
        measured: latency, or for throughput seconds per request with many in flight, in the last race that it took part in;
            None if it was not measured.
        inner_s: median seconds of single requests in the same runs, from the start of their lanes to the end of the last
            segment; None if unknown.
        value: the objective in the same runs as ``measured``, and equal to it for latency and throughput. Joules come from
            meters if all devices have one (``joules``), and else from a power model and measured busy times (``modelled``).
            None if the candidate was not measured.
        joules: joules per request that meters showed in the same runs; None for other objectives, and if a device has no meter.
        modelled: joules of the same runs by the power model; None for other objectives, and if an earlier search metered them.
        cost: the objective in a form that compares across races: the ratio to a candidate of known cost that ran in the same
            rounds, times that cost. None if no candidate of known cost ran in these rounds.
        steady: whether that ratio showed no permanent change during the race.
        segment_s: median seconds of each segment of ``plan`` in these runs, ``float64[S]``; None if unknown.
        race: index of that race in ``Optimized.races``; times of different races do not compare. None if it took part in none.
        final: whether that race was the deciding one.
        earlier: whether ``measured`` is from an earlier search (``resume``).
        output_error: difference between its outputs and the outputs of the whole model on one device; None if it was not run.
        failed: why it failed, and so is out of the search; None if it did not. Its earlier measurements no longer count.
        no_room: whether it failed because its devices do not have enough memory for it.
        not_run: why it was not run: it was not worth a run, or could not be compiled in time; None if neither holds.
        late: whether it could not be compiled in time.
    """

    name: str
    placer: str
    plan: Plan
    placing: Placing = field(repr=False)
    simulated_s: float | None
    simulated_value: float | None
    plain: bool = False
    of: str | None = None
    reference: OwnMode | None = None
    used: tuple[str, ...] = ()
    given: bool = False
    start: str | None = None
    replicas: tuple[Plan, ...] = ()
    measured: Measurement | None = None
    inner_s: float | None = None
    value: Measurement | None = None
    joules: Measurement | None = None
    modelled: Measurement | None = None
    cost: float | None = None
    steady: bool = True
    segment_s: NDArray[np.float64] | None = None
    race: int | None = None
    final: bool = False
    earlier: bool = False
    output_error: OutputDifference | None = None
    failed: str | None = None
    no_room: bool = False
    not_run: str | None = None
    late: bool = False

    def __repr__(self) -> str:
        counts = self.placement.counts()
        where = ", ".join(f"{device} {ops}" for device, ops in counts.items() if ops)
        facts = [] if self.simulated_s is None else [f"simulated {self.simulated_s * 1e3:.4g} ms"]
        if self.measured is not None:
            facts.append(f"measured {self.measured.median * 1e3:.4g} ms")
        if (why := self.failed or self.not_run) is not None:
            facts.append(why)
        return f"<Candidate {self.name} ({self.placer}): {'; '.join([where, *facts])}>"

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
            "not_run": self.not_run if self.measured is None else None,
        }


class Facts(TypedDict, total=False):
    """Facts that a search learns about a candidate, by attribute name of :class:`Candidate`."""

    plan: Plan
    replicas: tuple[Plan, ...]
    used: tuple[str, ...]
    given: bool
    measured: Measurement | None
    inner_s: float | None
    value: Measurement | None
    joules: Measurement | None
    modelled: Measurement | None
    cost: float | None
    steady: bool
    segment_s: NDArray[np.float64] | None
    race: int | None
    final: bool
    earlier: bool
    output_error: OutputDifference | None
    failed: str | None
    no_room: bool
    not_run: str | None
    late: bool


@dataclass(frozen=True, eq=False)
class Alone:
    """A single device that the cluster does not have, or does not have in the requested precision.

    Attributes:
        session: the same model on that device.
        busy: ``float64[D]``, 1 for each device of the cluster that is busy while this one runs, 0 for the others.
    """

    session: Workbench
    busy: NDArray[np.float64]

    @property
    def is_onnxruntime(self) -> bool:
        """True if this is plain ONNX Runtime."""
        return self.session.cluster.devices[0].plain


@dataclass(frozen=True, eq=False)
class Raced:
    """A race that was run.

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
    """A row that cannot be chosen, measured beside a candidate for comparison.

    Attributes:
        row: facts about it, in the form of a candidate.
        ratio: its time over the candidate's time in the same rounds, with its interval; None if they had no round in common.
    """

    row: Candidate
    ratio: Ratio | None

    def to_dict(self, **facts: object) -> dict[str, Any]:
        """Return it as a dict for JSON output, with additional ``facts``."""
        ratio = None if self.ratio is None else self.ratio.ratio
        return self.row.to_dict() | facts | {"ratio": ratio, "ratio_ci": interval(self.ratio)}


def plain_candidates(session: Workbench, problem: Problem) -> list[tuple[Candidate, Alone]]:
    """Return the plain devices of a cluster that can run the model whole, as candidates; empty if the session has pins."""
    devices = session.cluster.devices
    apart = session.cluster.apart()  # no core counts twice
    busy = np.array([float(device.core_set and d in apart) for d, device in enumerate(devices)])
    found: list[tuple[Candidate, Alone]] = []
    for plain in () if session.pins else session.plain_devices:
        like = [d for d, device in enumerate(devices) if device.core_set and device.kind == plain.kind]
        able = plain.plain or problem.feasible[:, like].all()  # a whole file needs no cuts
        if able and problem.param_bytes.sum() <= plain.memory_bytes:
            name = f"plain {plain.name}" if plain.name in session.cluster.names else plain.name
            home = session.alone(plain)
            if plain.plain and free_bytes() < _COPIES * float(problem.param_bytes.sum()):
                _log.info("Plain ONNX Runtime is not a candidate: there is no memory for another copy of the weights.")
                continue
            if plain.plain and (why := _refusal(home)) is not None:
                _log.info("Plain ONNX Runtime is not a candidate: %s", why)
                continue
            found.append((alone_on(home, name, plain=True), Alone(home, busy)))
    return found


def _refusal(home: Workbench) -> str | None:
    """Return why a plain device's runtime cannot open the model; None if it can. The compiled program is kept for the races."""
    try:
        home.executor(alone_on(home, "").plan).close()
    except (DeviceError, ExecutionError) as error:
        return str(error)
    return None


def in_other_precision(
    session: Workbench, singles: Sequence[Candidate], homes: Mapping[str, Alone]
) -> tuple[list[tuple[Candidate, Alone]], list[str]]:
    """Return candidates in another precision: the plain devices, or every single device if there are no plain ones.

    Args:
        session: a session in the requested precision.
        singles: whole models on single devices.
        homes: for each of them that is on no device of the cluster, by name: the session that runs it.

    Returns:
        The candidates to measure in addition, and a sentence for each device that has no other precision.
    """
    others: list[tuple[Candidate, Alone]] = []
    missing: list[str] = []
    singles = [one for one in singles if one.name not in homes or not homes[one.name].is_onnxruntime]
    for single in [one for one in singles if one.plain] or singles:
        home, d = homes.get(single.name), int(single.groups[0])
        device = (session if home is None else home.session).cluster.devices[d]
        kind = kind_of(device)
        precision = kind.other_precision(device, session.precision)
        if precision is None:
            missing.append(f"{single.name} {'is only described' if device.described else kind.one_precision}")
            continue
        there = session.alone(device, precision=precision)
        other = alone_on(there, f"{single.name} in {precision}", placer="precision", of=single.name)
        others.append((other, Alone(there, np.eye(len(session.cluster))[d] if home is None else home.busy)))
    return others, missing


def alone_on(session: Workbench, name: str, *, placer: str = "single", plain: bool = False, of: str | None = None) -> Candidate:
    """Return a candidate that is the whole model on the only device of a session, where nothing was profiled."""
    groups = np.zeros(len(session.grouping.groups), np.int32)
    plan = Segmenter(session.grouping, Costs.zero(len(groups), session.cluster)).plan(groups)
    return Candidate(name, placer, plan, session.placing, None, None, plain=plain, of=of)


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
