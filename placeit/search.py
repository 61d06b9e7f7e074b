"""The search for a placement: proposals, plans, races, and what is learned from them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placeit.objectives import Objective
from placeit.placers.feasibility import fits
from placeit.placers.registry import parse_placer
from placeit.profiler.calibration import calibrated
from placeit.profiler.costs import Progress
from placeit.runtime.executor import PlanExecutor
from placeit.runtime.measure import Measurement, Race, Ratio, faster, median_interval
from placeit.runtime.segments import Plan, Segmenter
from placeit.runtime.simulator import SimulatedCost
from placeit.session import OutputError, Session

__all__ = ["WORTH_MEASURING", "Entry", "Runner", "Search", "known_value", "measured_median"]

_FINALISTS = 5  # most new placements that are measured in one turn
_TURNS = 3  # most turns of measuring and searching again
_ROUNDS, _FINAL_ROUNDS = 6, 16  # of a race in a turn, and of the one that decides
_FINAL_SPLITS = 3  # placements over several devices that take part in the race that decides
_LOOKS, _LIKELY_GAIN = 3, 0.95  # most times that the race that decides goes on, and the ratio below which it does
WORTH_MEASURING, _FAR_BEHIND = 0.99, 1.05  # of the best measured, and of the best single device
_FEWEST_FINAL_ROUNDS = 12  # of the race that decides, however little time is left
_TURN_SHARE = 0.35  # of what is left of the budget
_STARTS, _STEPS = 2, 600  # of a search among plans by their makespan
_PLANS = 200  # moves that are tried in a search among plans by another objective


@dataclass(eq=False)
class Entry:
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


class Runner:
    """Runs a plan, in a race, and values each run by the objective."""

    def __init__(self, executor: PlanExecutor, objective: Objective) -> None:
        self.executor, self.objective = executor, objective
        self.values: list[float] = []

    def __call__(self) -> float:
        """Run once and return the seconds it took."""
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


class Search:
    """The steps of :func:`placeit.optimize.optimize` and what they have found so far."""

    def __init__(self, session: Session, objective: Objective, deadline: float, seed: int, progress: Progress | None) -> None:
        self.session, self.objective, self.deadline = session, objective, deadline
        self.seed, self.progress = seed, progress
        self.segmenter = session.segmenter
        self.problem = self.segmenter.problem()
        self.entries: dict[bytes, Entry] = {}
        self.ratio: Ratio | None = None
        self.winner: Entry | None = None
        self.single: Entry | None = None

    def say(self, what: str, share: float) -> None:
        """Tell what is being done, and which share of it is done."""
        if self.progress is not None:
            self.progress(what, share)

    def left(self) -> float:
        """Seconds until the search should be over."""
        return self.deadline - time.perf_counter()

    def add(self, name: str, placer: str, groups: NDArray[np.int32]) -> Entry:
        """Enter a placement, or return the entry that it already has."""
        key = groups.astype(np.int32).tobytes()
        if key not in self.entries:
            plan = self.segmenter.plan(groups)
            self.entries[key] = Entry(name, placer, groups, plan, plan.schedule.makespan, self.predicted(plan))
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
        best = min(map(value_of, self.entries.values()))
        return any(self.expected(e.groups[None])[0] < best * WORTH_MEASURING for e in fresh)

    def final_s(self) -> float:
        """Seconds that the race that decides will take."""
        measured = sorted((e for e in self.entries.values() if e.measured is not None), key=value_of)
        singles = [entry for entry in measured if entry.placer == "single"]
        return _FINAL_ROUNDS * sum(map(measured_median, [*singles, *measured[:_FINAL_SPLITS]]))

    def promising(self) -> list[Entry]:
        """Unmeasured entries worth measuring, with the best measured one and the best single device beside them."""
        fresh = [e for e in self.entries.values() if e.measured is None and e.placer != "single"]
        fresh.sort(key=lambda e: e.simulated_value)
        measured = [e for e in self.entries.values() if e.measured is not None]
        single = [e for e in self.entries.values() if e.placer == "single"]
        if measured:
            single = sorted((e for e in single if e.measured is not None), key=value_of)[:1]
        return [*single, *sorted(measured, key=value_of)[:1], *fresh[:_FINALISTS]]

    def measure(self, entries: Sequence[Entry]) -> None:
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
    def runners(self, entries: Sequence[Entry]) -> Iterator[dict[str, Runner]]:
        """Make entries ready to run, by name, for as long as the context lasts."""
        with contextlib.ExitStack() as stack:
            made = {}
            for i, entry in enumerate(entries):
                self.say("compiling segments", i / len(entries))
                made[entry.name] = Runner(stack.enter_context(self.session.executor(entry.plan)), self.objective)
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
        measured = sorted((e for e in self.entries.values() if e.measured is not None), key=value_of)
        singles = [entry for entry in measured if entry.placer == "single"]
        split = [entry for entry in measured if entry.placer != "single"][:_FINAL_SPLITS]
        if singles:  # of several that are far behind, one is enough to say so
            near = [entry for entry in split if value_of(entry) < _FAR_BEHIND * value_of(singles[0])]
            split = near or split[:1]
        finalists = [*singles, *split]
        if not finalists:
            return
        with self.runners(finalists) as runners:
            self.decide(runners, singles, split)

    def decide(self, runners: Mapping[str, Runner], singles: Sequence[Entry], split: Sequence[Entry]) -> None:
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
            self.single = min(singles, key=value_of) if singles else None
            best = min(split, key=value_of) if split else None
            if best is None or self.single is None:
                self.winner = best or self.single
                return
            if value_of(self.single) == 0:  # nothing is less, and there is no ratio to it
                self.winner = self.single
                return
            assert best.value is not None and self.single.value is not None  # noqa: S101, PT018
            self.ratio = faster(best.value, self.single.value)
            self.winner = best if self.ratio.faster else self.single
            # a busy machine widens the interval: where a gain is likely, measure on before giving it up
            if self.ratio.faster or self.ratio.ratio > _LIKELY_GAIN or look == _LOOKS - 1:
                return


def measured_median(entry: Entry) -> float:
    """Median seconds of an entry; ``inf`` if it was not measured."""
    return math.inf if entry.measured is None else entry.measured.median


def value_of(entry: Entry) -> float:
    return math.inf if entry.value is None else entry.value.median


def known_value(entry: Entry) -> float:
    """The objective of an entry, as it was measured, or else simulated."""
    return entry.simulated_value if entry.value is None else entry.value.median
