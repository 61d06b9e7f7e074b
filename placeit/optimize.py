"""From a model to a measured, checked placement: profile, search, calibrate, measure, decide."""

from __future__ import annotations

import contextlib
import functools
import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Model
from placeit.cluster import Cluster
from placeit.clusterfile import find_cluster
from placeit.errors import InfeasibleError, UsageError
from placeit.objectives import Objective, check_objective, get_objective
from placeit.placers.feasibility import fits
from placeit.placers.registry import parse_placer
from placeit.problem import Placement, Problem
from placeit.profiler.cache import Cache
from placeit.profiler.calibration import calibrated
from placeit.profiler.costs import Progress
from placeit.profiler.statistics import mape, pearson, spearman
from placeit.runtime.executor import PlanExecutor
from placeit.runtime.measure import Measurement, Race, Ratio, faster, median_interval
from placeit.runtime.runtime import Runtime
from placeit.runtime.segments import Plan, Segmenter
from placeit.runtime.simulator import SimulatedCost
from placeit.session import OutputError, Session

__all__ = ["DEFAULT_PLACERS", "Candidate", "Optimized", "optimize"]

DEFAULT_PLACERS = ("heft", "cpop", "critical-path", "metis", "random-task-eft", "annealing")
"""Placers whose answers become candidates, beside every single device and the search over segments."""

_FINALISTS = 5  # most new placements that are measured in one turn
_TURNS = 3  # most turns of measuring and searching again
_ROUNDS, _FINAL_ROUNDS = 6, 16  # of a race in a turn, and of the one that decides
_FINAL_SPLITS = 3  # placements over several devices that take part in the race that decides
_LOOKS, _LIKELY_GAIN = 3, 0.95  # most times that the race that decides goes on, and the ratio below which it does
_WORTH_MEASURING, _FAR_BEHIND = 0.99, 1.05  # of the best measured, and of the best single device
_FEWEST_FINAL_ROUNDS = 12  # of the race that decides, however little time is left
_PROFILE_SHARE, _TURN_SHARE = 0.4, 0.35  # of the budget, and of what is left of it
_BOUND_TURNS = 200
_STARTS, _STEPS = 2, 600  # of a search among plans by their makespan
_PLANS = 200  # moves that are tried in a search among plans by another objective


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
        search = _Search(session, wanted, begin + budget, seed, progress)
        search.singles()
        interrupted = False
        try:
            search.propose(placers)
            search.improve()
            search.confirm()
        except KeyboardInterrupt:
            interrupted = True
        return search.result(budget, time.perf_counter() - begin, interrupted)


@dataclass(eq=False)
class _Entry:
    """A candidate under way."""

    name: str
    placer: str
    groups: NDArray[np.int32]
    plan: Plan
    simulated_s: float
    simulated_value: float
    measured: Measurement | None = None
    value: Measurement | None = None
    output_error: OutputError | None = None
    segment_s: NDArray[np.float64] | None = None
    final: bool = False  # whether `measured` and `value` are from the race that decides


class _Runner:
    """Runs a plan, in a race, and values each run by the objective."""

    def __init__(self, executor: PlanExecutor, objective: Objective) -> None:
        self.executor, self.objective = executor, objective
        self.values: list[float] = []

    def __call__(self) -> float:
        seconds = self.executor.time()
        self.values.append(self.objective.of_run(seconds, self.work))
        return seconds

    def work(self) -> tuple[NDArray[np.float64], float]:
        """Seconds that each device was busy in the last run, and links in sum."""
        busy = dict.fromkeys(self.executor.plan.problem.device_names, 0.0)
        moving = 0.0
        for span in self.executor.spans():
            if span.category == "compute":
                busy[span.track] += span.finish - span.start
            else:
                moving += span.finish - span.start
        return np.array(list(busy.values())), moving

    def valued(self, measured: Measurement) -> Measurement:
        """Return the objective of the runs that were measured; the runs before them, for warming up, are left out."""
        values = np.array(self.values[-len(measured.samples) :])
        low, high = median_interval(values)
        return replace(
            measured,
            samples=values,
            median=float(np.median(values)),
            ci_low=low,
            ci_high=high,
            p95=float(np.percentile(values, 95)),
        )


class _Search:
    """The steps of :func:`optimize` and what they have found so far."""

    def __init__(self, session: Session, objective: Objective, deadline: float, seed: int, progress: Progress | None) -> None:
        self.session, self.objective, self.deadline = session, objective, deadline
        self.seed, self.progress = seed, progress
        self.segmenter = session.segmenter
        self.problem = self.segmenter.problem()
        self.entries: dict[bytes, _Entry] = {}
        self.ratio: Ratio | None = None
        self.winner: _Entry | None = None
        self.single: _Entry | None = None

    def say(self, what: str, share: float) -> None:
        if self.progress is not None:
            self.progress(what, share)

    def left(self) -> float:
        return self.deadline - time.perf_counter()

    def add(self, name: str, placer: str, groups: NDArray[np.int32]) -> _Entry:
        """Enter a placement, or return the entry that it already has."""
        key = groups.astype(np.int32).tobytes()
        if key not in self.entries:
            plan = self.segmenter.plan(groups)
            self.entries[key] = _Entry(name, placer, groups, plan, plan.schedule.makespan, self.predicted(plan))
        return self.entries[key]

    def predicted(self, plan: Plan) -> float:
        """Objective of a plan by its simulated schedule."""
        done = plan.schedule
        moving = float((done.transfers.finish - done.transfers.start).sum())
        return self.objective.of_run(done.makespan, lambda: (done.busy, moving))

    def expected(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Objective of feasible placements' plans, ``int32[B, G] -> float64[B]``, by the costs as they are known now."""
        if self.objective.name == "latency":
            return self.segmenter.makespan(placements)
        return np.array([self.predicted(self.segmenter.plan(row)) for row in placements])

    def singles(self) -> None:
        """Enter every device that can run the model whole."""
        for d in self.problem.single_devices:
            self.add(self.problem.device_names[d], "single", np.full(len(self.problem), d, np.int32))

    def propose(self, placers: Sequence[str]) -> None:
        """Ask every placer, then search among plans from the best answers."""
        cost = self.objective.cost(self.problem, SimulatedCost(self.problem, links="channel", queue="priority"))
        for i, name in enumerate(placers):
            self.say(f"asking {name.partition(':')[0]}", i / len(placers))
            placer = parse_placer(name)
            groups = self.problem.check(placer.place(self.problem, cost, seed=self.seed, evaluations=None))
            self.add(name, name.partition(":")[0], groups)
        self.refine("segment-search")

    def refine(self, name: str) -> bool:
        """Search among plans from the best entries; return whether that led to a placement not entered before."""
        self.say("searching among plans", 0.0)
        known = len(self.entries)
        ranked = sorted(self.entries.values(), key=lambda e: float(self.expected(e.groups[None])[0]))
        for i, entry in enumerate(ranked[:_STARTS]):
            groups = self.improved(entry.groups, self.seed + i)
            self.add(name if i == 0 else f"{name} {i + 1}", "segment-search", groups)
        return len(self.entries) > known

    def improved(self, groups: NDArray[np.int32], seed: int) -> NDArray[np.int32]:
        """Search among plans from a placement on."""
        if self.objective.name == "latency":
            return self.segmenter.search(groups, self.problem, steps=_STEPS, seed=seed)
        rng, now = np.random.default_rng(seed), self.expected(groups[None])[0]
        for _ in range(_PLANS):
            moved, v = groups.copy(), int(rng.integers(len(groups)))
            moved[v] = rng.choice(np.flatnonzero(self.problem.feasible[v]))
            if fits(self.problem, moved) and (value := self.expected(moved[None])[0]) < now:
                groups, now = moved, value
        return groups

    def improve(self) -> None:
        """Measure the most promising entries, learn from how long their segments took, search again."""
        if not self.session.executable:
            return
        for turn in range(_TURNS):
            begin = time.perf_counter()
            self.measure(self.promising())
            one_more = self.left() - (time.perf_counter() - begin) > self.final_s()
            if not one_more or turn == _TURNS - 1 or len(self.problem.device_names) == 1:
                return
            self.learn()
            if not self.refine(f"calibrated-search {turn + 1}") or not self.worth_another_turn():
                return

    def worth_another_turn(self) -> bool:
        """Whether some unmeasured entry is now expected to beat the best that was measured."""
        fresh = [e for e in self.entries.values() if e.measured is None and e.placer != "single"]
        best = min(map(_value, self.entries.values()))
        return any(self.expected(e.groups[None])[0] < best * _WORTH_MEASURING for e in fresh)

    def final_s(self) -> float:
        """Seconds that the race that decides will take."""
        measured = sorted((e for e in self.entries.values() if e.measured is not None), key=_value)
        singles = [entry for entry in measured if entry.placer == "single"]
        return _FINAL_ROUNDS * sum(map(_measured_median, [*singles, *measured[:_FINAL_SPLITS]]))

    def promising(self) -> list[_Entry]:
        """Unmeasured entries worth measuring, with the best measured one and the best single device beside them."""
        fresh = [e for e in self.entries.values() if e.measured is None and e.placer != "single"]
        fresh.sort(key=lambda e: e.simulated_value)
        measured = [e for e in self.entries.values() if e.measured is not None]
        single = [e for e in self.entries.values() if e.placer == "single"]
        if measured:
            single = sorted((e for e in single if e.measured is not None), key=_value)[:1]
        return [*single, *sorted(measured, key=_value)[:1], *fresh[:_FINALISTS]]

    def measure(self, entries: Sequence[_Entry]) -> None:
        """Race entries against each other, and check their outputs."""
        unique = list({id(entry): entry for entry in entries}.values())
        with self.runners(unique) as runners:
            for entry in unique:
                if entry.output_error is None:
                    entry.output_error = self.session.check_outputs(runners[entry.name].executor)
            race = Race(runners, seed=self.seed)
            try:
                race.run(
                    rounds=_ROUNDS,
                    budget_s=max(0.0, self.left() * _TURN_SHARE),
                    progress=lambda _, share: self.say(f"measuring {len(unique)} placements", share),
                )
            finally:
                for name, measurement in race.results().items():
                    entry = next(entry for entry in unique if entry.name == name)
                    entry.measured, entry.value = measurement, runners[name].valued(measurement)
                    entry.segment_s = runners[name].executor.segment_seconds()

    @contextlib.contextmanager
    def runners(self, entries: Sequence[_Entry]) -> Iterator[dict[str, _Runner]]:
        """Make entries ready to run, by name, for as long as the context lasts."""
        with contextlib.ExitStack() as stack:
            made = {}
            for i, entry in enumerate(entries):
                self.say("compiling segments", i / len(entries))
                made[entry.name] = _Runner(stack.enter_context(self.session.executor(entry.plan)), self.objective)
            yield made

    def learn(self) -> None:
        """Correct the costs by what segments really took beside each other."""
        profiled = self.session.segmenter  # an entry's plan may say what corrected costs have already put right
        runs = [
            (profiled.priced(entry.plan), entry.segment_s)
            for entry in self.entries.values()
            if entry.segment_s is not None and len(entry.plan.segments) > 1
        ]
        self.segmenter = Segmenter(self.session.grouping, calibrated(self.session.costs, runs))

    def confirm(self) -> None:
        """Measure the finalists again, in fresh instances, against the single devices, and decide by that race alone."""
        measured = sorted((e for e in self.entries.values() if e.measured is not None), key=_value)
        singles = [entry for entry in measured if entry.placer == "single"]
        split = [entry for entry in measured if entry.placer != "single"][:_FINAL_SPLITS]
        if singles:  # of several that are far behind, one is enough to say so
            near = [entry for entry in split if _value(entry) < _FAR_BEHIND * _value(singles[0])]
            split = near or split[:1]
        finalists = [*singles, *split]
        if not finalists:
            return
        with self.runners(finalists) as runners:
            self.decide(runners, singles, split)

    def decide(self, runners: Mapping[str, _Runner], singles: Sequence[_Entry], split: Sequence[_Entry]) -> None:
        """Race the finalists until one is faster beyond doubt, or none is likely to be."""
        finalists = [*singles, *split]
        race = Race(runners, seed=self.seed + 1)
        for look in range(_LOOKS):
            result = race.run(
                rounds=_FINAL_ROUNDS,
                budget_s=max(0.0, self.left()),
                min_rounds=_FEWEST_FINAL_ROUNDS,
                drop_losers=False,
                progress=lambda _, share: self.say("measuring the finalists again", share),
            )
            for entry in finalists:
                entry.measured, entry.final = result[entry.name], True
                entry.value = runners[entry.name].valued(entry.measured)
            self.single = min(singles, key=_value) if singles else None
            best = min(split, key=_value) if split else None
            if best is None or self.single is None:
                self.winner = best or self.single
                return
            if _value(self.single) == 0:  # nothing is less, and there is no ratio to it
                self.winner = self.single
                return
            assert best.value is not None and self.single.value is not None  # noqa: S101, PT018
            self.ratio = faster(best.value, self.single.value)
            self.winner = best if self.ratio.faster else self.single
            # a busy machine widens the interval: where a gain is likely, measure on before giving it up
            if self.ratio.faster or self.ratio.ratio > _LIKELY_GAIN or look == _LOOKS - 1:
                return

    def result(self, asked: float, spent: float, interrupted: bool) -> Optimized:
        """Sum up."""
        entries = list(self.entries.values())
        order = sorted(entries, key=lambda e: (not e.final, e.measured is None, _known(e)))
        single = self.single or next((entry for entry in order if entry.placer == "single"), None)
        chosen, reason = self._decide(order, single)
        done = {id(entry): _candidate(entry, self.session) for entry in entries}
        measured = [entry for entry in entries if entry.measured is not None]
        predicted = [entry.simulated_s for entry in measured]
        actual = [_measured_median(entry) for entry in measured]
        speedup = None
        if single is not None and single.final and chosen.final:
            assert single.measured is not None and chosen.measured is not None  # noqa: S101, PT018
            speedup = faster(single.measured, chosen.measured)
        grouping = self.session.grouping
        return Optimized(
            model=str(self.session.model.path),
            ops=len(grouping.graph),
            edges=len(grouping.graph.edges),
            groups=len(grouping.groups),
            objective=self.objective.name,
            unit=self.objective.unit,
            candidates=tuple(done[id(entry)] for entry in order),
            chosen=done[id(chosen)],
            best_single=None if single is None else done[id(single)],
            speedup=speedup,
            reason=reason,
            bound_s=lower_bound(self.problem),
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
            cluster=self.session.cluster,
            _open=functools.partial(
                Runtime, self.session.model, grouping, self.session.cluster, precision=self.session.precision
            ),
        )

    def _decide(self, order: Sequence[_Entry], single: _Entry | None) -> tuple[_Entry, str]:
        name, quantity = self.objective.name, self.objective.quantity
        better = "faster" if name == "latency" else f"better by {name}"
        if not order:
            raise InfeasibleError(
                f"No placement of {self.session.model.path} on {', '.join(self.problem.device_names)} was found."
            )
        if not self.session.executable:
            least = order[0].simulated_value
            most = least / _WORTH_MEASURING if single is None else min(least / _WORTH_MEASURING, single.simulated_value)
            # a trifle less of something else is not worth being slow
            best = min((e for e in order if e.simulated_value <= most), key=lambda e: e.simulated_s)
            if best is single:
                margin = " by more than 1 %" if least < best.simulated_value else ""
                return best, f"in simulation, no placement is {better} than {best.name} alone{margin}; nothing was measured"
            lowest = "the lowest" if best.simulated_value == least else "within 1 % the lowest"
            return best, f"it has {lowest} simulated {name}; nothing was measured, because a device is only described"
        if self.winner is None:
            if single is not None:
                return single, "the search was interrupted before a placement was confirmed, and a single device is safe"
            return order[0], "the search was interrupted; this is the best so far"
        if single is None:
            best_of_all = "the fastest" if name == "latency" else f"the one of least {quantity}"
            return self.winner, f"it was measured to be {best_of_all}; no single device can run the model whole"
        if self.winner.placer != "single":
            ratio = self.ratio
            assert ratio is not None  # noqa: S101
            return self.winner, (
                f"measured again, it takes {ratio.ratio:.3f} of the {quantity} of {single.name} "
                f"(95 % interval {ratio.ci_low:.3f} to {ratio.ci_high:.3f})"
            )
        if self.ratio is not None:
            why = (
                f"the best split placement takes {self.ratio.ratio:.3f} of its {quantity} (95 % interval "
                f"{self.ratio.ci_low:.3f} to {self.ratio.ci_high:.3f}), which is not {better} beyond the interval"
            )
        else:
            why = f"no split placement was measured to be {better}"
        if name == "latency" and single.simulated_s > 0:
            share = lower_bound(self.problem) / single.simulated_s
            why += f"; the bound without any cost of cutting is {share:.3f} of its time"
        return self.winner, why


def lower_bound(problem: Problem) -> float:
    """Seconds that no placement can beat: the larger of critical path and work over devices, at best costs.

    Transfers and cuts are taken to be free. The bound from work is that of the assignment whose ops may be divided between
    devices (Lenstra, Shmoys and Tardos 1990, equation 1), from below: for any weights ``l[d]`` that sum to one, no placement
    ends before ``sum over ops of min over d of l[d] * compute[v, d]``. With equal weights that is the sum of the best times
    over the number of devices; multiplicative updates raise it where devices differ.
    """
    bound = problem.critical_path
    weights = np.full(problem.devices, 1 / problem.devices)
    for turn in range(_BOUND_TURNS):
        weighted = problem.compute * weights
        cheapest = weighted.argmin(axis=1)
        ops = np.arange(len(problem))
        bound = max(bound, float(weighted[ops, cheapest].sum()))
        load = np.bincount(cheapest, problem.compute[ops, cheapest], problem.devices)
        if not load.any():
            break
        weights *= np.exp(load / load.max() / (turn + 1) ** 0.5)
        weights /= weights.sum()
    return bound


def _measured_median(entry: _Entry) -> float:
    return math.inf if entry.measured is None else entry.measured.median


def _value(entry: _Entry) -> float:
    return math.inf if entry.value is None else entry.value.median


def _known(entry: _Entry) -> float:
    return entry.simulated_value if entry.value is None else entry.value.median


def _candidate(entry: _Entry, session: Session) -> Candidate:
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
