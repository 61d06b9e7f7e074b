"""From a model to a measured, checked placement: profile, search, calibrate, measure, decide."""

from __future__ import annotations

import functools
import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Model
from placeit.cluster import Cluster
from placeit.clusterfile import find_cluster
from placeit.errors import InfeasibleError, UsageError
from placeit.objectives import check_objective, get_objective
from placeit.placers.bound import lower_bound
from placeit.placers.registry import parse_placer
from placeit.problem import Placement
from placeit.profiler.cache import Cache
from placeit.profiler.costs import Progress
from placeit.profiler.statistics import mape, pearson, spearman
from placeit.runtime.executor import PlanExecutor
from placeit.runtime.measure import Measurement, Ratio, faster
from placeit.runtime.runtime import Runtime
from placeit.runtime.segments import Plan
from placeit.search import WORTH_MEASURING, Entry, Search, known_value, measured_median
from placeit.session import OutputError, Session

__all__ = ["DEFAULT_PLACERS", "Candidate", "Optimized", "optimize"]

DEFAULT_PLACERS = ("heft", "cpop", "critical-path", "metis", "random-task-eft", "annealing")
"""Placers whose answers become candidates, beside every single device and the search over segments."""

_PROFILE_SHARE = 0.4  # of the budget


@dataclass(frozen=True, eq=False)
class Candidate:
    """One placement, and what is known of it.

    Attributes:
        name: unique among the candidates.
        placer: who proposed it; ``single`` for a whole model on one device.
        placement: device of every op.
        plan: its segments, as they were simulated and measured; a session of the same model on the same devices can run them.
        segments: number of programs that run.
        simulated_s: seconds that the simulator said before this candidate was measured.
        simulated_value: the objective, in its unit, of the same simulation.
        measured: latency; None if it was not measured.
        value: the objective by the times of the runs that ``measured`` is of; for latency the same. Joules come from a power
            model and measured busy times: they are not measured themselves. None if the candidate was not measured.
        output_error: against the whole model on one device; None if it was not run.
    """

    name: str
    placer: str
    placement: Placement
    plan: Plan
    segments: int
    simulated_s: float
    simulated_value: float
    measured: Measurement | None = None
    value: Measurement | None = None
    output_error: OutputError | None = None


@dataclass(frozen=True, eq=False)
class Optimized:
    """The answer of :func:`optimize`.

    Attributes:
        model: path of the model.
        ops: ops of the task graph.
        edges: its edges.
        groups: groups that were placed.
        objective: name of what was minimised.
        unit: of the objective, ``s`` or ``J``.
        candidates: those of the race that decided first, then what was measured before, then the rest; best first.
        chosen: the answer; never worse by the objective than the best single device.
        best_single: the best whole model on one device, None if no device can run it whole.
        speedup: time of the best single device over that of the chosen one, with its interval; None if not measured.
        reason: why the chosen one was chosen, in a sentence.
        bound_s: simulated lower bound of any placement: critical path and work over devices, without any cost of cutting.
        simulator_error: ``mape``, ``pearson`` and ``spearman`` of the simulator on the measured candidates, each None where
            it is not defined; None if nothing was measured.
        asked_s: budget.
        spent_s: seconds that all of it took.
        interrupted: whether Ctrl-C ended the search early.
        cluster: the devices.
    """

    model: str
    ops: int
    edges: int
    groups: int
    objective: str
    unit: str
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    best_single: Candidate | None
    speedup: Ratio | None
    reason: str
    bound_s: float
    simulator_error: Mapping[str, float | None] | None
    asked_s: float
    spent_s: float
    interrupted: bool
    cluster: Cluster
    _open: Callable[[], Runtime] = field(repr=False)

    @property
    def placement(self) -> Placement:
        """Device of every op."""
        return self.chosen.placement

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
            "objective": self.objective,
            "objective_unit": self.unit,
            "chosen": _candidate_dict(self.chosen),
            "candidates": [_candidate_dict(candidate) for candidate in self.candidates],
            "best_single": None if self.best_single is None else _candidate_dict(self.best_single),
            "speedup": None if self.speedup is None else self.speedup.ratio,
            "speedup_ci": None if self.speedup is None else [_finite(self.speedup.ci_low), _finite(self.speedup.ci_high)],
            "reason": self.reason,
            "bound_s": self.bound_s,
            "output_error": _error_dict(self.chosen.output_error),
            "simulator": {"mape": None, "pearson": None, "spearman": None} | dict(self.simulator_error or {}),
            "budget": {"asked_s": self.asked_s, "spent_s": self.spent_s},
            "interrupted": self.interrupted,
            "placement_file": None if placement_file is None else str(placement_file),
        }


def optimize(
    model: str | Path | Model,
    devices: str | Sequence[str] | Path | Cluster | None = None,
    *,
    placers: Sequence[str] | None = None,
    budget: float = 60.0,
    seed: int = 0,
    objective: str = "latency",
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    max_groups: int = 96,
    precision: str = "f32",
    cache: Cache | Literal["default"] | None = "default",
    progress: Progress | None = None,
) -> Optimized:
    """Find the placement of a model that is best by an objective, the lowest latency without another one, by measuring.

    Args:
        model: a model, or the path of one.
        devices: device names, the path of a cluster file, a cluster, or None to discover.
        placers: who proposes, by name, with options if need be (``annealing:evaluations=100000``); None for
            :data:`DEFAULT_PLACERS`.
        budget: seconds; profiling counts, and the measurements that decide are always made. The search ends earlier when it
            finds nothing new.
        seed: of everything random.
        objective: what to minimise: ``latency``; ``total-cost``, seconds that devices and links are busy, in sum; or
            ``energy``, joules of a power model (:mod:`placeit.objectives`). What is measured are times in any case.
        input_shapes: sizes by input name, where the model leaves them open.
        batch: first size of every input that leaves it open.
        max_groups: most groups that placers decide about.
        precision: inference precision of every device.
        cache: where measured costs are kept; None to measure afresh and keep nothing.
        progress: told what is being done and how far it is.

    Returns:
        What was found. With a described device in the cluster nothing is measured, and the simulator decides.

    Raises:
        UsageError: an unknown placer or objective, energy of devices whose power is not known, a budget that is not positive,
            or a negative seed.
        PlaceitError: the model, the devices or a file are not what they should be.
        KeyboardInterrupt: Ctrl-C before there was any placement; afterwards it ends the search.
    """
    check_objective(objective)
    if not budget > 0:
        raise UsageError(f"The budget is {budget} seconds; it must be positive.")
    if seed < 0:
        raise UsageError(f"The seed is {seed}; it must not be negative.")
    placers = DEFAULT_PLACERS if placers is None else [placers] if isinstance(placers, str) else placers
    for name in placers:
        parse_placer(name)  # a typing error should not cost a profile first
    cluster = find_cluster(devices)
    wanted = get_objective(objective, cluster)
    begin = time.perf_counter()
    with Session(
        model,
        cluster,
        input_shapes=input_shapes,
        batch=batch,
        max_groups=max_groups,
        precision=precision,
        profile_s=budget * _PROFILE_SHARE,
        cache=cache,
        progress=progress,
    ) as session:
        search = Search(session, wanted, begin + budget, seed, progress)
        search.singles()
        interrupted = False
        try:
            search.propose(placers)
            search.improve()
            search.confirm()
        except KeyboardInterrupt:
            interrupted = True
        return _optimized(search, budget, time.perf_counter() - begin, interrupted)


def _optimized(search: Search, asked: float, spent: float, interrupted: bool) -> Optimized:
    """Sum up."""
    entries = list(search.entries.values())
    order = sorted(entries, key=lambda e: (not e.final, e.measured is None, known_value(e)))
    single = search.single or next((entry for entry in order if entry.placer == "single"), None)
    chosen, reason = _chosen(search, order, single)
    done = {id(entry): _candidate(entry, search.session) for entry in entries}
    measured = [entry for entry in entries if entry.measured is not None]
    predicted = [entry.simulated_s for entry in measured]
    actual = [measured_median(entry) for entry in measured]
    speedup = None
    if single is not None and single.final and chosen.final:
        assert single.measured is not None and chosen.measured is not None  # noqa: S101, PT018
        speedup = faster(single.measured, chosen.measured)
    grouping = search.session.grouping
    return Optimized(
        model=str(search.session.model.path),
        ops=len(grouping.graph),
        edges=len(grouping.graph.edges),
        groups=len(grouping.groups),
        objective=search.objective.name,
        unit=search.objective.unit,
        candidates=tuple(done[id(entry)] for entry in order),
        chosen=done[id(chosen)],
        best_single=None if single is None else done[id(single)],
        speedup=speedup,
        reason=reason,
        bound_s=lower_bound(search.problem),
        simulator_error=None
        if not measured
        else {
            "mape": mape(predicted, actual),
            "pearson": pearson(predicted, actual),
            "spearman": spearman(predicted, actual),
        },
        asked_s=asked,
        spent_s=spent,
        interrupted=interrupted,
        cluster=search.session.cluster,
        _open=functools.partial(
            Runtime, search.session.model, grouping, search.session.cluster, precision=search.session.precision
        ),
    )


def _chosen(search: Search, order: Sequence[Entry], single: Entry | None) -> tuple[Entry, str]:
    """Choose an entry, and say why."""
    name, quantity = search.objective.name, search.objective.quantity
    better = "faster" if name == "latency" else f"better by {name}"
    if not order:
        raise InfeasibleError(
            f"No placement of {search.session.model.path} on {', '.join(search.problem.device_names)} was found."
        )
    if not search.session.executable:
        least = order[0].simulated_value
        most = least / WORTH_MEASURING if single is None else min(least / WORTH_MEASURING, single.simulated_value)
        # a trifle less of something else is not worth being slow
        best = min((e for e in order if e.simulated_value <= most), key=lambda e: e.simulated_s)
        if best is single:
            margin = " by more than 1 %" if least < best.simulated_value else ""
            return best, f"in simulation, no placement is {better} than {best.name} alone{margin}; nothing was measured"
        lowest = "the lowest" if best.simulated_value == least else "within 1 % the lowest"
        return best, f"it has {lowest} simulated {name}; nothing was measured, because a device is only described"
    if search.winner is None:
        if single is not None:
            return single, "the search was interrupted before a placement was confirmed, and a single device is safe"
        return order[0], "the search was interrupted; this is the best so far"
    if single is None:
        best_of_all = "the fastest" if name == "latency" else f"the one of least {quantity}"
        return search.winner, f"it was measured to be {best_of_all}; no single device can run the model whole"
    if search.winner.placer != "single":
        ratio = search.ratio
        assert ratio is not None  # noqa: S101
        return search.winner, (
            f"measured again, it takes {ratio.ratio:.3f} of the {quantity} of {single.name} "
            f"(95 % interval {ratio.ci_low:.3f} to {ratio.ci_high:.3f})"
        )
    if search.ratio is not None:
        why = (
            f"the best split placement takes {search.ratio.ratio:.3f} of its {quantity} (95 % interval "
            f"{search.ratio.ci_low:.3f} to {search.ratio.ci_high:.3f}), which is not {better} beyond the interval"
        )
    else:
        why = f"no split placement was measured to be {better}"
    if name == "latency" and single.simulated_s > 0:
        share = lower_bound(search.problem) / single.simulated_s
        why += f"; the bound without any cost of cutting is {share:.3f} of its time"
    return search.winner, why


def _candidate(entry: Entry, session: Session) -> Candidate:
    return Candidate(
        name=entry.name,
        placer=entry.placer,
        placement=session.placement(entry.groups),
        plan=entry.plan,
        segments=sum(not segment.free for segment in entry.plan.segments),
        simulated_s=entry.simulated_s,
        simulated_value=entry.simulated_value,
        measured=entry.measured,
        value=entry.value,
        output_error=entry.output_error,
    )


def _candidate_dict(candidate: Candidate) -> dict[str, Any]:
    measured, value = candidate.measured, candidate.value
    return {
        "name": candidate.name,
        "placer": candidate.placer,
        "simulated_s": candidate.simulated_s,
        "measured_s": None if measured is None else measured.median,
        "ci_s": [None, None] if measured is None else [_finite(measured.ci_low), _finite(measured.ci_high)],
        "simulated_value": candidate.simulated_value,
        "value_from_runs": None if value is None else value.median,
        "value_ci": [None, None] if value is None else [_finite(value.ci_low), _finite(value.ci_high)],
        "devices": candidate.placement.counts(),
        "segments": candidate.segments,
        "output_error": _error_dict(candidate.output_error),
    }


def _error_dict(error: OutputError | None) -> dict[str, float | None]:
    if error is None:
        return {"max_abs": None, "max_rel": None}
    return {"max_abs": _finite(error.max_abs), "max_rel": _finite(error.max_rel)}


def _finite(value: float) -> float | None:
    """Turn an open end of an interval into null, which JSON has no number for."""
    return value if math.isfinite(value) else None
