"""The Pareto front of latency and energy: the known placements that no other known placement dominates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.placement import Conditions, Placement
from placeit.devices.energy import EnergyMeters
from placeit.measuring.budget import race_s
from placeit.measuring.statistics import FEWEST
from placeit.optimizer.candidates import Candidate
from placeit.optimizer.front import explore, non_dominated, spread
from placeit.optimizer.portfolio import MAX_POINTS
from placeit.optimizer.races import Races
from placeit.optimizer.runs import RunOptions
from placeit.optimizer.search import Search
from placeit.simulator.objectives.energy import Energy

__all__ = ["FRONT", "Pareto", "Point", "find_front"]

FRONT = "front"
"""Placer name of placements that only the search for the front found."""
_EVALUATIONS = 10_000  # placements that are simulated
_EXPLORING_SHARE = 0.4  # share of the time left for simulation; the rest is for a race
_ROUNDS = 12  # rounds of that race


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the front.

    Attributes:
        candidate: the placement, with its measurements in the race of the front.
        latency_s: seconds of a request: the median of measured runs, or else simulated.
        energy_j: joules of the same runs, or simulated.
        latency_from: source of the latency.
        energy_from: source of the energy: ``measured`` by meters, ``modelled`` from measured times, or ``simulated``.
        conditions: precision and other conditions that the placement was found for.
    """

    candidate: Candidate
    latency_s: float
    energy_j: float
    latency_from: Literal["measured", "simulated"]
    energy_from: Literal["measured", "modelled", "simulated"]
    conditions: Conditions

    @property
    def placement(self) -> Placement:
        """Device and segment of every op, with the conditions."""
        return replace(self.candidate.placement, conditions=self.conditions)

    def save(self, path: str | Path) -> None:
        """Write the placement as a file for ``placeit run`` and :meth:`placeit.Placement.load`. Raises FileError."""
        replace(self.placement, result=self.to_dict()).save(path)

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict for JSON output."""
        return {
            "name": self.candidate.name,
            "latency_s": self.latency_s,
            "latency_from": self.latency_from,
            "energy_j": self.energy_j,
            "energy_from": self.energy_from,
            "devices": self.candidate.placement.counts(),
            "segments": self.candidate.segments,
        }


@dataclass(frozen=True, eq=False)
class Pareto:
    """Result of the search for a front.

    Attributes:
        points: by ascending latency, and so by descending energy.
        meters: energy meters of the devices; if they are complete, joules were measured by them.
        interrupted: whether Ctrl-C ended the search early.
    """

    points: tuple[Point, ...]
    meters: EnergyMeters | None
    interrupted: bool


def find_front(search: Search, energy: Energy, chosen: Candidate, deadline: float, *, interrupted: bool = False) -> Pareto:
    """Find the front of latency and energy, among the placements of a search and new ones: by simulation, then by a race.

    Args:
        search: a search that has decided.
        energy: the power model.
        chosen: the answer, which takes part.
        deadline: when to stop, by :func:`placeit.core.clock.now`.
        interrupted: whether the search was interrupted; then only placements that it knows take part, and nothing runs.
    """
    races = Races(RunOptions(search.session, energy, deadline, search.seed, search.progress, search.ledger))
    races.say("exploring latency and energy", 0.0)
    rows = [one.groups for one in search.standing if search.is_placed(one)]
    try:
        if rows and not search.session.costs.shared and not interrupted:
            rows = _explored(search, energy, np.stack(rows), deadline)
    except KeyboardInterrupt:
        search.session.hurry()
        interrupted = True
    _enter(search, races, rows, chosen)
    try:
        if search.session.cluster.executable and not interrupted:
            _race(search, races)
    except KeyboardInterrupt:
        search.session.hurry()
        interrupted = True
    points = [_point(search, races, one) for one in races.known.values()]
    valued = [one for one in points if one is not None]
    values = np.array([(one.latency_s, one.energy_j) for one in valued]).reshape(-1, 2)
    front = non_dominated(values)
    shown = front[np.sort(spread(values[front], MAX_POINTS))]
    return Pareto(tuple(valued[i] for i in shown), races.meters, interrupted)


def _explored(search: Search, energy: Energy, starts: NDArray[np.int32], deadline: float) -> list[NDArray[np.int32]]:
    """Return placements of the front that is simulated by calibrated costs: at most ``MAX_POINTS``, its ends first."""
    if search.session.cluster.executable:
        search.learn()
    segmenter, now = search.segmenter, clock.now()

    def values_of(rows: NDArray[np.int32]) -> NDArray[np.float64]:
        seconds, busy = segmenter.work(rows)
        return np.stack([seconds, energy.of_work(seconds, busy)], axis=1)

    until = now + max(0.0, deadline - now) * _EXPLORING_SHARE
    rows, values = explore(search.problem, values_of, starts, seed=search.seed, evaluations=_EVALUATIONS, deadline=until)
    return [rows[i] for i in spread(values, MAX_POINTS)]


def _enter(search: Search, races: Races, rows: Sequence[NDArray[np.int32]], chosen: Candidate) -> None:
    """Enter the answer, the single devices and the placements of the front as candidates of a race."""
    by_groups = {one.groups.tobytes(): one for one in search.standing if search.is_placed(one)}
    singles = (one for one in search.standing if one.placer == "single")
    entered = {one.name: one for one in (chosen, *singles)}
    for number, row in enumerate(rows, 1):
        if (found := by_groups.get(row.tobytes())) is None:
            plan = search.segmenter.plan(row)
            found = Candidate(search.free_name(f"{FRONT} {number}"), FRONT, plan, search.session.placing, None, None)
        entered.setdefault(found.name, found)
    for one in entered.values():
        simulated: tuple[float | None, float | None] = (None, None)
        if search.is_placed(one):
            simulated = races.simulated_of(search.segmenter.priced(one.plan))
        fresh = Candidate(one.name, one.placer, one.plan, one.placing, *simulated, plain=one.plain)
        races.enter(fresh, search.homes.get(one.name))


def _race(search: Search, races: Races) -> None:
    """Race as many of the entered candidates as there is time for, in the order of their entry."""

    def takes(some: Sequence[Candidate]) -> float:
        runs = (races.lasting(one.simulated_s or search.run_s(search.known.get(one.name, one))) for one in some)
        return race_s(runs, FEWEST) + races.compiling_s(some)

    racing = list(races.known.values())
    while len(racing) > 1 and takes(racing) > races.left():
        racing.pop()
    if len(racing) > 1:
        races.race(racing, "measuring the front", rounds=_ROUNDS, share=1.0, min_rounds=1, drop_losers=False)


def _point(search: Search, races: Races, one: Candidate) -> Point | None:
    """Return a candidate's point: latency and energy of the same runs, or both simulated; None if neither is known."""
    conditions = search.session.setup.conditions
    if one.failed is not None:
        return None
    if one.measured is not None and one.value is not None:
        source: Literal["measured", "modelled"] = "measured" if races.objective.by_meters else "modelled"
        return Point(one, one.measured.median, one.value.median, "measured", source, conditions)
    if one.simulated_s is not None and one.simulated_value is not None:
        return Point(one, one.simulated_s, one.simulated_value * races.scale, "simulated", "simulated", conditions)
    return None
