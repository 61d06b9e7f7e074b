"""What a search for a placement has found."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Cluster
from placeit.core.placement import Placement
from placeit.optimizer.entries import Raced
from placeit.planning.segments import Plan
from placeit.runtime.check import OutputError
from placeit.runtime.measure import Measurement, Ratio, faster
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime
from placeit.simulator.objectives import Objective

__all__ = ["Candidate", "Optimized", "OtherPrecision", "Unplanned"]


@dataclass(frozen=True, eq=False)
class Candidate:
    """One placement, and what is known of it.

    Attributes:
        name: unique among the candidates.
        placer: who proposed it; ``single`` for a whole model on one device.
        placement: device of every op.
        plan: its segments, as they were simulated and measured; a session of the same model on the same devices can run them.
        segments: number of programs that run.
        plain: whether it is the whole model on a device that is none of the cluster's, but all its core sets at once: what one
            would do without placeit (:func:`placeit.devices.plain.plain_devices`).
        simulated_s: seconds that the simulator said before this candidate was measured; None of a plain one, of which nothing
            was profiled.
        simulated_value: the objective, in its unit, of the same simulation.
        measured: latency, in the last race that it took part in; None if it was not measured.
        race: number of that race in ``Optimized.races``; times of different races do not compare.
        value: the objective by the times of the runs that ``measured`` is of; for latency the same. Joules come from a power
            model and measured busy times: they are not measured themselves. None if the candidate was not measured.
        output_error: against the whole model on one device; None if it was not run.
        earlier: whether ``measured`` is from an earlier search (``resume``).
        failed: why it is out, whatever it was that failed; None if nothing did. What was measured of it before counts no more.
        not_run: why it was not worth a run, if that was so.
    """

    name: str
    placer: str
    placement: Placement
    plan: Plan
    segments: int
    plain: bool
    simulated_s: float | None
    simulated_value: float | None
    measured: Measurement | None = None
    race: int | None = None
    value: Measurement | None = None
    output_error: OutputError | None = None
    earlier: bool = False
    failed: str | None = None
    not_run: str | None = None


@dataclass(frozen=True, eq=False)
class Unplanned:
    """A candidate that came to nothing: its placer found no placement, or its placement could not be planned.

    Attributes:
        name: unique among the candidates.
        placer: who was to propose it.
        failed: why there is none.
    """

    name: str
    placer: str
    failed: str


@dataclass(frozen=True, eq=False)
class OtherPrecision:
    """A single device in another precision than the one that was asked for; no candidate.

    Attributes:
        row: what is known of it, like of a candidate.
        of: name of the candidate that is the same in the precision that was asked for.
        ratio: its time over that one's, of the same rounds, with its interval; None if one of them was not measured.
    """

    row: Candidate
    of: str
    ratio: Ratio | None


@dataclass(frozen=True, eq=False)
class Optimized:
    """The answer of :func:`optimize`.

    Attributes:
        model: path of the model.
        ops: ops of the task graph.
        edges: its edges.
        groups: groups that were placed.
        objective: what was minimised.
        candidates: those of the race that decided first, then what was measured before, race by race, then the rest, best
            first; then those that failed.
        races: in the order in which they were run.
        unplanned: candidates that there is not even a plan of.
        precisions: what single devices take in another precision; empty unless that was asked for.
        without_precisions: which of them have no other, and why.
        chosen: the answer. A placement over several devices only if a race of its own showed it to be better by the objective
            than the best single device; if it is not, that happens in 2.5 % of all decisions at most.
        best_single: the best whole model on one device, None if no device can run it whole.
        speedup: time of the best single device over that of the chosen one, with its interval; None if not measured.
        reason: why the chosen one was chosen, in a sentence.
        bound_s: simulated lower bound of any placement: critical path and work over devices, without any cost of cutting;
            NaN where the budget was too short to profile.
        simulator_error: ``mape``, ``pearson`` and ``spearman`` of the simulator on the measured candidates, each None where
            it is not defined; None if nothing was measured.
        asked_s: budget.
        spent_s: seconds that all of it took.
        compiling_s: those of them in which models were compiled, which no budget can shorten.
        least_s: what comparing placements over several devices takes at least, about; None if nothing was to be run.
        interrupted: whether Ctrl-C ended the search early.
        cluster: the devices.
        pins: device names by op names or globs of them that held for every candidate.
        memory: most bytes of weights by device, where a limit was given.
    """

    model: str
    ops: int
    edges: int
    groups: int
    objective: Objective
    candidates: tuple[Candidate, ...]
    races: tuple[Raced, ...]
    unplanned: tuple[Unplanned, ...]
    precisions: tuple[OtherPrecision, ...]
    without_precisions: tuple[str, ...]
    chosen: Candidate
    best_single: Candidate | None
    speedup: Ratio | None
    reason: str
    bound_s: float
    simulator_error: Mapping[str, float | None] | None
    asked_s: float
    spent_s: float
    compiling_s: float
    least_s: float | None
    interrupted: bool
    cluster: Cluster
    pins: Mapping[str, str]
    memory: Mapping[str, float]
    _open: Callable[[], Runtime] = field(repr=False)

    @property
    def placement(self) -> Placement:
        """Device of every op."""
        return self.chosen.placement

    def speedup_over(self, other: Candidate, candidate: Candidate) -> Ratio | None:
        """Return the time of another candidate over that of a candidate, in the last race of the latter.

        Paired by round, with its interval; times of different races do not compare. None if the two did not meet there.
        """
        if candidate.race is None or candidate.measured is None:
            return None
        beside = self.races[candidate.race].measured.get(other.name)
        return None if beside is None else faster(beside, candidate.measured)

    def save(self, path: str | Path) -> None:
        """Write the chosen placement. Raises FileError."""
        self.placement.save(path)

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Run the model once as it was placed, and return its outputs by name.

        The first call compiles; what it opens stays open as long as this object is there.

        Args:
            inputs: arrays by name.

        Raises:
            UsageError: an input is missing, unknown, or of the wrong shape or type.
            DeviceError: a device exists in simulation only.
            ExecutionError: a device failed.
        """
        return self._executor.run(inputs)

    @functools.cached_property
    def _executor(self) -> PlanExecutor:
        runtime = self._open()
        weakref.finalize(self, runtime.close)
        return runtime.executor(self.chosen.plan)

    def to_dict(self, placement_file: str | Path | None = None) -> dict[str, Any]:
        """Return what ``placeit optimize --json`` prints."""
        return {
            "model": self.model,
            "graph": {"ops": self.ops, "edges": self.edges, "groups": self.groups},
            "objective": self.objective.name,
            "objective_unit": self.objective.unit,
            "chosen": _candidate_dict(self.chosen),
            "candidates": [_candidate_dict(candidate) for candidate in self.candidates],
            "races": [{"what": race.what, "rounds": race.rounds, "candidates": list(race.measured)} for race in self.races],
            "unplanned": [vars(candidate) for candidate in self.unplanned],
            "precisions": [
                _candidate_dict(other.row)
                | {
                    "of": other.of,
                    "ratio": None if other.ratio is None else other.ratio.ratio,
                    "ratio_ci": [None, None] if other.ratio is None else _ends(other.ratio),
                }
                for other in self.precisions
            ],
            "without_precisions": list(self.without_precisions),
            "best_single": None if self.best_single is None else _candidate_dict(self.best_single),
            "speedup": None if self.speedup is None else self.speedup.ratio,
            "speedup_ci": None if self.speedup is None else _ends(self.speedup),
            "reason": self.reason,
            "bound_s": _finite(self.bound_s),
            "output_error": _error_dict(self.chosen.output_error),
            "simulator": {"mape": None, "pearson": None, "spearman": None} | dict(self.simulator_error or {}),
            "budget": {
                "asked_s": self.asked_s,
                "spent_s": self.spent_s,
                "compiling_s": self.compiling_s,
                "least_s": self.least_s,
            },
            "interrupted": self.interrupted,
            "pins": dict(self.pins),
            "memory_limits": {name: _finite(held) for name, held in self.memory.items()},
            "placement_file": None if placement_file is None else str(placement_file),
        }


def _candidate_dict(candidate: Candidate) -> dict[str, Any]:
    measured, value = candidate.measured, candidate.value
    return {
        "name": candidate.name,
        "placer": candidate.placer,
        "plain": candidate.plain,
        "simulated_s": candidate.simulated_s,
        "measured_s": None if measured is None else measured.median,
        "ci_s": [None, None] if measured is None else [_finite(measured.ci_low), _finite(measured.ci_high)],
        "race": candidate.race,
        "simulated_value": candidate.simulated_value,
        "value_from_runs": None if value is None else value.median,
        "value_ci": [None, None] if value is None else [_finite(value.ci_low), _finite(value.ci_high)],
        "devices": candidate.placement.counts(),
        "segments": candidate.segments,
        "output_error": _error_dict(candidate.output_error),
        "measured_earlier": candidate.earlier,
        "failed": candidate.failed,
        "not_run": candidate.not_run,
    }


def _error_dict(error: OutputError | None) -> dict[str, Any]:
    if error is None:
        return {"max_abs": None, "max_rel": None, "fault": None, "not_checked": "it was not run", "not_finite": None}
    return error.to_dict()


def _ends(ratio: Ratio) -> list[float | None]:
    return [_finite(ratio.ci_low), _finite(ratio.ci_high)]


def _finite(value: float) -> float | None:
    """Turn an open end of an interval into null, which JSON has no number for."""
    return value if math.isfinite(value) else None
