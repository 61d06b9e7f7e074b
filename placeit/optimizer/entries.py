"""Candidates under way: what is known of each, and how a race runs it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.devices.plain import other_precision, plain_devices
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.check import OutputError
from placeit.runtime.measure import Measurement, summed_up
from placeit.runtime.plan_executor import PlanExecutor
from placeit.session import Session
from placeit.simulator.objectives import Objective

__all__ = [
    "Alone",
    "Entry",
    "Raced",
    "Runner",
    "alone_on",
    "in_other_precision",
    "known_value",
    "measured_median",
    "plain_entries",
    "value_of",
]


@dataclass(frozen=True, eq=False)
class Alone:
    """One device by itself that is none of the cluster's.

    Attributes:
        session: of the same model there.
        busy: ``float64[D]``, 1 for the devices of the cluster that have nothing else to run on meanwhile, 0 for the others.
    """

    session: Session
    busy: NDArray[np.float64]


@dataclass(eq=False)
class Entry:
    """A candidate under way.

    Its simulated figures are None on a device that nothing was profiled on, and its groups are then those of that device's own
    session (``alone``).
    """

    name: str
    placer: str
    groups: NDArray[np.int32]
    plan: Plan
    simulated_s: float | None
    simulated_value: float | None
    measured: Measurement | None = None
    value: Measurement | None = None
    output_error: OutputError | None = None
    segment_s: NDArray[np.float64] | None = None
    race: int | None = None  # which of the search's races `measured` and `value` are from
    final: bool = False  # whether `measured` and `value` are from the race that decides
    failed: str | None = None  # why it is out
    given: bool = False  # whether it is one that the search was told to begin with
    earlier: bool = False  # whether `measured` is from an earlier search
    not_run: str | None = None  # why it was not measured, if it was not worth it
    alone: Alone | None = None
    of: Entry | None = None  # whose other precision this is: raced whenever that one is, and no candidate

    def home(self, session: Session) -> Session:
        """The session that runs it, by that of the search."""
        return session if self.alone is None else self.alone.session


@dataclass(frozen=True, eq=False)
class Raced:
    """A race that was run.

    Attributes:
        what: what it was for, as it was said while it ran.
        rounds: how many there were.
        measured: latency in it, by name, of all that took part and did not fail.
    """

    what: str
    rounds: int
    measured: Mapping[str, Measurement]


class Runner:
    """Runs a plan, in a race, and values each run by the objective."""

    def __init__(self, executor: PlanExecutor, objective: Objective, alone: Alone | None = None) -> None:
        self.executor, self.objective, self.alone = executor, objective, alone
        self.values: list[float] = []

    def __call__(self) -> float:
        """Run once and return the seconds it took."""
        seconds = self.executor.time()
        self.values.append(self.objective.of_run(seconds, self.work))
        return seconds

    def work(self) -> tuple[NDArray[np.float64], float]:
        """Seconds that each device of the cluster was busy in the last run, and links in sum."""
        busy = dict.fromkeys(self.executor.plan.problem.device_names, 0.0)
        moving = 0.0
        for span in self.executor.spans():
            if span.kind == "compute":
                busy[span.where[0]] += span.seconds
            else:
                moving += span.seconds
        seconds = np.array(list(busy.values()))
        return seconds if self.alone is None else seconds.sum() * self.alone.busy, moving

    def valued(self, measured: Measurement) -> Measurement:
        """Return the objective of the runs that were measured; the runs before them, for warming up, are left out."""
        return summed_up(measured.name, self.values[-len(measured.samples) :], measured.rounds)


def plain_entries(session: Session, problem: Problem) -> list[Entry]:
    """Enter the plain devices of a session's cluster that can run the model whole; none if an op is pinned to another one."""
    devices = session.cluster.devices
    busy = np.array([float(device.core_set) for device in devices])
    entries: list[Entry] = []
    for plain in () if session.pins else plain_devices(session.cluster):
        like = [d for d, device in enumerate(devices) if device.core_set and device.kind == plain.kind]
        if problem.feasible[:, like].all() and problem.param_bytes.sum() <= plain.memory_bytes:
            name = f"plain {plain.name}" if plain.name in session.cluster.names else plain.name
            entries.append(alone_on(session.alone(plain), name, busy))
    return entries


def in_other_precision(session: Session, singles: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    """Enter the plain devices, or without any every single device, once more in another precision.

    Args:
        session: whose precision is the one that was asked for.
        singles: entries of single devices.

    Returns:
        The entries, and a sentence for each device that has no other precision.
    """
    others: list[Entry] = []
    missing: list[str] = []
    for single in [entry for entry in singles if entry.alone is not None] or singles:
        d = int(single.groups[0])
        device = single.home(session).cluster.devices[d]
        precision = other_precision(device, session.precision)
        if precision is None:
            why = "has neither bf16 nor f16" if device.kind == "openvino" else "computes in the types of the model"
            why = "is only described" if device.described else why
            missing.append(f"{single.name} {why}")
            continue
        busy = np.eye(len(session.cluster))[d] if single.alone is None else single.alone.busy
        other = alone_on(session.alone(device, precision=precision), f"{single.name} in {precision}", busy)
        other.placer, other.of = "precision", single
        others.append(other)
    return others, missing


def alone_on(session: Session, name: str, busy: NDArray[np.float64]) -> Entry:
    """Enter the whole model on the only device of a session, where nothing was profiled."""
    groups = np.zeros(len(session.grouping.groups), np.int32)
    plan = Segmenter(session.grouping, Costs.zero(len(groups), session.cluster)).plan(groups)
    return Entry(name, "single", groups, plan, None, None, alone=Alone(session, busy))


def measured_median(entry: Entry) -> float:
    """Median seconds of an entry; ``inf`` if it was not measured."""
    return math.inf if entry.measured is None else entry.measured.median


def value_of(entry: Entry) -> float:
    """Median objective of an entry; ``inf`` if it was not measured."""
    return math.inf if entry.value is None else entry.value.median


def known_value(entry: Entry) -> float:
    """The objective of an entry, as it was measured, or else simulated; ``inf`` if it was neither."""
    simulated = math.inf if entry.simulated_value is None else entry.simulated_value
    return simulated if entry.value is None else entry.value.median
