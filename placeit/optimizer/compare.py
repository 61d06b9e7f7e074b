"""Placements against each other and against every single device, in one race."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from placeit.core.cluster import Cluster
from placeit.core.errors import ExecutionError, PlacementError, UsageError
from placeit.core.placement import Placement
from placeit.optimizer.candidates import Alone, Candidate, alone_on, measured_median, plain_candidates
from placeit.optimizer.races import Races
from placeit.planning.segments import Plan
from placeit.profiler.costs import Progress
from placeit.runtime.measure import WARMUP, Ratio, check_length, faster
from placeit.session import Session
from placeit.simulator.objectives import Latency

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What :func:`compare` found.

    Attributes:
        model: path of the model.
        candidates: the fastest first; then those that failed.
        singles: names of those of them that are whole models on one device, and were not given.
        warmup: runs of each before the rounds.
        duration_s: seconds that the rounds were to take; None if their number was given.
        interrupted: whether Ctrl-C ended it early.
        cluster: the devices.
    """

    model: str
    candidates: tuple[Candidate, ...]
    singles: tuple[str, ...]
    warmup: int
    duration_s: float | None
    interrupted: bool
    cluster: Cluster

    @property
    def rounds(self) -> int:
        """How many rounds there were."""
        return max((len(one.measured.samples) for one in self.candidates if one.measured is not None), default=0)

    def speedups(self, candidate: Candidate) -> dict[str, Ratio | None]:
        """Time of each single device over that of a candidate, by name; None where one of the two was not measured."""
        mine, single = candidate.measured, {one.name: one.measured for one in self.candidates}
        return {name: None if mine is None or (other := single[name]) is None else faster(other, mine) for name in self.singles}


def compare(
    session: Session,
    placements: Mapping[str, Placement],
    *,
    runs: int = 30,
    duration: float | None = None,
    warmup: int = WARMUP,
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Race placements against each other and against every single device, with their outputs checked.

    Args:
        session: the model on the devices, profiled (:meth:`placeit.Session.profile`).
        placements: by name. Groups that they divide have to be split (:meth:`placeit.Session.divide`).
        runs: timed runs of each, one in each round.
        duration: seconds, in place of their number: as many rounds as fit, and one in any case.
        warmup: runs of each before the rounds, which do not count.
        seed: decides the order within each round.
        progress: told what is being done.

    Raises:
        UsageError: no runs, no time for them, or nothing to compare; or the session was not profiled.
        PlacementError: a placement does not fit the model, the devices or their memory; names it.
        KeyboardInterrupt: Ctrl-C before anything was measured; afterwards it ends the race.
        ExecutionError: all of them failed; says why each did.
    """
    check_length(runs, duration, warmup)
    races = Races(session, Latency(), math.inf, seed, progress)
    races.warmup = warmup
    if duration is not None:
        races.duration = duration
    _enter(races, placements)
    interrupted = False
    try:
        races.race(
            races.candidates,
            "measuring",
            rounds=runs if duration is None else sys.maxsize,
            share=1.0,
            min_rounds=runs if duration is None else 1,
            together=True,
            drop_losers=False,
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
        candidates=tuple(sorted(candidates, key=lambda one: (one.failed is not None, measured_median(one)))),
        singles=tuple(candidate.name for candidate in candidates if candidate.name not in placements),
        warmup=warmup,
        duration_s=duration,
        interrupted=interrupted,
        cluster=session.cluster,
    )


def _enter(races: Races, placements: Mapping[str, Placement]) -> None:
    """Enter every single device that can hold the model, and each placement."""
    session = races.session
    problem, segmenter = session.segmenter.problem(), session.segmenter
    names = session.cluster.names
    homes = {name: session.home_of(placement) for name, placement in placements.items()}
    plans = {names[d]: segmenter.plan(np.full(len(problem), d, np.int32)) for d in problem.single_devices}
    plans |= {name: _planned(session, name, one) for name, one in placements.items() if homes[name] is session}
    alone = {name: home for name, home in homes.items() if home is not session}
    if not plans and not alone:
        raise UsageError(
            "No single device can hold the whole model (too little memory, or some op cannot run there), and no placement is "
            "given: there is nothing to compare."
        )
    for candidate, home in plain_candidates(session, problem):
        races.enter(candidate, home)
    for name, other in alone.items():
        races.enter(alone_on(other, name), Alone(other, np.ones(len(session.cluster))))
    for name, plan in plans.items():
        simulated_s = plan.schedule.makespan
        races.enter(
            Candidate(name, "given" if name in placements else "single", plan, session.placing, simulated_s, simulated_s)
        )


def _planned(session: Session, name: str, placement: Placement) -> Plan:
    try:
        return session.plan_of(placement)
    except PlacementError as error:
        raise PlacementError(f"{name}: {error}") from error
