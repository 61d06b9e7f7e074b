"""Candidates: what is proposed, and what is known of it so far."""

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
from placeit.devices.own_modes import OwnMode
from placeit.devices.plain import other_precision
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
_COPIES = 2  # of the weights that there has to be room for before plain ONNX Runtime is opened
_log = logging.getLogger("placeit")


@dataclass(frozen=True, eq=False)
class Candidate:
    """One placement, and what is known of it. When more is known, another one takes its place (``dataclasses.replace``).

    Attributes:
        name: unique among the candidates.
        placer: who proposed it; ``single`` for a whole model on one device.
        plan: its segments, as they were simulated and measured; a session of the same model on the same devices can run them.
        placing: the model's groups on the devices that it is on.
        simulated_s: seconds that the simulator said before this candidate was measured, to compare with ``measured``; None for
            a plain device, for which nothing was profiled.
        simulated_value: the objective, in its unit, of the same simulation.
        plain: whether it is the whole model on a device that the cluster does not have, but all whose core sets it has: what
            one would do without placeit (:func:`placeit.devices.plain.plain_devices`).
        of: for a single device in another precision, which cannot be chosen: name of the candidate that it is; else None.
        reference: for what OpenVINO does by itself, which cannot be chosen: how it does that; else None.
        used: of a reference, the devices that OpenVINO said it had used; empty if it did not run or OpenVINO does not say.
        given: whether the search was told to begin with it.
        start: name of the candidate that its search started from; None if its placer was given no start.
        replicas: plans on other devices, which serve whole requests as ``plan`` does; for throughput only.
        measured: latency, or for throughput seconds per request with many in flight, in the last race that it took part in;
            None if it was not measured.
        inner_s: median seconds of single requests in the same runs, from when their lanes began to the end of the last segment;
            None where that is not known.
        value: the objective by the times of the runs that ``measured`` is of; for these two the same. Joules are those of
            meters if all devices have one (``joules``), and else of a power model and measured busy times (``modelled``). None
            if the candidate was not measured.
        joules: what meters showed in the same runs, per request; None for other objectives, and where a device has no meter.
        modelled: joules of the same runs by the power model; None for other objectives, and of what an earlier search metered.
        cost: the objective, so that those of different races compare: by the ratio to what ran beside it in the same rounds,
            times the cost of that. None if it was raced beside nothing of known cost.
        steady: whether that ratio did not change for good while they ran.
        segment_s: median seconds of each segment of ``plan`` in these runs, ``float64[S]``; None if they are not known.
        race: number of that race in ``Optimized.races``; times of different races do not compare. None if it took part in none.
        final: whether that race was the one that decided.
        earlier: whether ``measured`` is from an earlier search (``resume``).
        output_error: against the whole model on one device; None if it was not run.
        failed: why it is out, whatever it was that failed; None if nothing did. What was measured of it before counts no more.
        no_room: whether it failed because its devices have no memory for it.
        not_run: why it was not worth a run, or could not be compiled in time, if that was so.
        late: whether it was the latter.
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
        """``int32[G]``, the device of each group; of replicas, in the first."""
        return self.plan.group_devices

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All that serve whole requests."""
        return (self.plan, *self.replicas)

    @cached_property
    def placement(self) -> Placement:
        """Device of every op, and its segment."""
        first, *others = (self.placing.placement(plan.group_devices, plan) for plan in self.plans)
        return replace(first, replicas=tuple(others))

    @property
    def may_be_chosen(self) -> bool:
        """True if it is a placement in the precision that was asked for, and not only something to compare with."""
        return self.of is None and self.reference is None

    @property
    def segments(self) -> int:
        """Number of programs that run."""
        return sum(len(plan.programs) for plan in self.plans)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
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
    """Facts that a search learns of a candidate, by the attribute of :class:`Candidate`."""

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
    """One device by itself that the cluster does not have, or not in the precision that was asked for.

    Attributes:
        session: of the same model there.
        busy: ``float64[D]``, 1 for the devices of the cluster that have nothing else to run on meanwhile, 0 for the others.
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
        what: what it was for, as it was said while it ran.
        rounds: how many there were, of those that count.
        measured: latency in it, by name, of all that took part and did not fail.
        disturbed: in how many of these something else disturbed the machine.
        left_out: how many other rounds were disturbed, and do not count.
    """

    what: str
    rounds: int
    measured: Mapping[str, Measurement]
    disturbed: int = 0
    left_out: int = 0


@dataclass(frozen=True, eq=False)
class Beside:
    """What cannot be chosen, and was measured beside a candidate to compare the two.

    Attributes:
        row: what is known of it, like of a candidate.
        ratio: its time over that of the candidate in the same rounds, with its interval; None if the two did not meet.
    """

    row: Candidate
    ratio: Ratio | None

    def to_dict(self, **facts: object) -> dict[str, Any]:
        """Return it as JSON has it, with some facts more."""
        ratio = None if self.ratio is None else self.ratio.ratio
        return self.row.to_dict() | facts | {"ratio": ratio, "ratio_ci": interval(self.ratio)}


def plain_candidates(session: Workbench, problem: Problem) -> list[tuple[Candidate, Alone]]:
    """Plain devices of a session's cluster that can run the model whole; none if an op is pinned to another one."""
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
                _log.info("ONNX Runtime as it is, is no candidate: there is no memory for another copy of the weights.")
                continue
            if plain.plain and (why := _refusal(home)) is not None:
                _log.info("ONNX Runtime as it is, is no candidate: %s", why)
                continue
            found.append((alone_on(home, name, plain=True), Alone(home, busy)))
    return found


def _refusal(home: Workbench) -> str | None:
    """Why the runtime of a plain device cannot open a model; None if it can. What it opens stays open for the races."""
    try:
        home.executor(alone_on(home, "").plan).close()
    except (DeviceError, ExecutionError) as error:
        return str(error)
    return None


def in_other_precision(
    session: Workbench, singles: Sequence[Candidate], homes: Mapping[str, Alone]
) -> tuple[list[tuple[Candidate, Alone]], list[str]]:
    """The plain devices, or without any every single device, once more in another precision.

    Args:
        session: whose precision is the one that was asked for.
        singles: whole models on single devices.
        homes: what runs those of them that are none of the cluster's devices, by name.

    Returns:
        What is to be measured beside them, and a sentence for each device that has no other precision.
    """
    others: list[tuple[Candidate, Alone]] = []
    missing: list[str] = []
    singles = [one for one in singles if one.name not in homes or not homes[one.name].is_onnxruntime]
    for single in [one for one in singles if one.plain] or singles:
        home, d = homes.get(single.name), int(single.groups[0])
        device = (session if home is None else home.session).cluster.devices[d]
        precision = other_precision(device, session.precision)
        if precision is None:
            why = "has neither bf16 nor f16" if device.kind == "openvino" else "computes in the types of the model"
            why = "is only described" if device.described else why
            missing.append(f"{single.name} {why}")
            continue
        there = session.alone(device, precision=precision)
        other = alone_on(there, f"{single.name} in {precision}", placer="precision", of=single.name)
        others.append((other, Alone(there, np.eye(len(session.cluster))[d] if home is None else home.busy)))
    return others, missing


def alone_on(session: Workbench, name: str, *, placer: str = "single", plain: bool = False, of: str | None = None) -> Candidate:
    """The whole model on the only device of a session, where nothing was profiled."""
    groups = np.zeros(len(session.grouping.groups), np.int32)
    plan = Segmenter(session.grouping, Costs.zero(len(groups), session.cluster)).plan(groups)
    return Candidate(name, placer, plan, session.placing, None, None, plain=plain, of=of)


def measured_median(candidate: Candidate) -> float:
    """Median seconds of a candidate; ``inf`` if it was not measured."""
    return math.inf if candidate.measured is None else candidate.measured.median


def value_of(candidate: Candidate) -> float:
    """Objective of a candidate, comparable over races where that can be; ``inf`` if it was not measured."""
    if candidate.value is None:
        return math.inf
    return candidate.value.median if candidate.cost is None else candidate.cost


def known_value(candidate: Candidate, scale: float = 1.0) -> float:
    """The objective of a candidate, as it was measured, or else simulated, times a scale; ``inf`` if it was neither."""
    simulated = math.inf if candidate.simulated_value is None else candidate.simulated_value * scale
    return simulated if candidate.value is None else candidate.value.median


def interval(of: Measurement | Ratio | None) -> tuple[float | None, float | None]:
    """Ends of a confidence interval; None where nothing was measured."""
    return (None, None) if of is None else (of.ci_low, of.ci_high)
