"""Race placements against each other and against every single device."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from placeit.core.cluster import Cluster
from placeit.core.errors import ExecutionError, UsageError, naming
from placeit.core.jsonable import jsonable_dict
from placeit.core.placement import Placement
from placeit.core.problem import Problem
from placeit.core.views import Shown
from placeit.measuring.incumbent import compared
from placeit.measuring.measure import WARMUP, check_length
from placeit.measuring.statistics import Ratio
from placeit.optimizer.candidates import Candidate, OtherDevices, interval, measured_median
from placeit.optimizer.ledger import compiled_since
from placeit.optimizer.races import Races
from placeit.optimizer.references import enter_references
from placeit.optimizer.replicas import replicated
from placeit.optimizer.runs import COMPILING_SHARE, RunOptions
from placeit.optimizer.whole_models import alone_on, enter_compiled, plain_candidates
from placeit.profiler.costs import Progress
from placeit.runtime.compiling import Compiled
from placeit.runtime.programs import searching
from placeit.simulator.load import check_rate
from placeit.simulator.objectives.base import Objective
from placeit.simulator.objectives.registry import get_objective, objective_kind, objectives_that
from placeit.workbench import Workbench

__all__ = ["Comparison", "check_compared", "compare"]

_COMPILING_S = 1.0  # seconds that compiling a model for a device may take without a duration: time to load it from disk


@dataclass(frozen=True, eq=False)
class Comparison(Shown):
    """The result of :func:`compare`.

    Attributes:
        model: path of the model.
        objective: the measured quantity: latency, or throughput as seconds per request.
        candidates: the fastest first; then the ones that failed.
        singles: names of the candidates that are whole models on one device and that the caller did not give.
        references: OpenVINO's own ways to run the model on these devices (:mod:`placeit.optimizer.references`), the fastest
            first.
        warmup: minimum number of runs of each candidate before the rounds.
        disturbed: number of rounds in which other work disturbed the machine.
        left_out: number of further rounds, which were disturbed and do not count.
        duration_s: seconds that the rounds were given; None if their number was given.
        interrupted: whether Ctrl-C ended the race early.
        cluster: the devices.
        compiling: programs that were compiled, by kind of device.
    """

    model: str
    objective: Objective
    candidates: tuple[Candidate, ...]
    singles: tuple[str, ...]
    references: tuple[Candidate, ...]
    warmup: int
    disturbed: int
    left_out: int
    duration_s: float | None
    interrupted: bool
    cluster: Cluster
    compiling: Mapping[str, Compiled]

    def __repr__(self) -> str:
        lines = "\n".join(f"  {one!r}" for one in self.candidates[:10])
        return f"<Comparison of {self.model}, {self.rounds} rounds:\n{lines}>"

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return max((len(one.measured.samples) for one in self.candidates if one.measured is not None), default=0)

    @property
    def rate(self) -> float | None:
        """Requests per second at which runs were started; None if each run started when the previous one had ended."""
        return self.objective.rate

    def speedups(self, candidate: Candidate) -> dict[str, Ratio | None]:
        """Return each single device's time over the candidate's time, by name; None where one of the two was not measured."""
        own_times, times = candidate.measured, {one.name: one.measured for one in self.candidates}
        return {name: compared(times[name], own_times) for name in self.singles}

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict, as ``placeit compare --json`` prints it, where names are paths of files."""

        def row(candidate: Candidate) -> dict[str, Any]:
            measured, error = candidate.measured, candidate.output_error
            return {
                "name": candidate.name,
                "placement_file": candidate.name if candidate.placer == "given" else None,
                "segments": candidate.segments,
                "replicas": len(candidate.plans),
                "devices": candidate.placement.counts(),
                "simulated_s": candidate.simulated_s,
                "measured_s": None if measured is None else measured.median,
                "p95_s": None if measured is None else measured.p95,
                "ci_s": interval(measured),
                "inner_s": candidate.inner_s,
                "speedup_over": {
                    single: None if ratio is None else {"ratio": ratio.ratio, "ci": interval(ratio)}
                    for single, ratio in self.speedups(candidate).items()
                },
                "output_error": None if error is None else error.to_dict(),
                "failed": candidate.failed,
            }

        return jsonable_dict(
            {
                "model": self.model,
                "objective": self.objective.name,
                "rate": self.rate,
                "rounds": self.rounds,
                "disturbed": self.disturbed,
                "left_out": self.left_out,
                "warmup": self.warmup,
                "duration_s": self.duration_s,
                "candidates": [row(candidate) for candidate in self.candidates],
                "references": [row(one) | {"used": list(one.used), "not_run": one.not_run} for one in self.references],
                "emulated": self.cluster.emulated_names,
                "interrupted": self.interrupted,
                "compiling": {kind: vars(one) for kind, one in self.compiling.items()},
            }
        )


@searching()
def compare(
    session: Workbench,
    placements: Mapping[str, Placement | str | Path],
    *,
    objective: str = "latency",
    runs: int = 30,
    duration: float | None = None,
    warmup: int = WARMUP,
    rate: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Race placements against each other and against every single device, with their outputs checked.

    Args:
        session: the model on the devices, profiled (:meth:`placeit.Session.profile`).
        placements: each, or the path of its file, by name. The groups that they divide must have been split
            (:meth:`placeit.Session.divide`).
        objective: ``latency``, or ``throughput``, for which a run has many requests in flight. For latency, only the first
            replica of a placement runs.
        runs: number of rounds. In each round every candidate runs once, or for a while if a run takes less than 50 ms.
        duration: seconds for the rounds, instead of their number; at least one round is run.
        warmup: minimum number of runs of each candidate before the rounds; they do not count.
        rate: requests per second at which runs are started, for latency; None to start each when the previous one has ended.
        seed: seed of the order within each round.
        progress: called with the current step and the share of it that is done.

    Raises:
        UsageError: no runs, no time for them, or nothing to compare; another objective; a rate that is not positive, or one for
            throughput; or the session was not profiled.
        PlacementError: a placement does not fit the model, the devices or their memory; names the placement.
        KeyboardInterrupt: Ctrl-C before anything was measured; a later Ctrl-C only ends the race.
        ExecutionError: all candidates failed; gives the reason of each.
    """
    if not isinstance(session, Workbench):
        raise UsageError(f"compare() takes a session that was profiled (placeit.Session(model, devices)), not {session!r}.")
    check_length(runs, duration, warmup)
    check_compared(objective, rate)
    wanted = get_objective(objective, session.cluster, rate=rate)
    races = Races(RunOptions(session, wanted, math.inf, seed, progress))
    races.warmup = warmup
    races.watch_machine()
    if duration is not None:
        races.duration = duration
    problem = _enter(races, {name: Placement.of(given) for name, given in placements.items()})
    interrupted = False
    try:
        races.race(
            [candidate for candidate in races.candidates if not candidate.late],
            "measuring",
            rounds=runs if duration is None else sys.maxsize,
            share=1.0,
            min_rounds=runs if duration is None else 1,
            together=True,
            drop_losers=False,
            guests=enter_references(races, problem),
        )
    except KeyboardInterrupt:
        if all(candidate.measured is None for candidate in races.candidates):
            raise
        interrupted = True
        session.hurry()
    candidates = races.candidates
    if all(candidate.failed is not None for candidate in candidates):
        reasons = (f"{candidate.name}: {candidate.failed}" for candidate in candidates)
        raise ExecutionError(" ".join(["Everything that was to be compared failed.", *reasons]))
    return Comparison(
        model=str(session.model.path),
        objective=wanted,
        candidates=tuple(sorted(candidates, key=lambda one: (one.failed is not None, measured_median(one)))),
        references=tuple(sorted((one for one in races.known.values() if one.reference is not None), key=measured_median)),
        singles=tuple(candidate.name for candidate in candidates if candidate.name not in placements),
        warmup=warmup,
        disturbed=sum(race.disturbed for race in races.races),
        left_out=sum(race.left_out for race in races.races),
        duration_s=duration,
        interrupted=interrupted,
        cluster=session.cluster,
        compiling=compiled_since({}, session.compiling.kinds),
    )


def _enter(races: Races, placements: Mapping[str, Placement]) -> Problem:
    """Enter each placement, and every single device that can hold the model, as candidates; return the placement problem."""
    session = races.session
    segmenter, steady = races.segmenter_of(session.costs), races.objective.steady
    problem = segmenter.problem()
    names = session.cluster.names
    homes = {name: session.home_of(placement) for name, placement in placements.items()}
    plans = {names[d]: [segmenter.plan(np.full(len(problem), d, np.int32))] for d in problem.single_devices}
    for name, placement in placements.items():
        if homes[name] is session:
            with naming(name):
                plans[name] = [session.plan_of(one, segmenter) for one in placement.every]
    alone = {name: home for name, home in homes.items() if home is not session}
    if not plans and not alone:
        raise UsageError(
            "No single device can hold the whole model (too little memory, or some op cannot run there), and no placement is "
            "given: there is nothing to compare."
        )
    room = races.duration * COMPILING_SHARE
    for candidate, home in plain_candidates(session, problem, room):
        races.enter(candidate, home)
    enter_compiled(races, problem, room if room < math.inf else _COMPILING_S)
    for name, other in alone.items():
        candidate = alone_on(other, name)
        if len(other.cluster) == 1:
            races.enter(candidate, OtherDevices(other, np.ones(len(session.cluster))))
        else:  # a split with compiled segments
            candidate = replace(candidate, placer="given", plan=other.plan_of(placements[name]))
            races.enter(candidate, OtherDevices(other, np.eye(len(other.cluster))))
    for name, (plan, *others) in plans.items():
        replicas = others if steady else []
        served = replicated(segmenter, [plan, *replicas]) if replicas else [plan]
        simulated = races.simulated_of(plan)
        if replicas:
            each = [races.objective.of_plan(one) for one in served]
            value = 1 / sum(1 / seconds for seconds in each) if min(each) > 0 else 0.0  # 0 if measurements were disturbed
            simulated = value, value
        placer = "given" if name in placements else "single"
        races.enter(Candidate(name, placer, served[0], session.placing, *simulated, replicas=tuple(served[1:])))
    return problem


def check_compared(objective: str, rate: float | None = None) -> None:
    """Raise UsageError unless the objective is one that is measured directly, and the rate (if given) is valid for it."""
    kind = objective_kind(objective)
    if not kind.is_measured:
        objectives = objectives_that(lambda one: one.is_measured)
        raise UsageError(f"Placements are compared by {objectives}, which are measured; not '{objective}'.")
    if rate is not None:
        check_rate(rate)
        if not kind.paced:
            objectives = objectives_that(lambda one: one.paced)
            raise UsageError(f"A rate is the pace at which {objectives} is measured: leave it out for '{objective}'.")
