"""Run races between candidates, check their outputs, and record their measurements."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.errors import DeviceError, ExecutionError
from placeit.measuring.blocks import block_s
from placeit.measuring.budget import TRIFLE_S
from placeit.measuring.measure import FAILURES, WARMUP, Race
from placeit.measuring.statistics import FEWEST, Measurement, faster
from placeit.optimizer.candidate_state import Ran
from placeit.optimizer.candidates import Candidate, RaceResult
from placeit.optimizer.deployed import ReferenceRun
from placeit.optimizer.ledger import COMPILING
from placeit.optimizer.output_checks import OutputChecks
from placeit.optimizer.runner import Runner
from placeit.optimizer.runs import Runs
from placeit.profiler.support import refuses_ops

__all__ = ["Races", "too_late"]

_LASTING, _LASTING_SHARE, _SHIFT = 2, 4, 1.5  # unsteady: a ratio that changes by this factor for 2 rounds and a 4th of all


class Races(Runs):
    """Races between candidates on a session's devices.

    Args:
        session, objective, deadline, seed, progress, ledger, story: as for :class:`Runs`.

    Attributes:
        warmup: runs of each candidate before a race that do not count.
        duration: maximum seconds of a race.
        twice: whether outputs are checked after a race as well as before it.
        running_s: seconds of all races without the opening of executors: runs, and the work between them.
    """

    warmup = WARMUP
    duration = math.inf
    twice = True
    running_s = 0.0

    @functools.cached_property
    def checks(self) -> OutputChecks:
        """The checks of outputs."""
        return OutputChecks(self)

    @staticmethod
    def anchor_of(singles: Sequence[Candidate], incumbent: Candidate | None, otherwise: Candidate) -> Candidate:
        """Choose the anchor of a race, beside which its times compare with those in other races: a single device if possible.

        The incumbent is a biased anchor. It was lucky in the race that made it the incumbent, so the next one would be valued
        too low, and so on. It is the anchor only if no single device has a cost. If there is no incumbent, the anchor is the
        first single device, or else ``otherwise``.
        """
        valued = [one for one in singles if one.cost is not None]
        return next(one for one in (*valued, incumbent, *singles, otherwise) if one is not None)

    def with_others(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates, and single devices in another precision that race whenever these candidates do."""
        names = {candidate.name for candidate in candidates}
        return [*candidates, *(other for other in self.known.values() if other.failed is None and other.of in names)]

    def race(
        self,
        candidates: Sequence[Candidate],
        what: str,
        *,
        rounds: int,
        share: float,
        min_rounds: int = 0,
        together: bool = False,
        drop_losers: bool = True,
        anchor: Candidate | None = None,
        max_open: int = sys.maxsize,
        guests: Sequence[Candidate] = (),
    ) -> dict[str, Measurement]:
        """Race candidates against each other in fresh instances, with their outputs checked.

        Results are in :attr:`known`. A candidate that fails leaves the race, and the others continue. Only candidates that
        race are held open. A candidate that finds no room beside the others races after them, or is out if all must race
        together. If an anchor takes part in each of these races, all their times compare (``Candidate.cost``).

        Args:
            candidates: the candidates that take part.
            what: text for the progress display.
            rounds: maximum number of rounds.
            share: share of the time left that the rounds may take.
            min_rounds: rounds that are run whatever time they take.
            together: whether all must run in the same rounds, to be compared by round.
            drop_losers: whether candidates that are far behind leave early.
            anchor: a candidate, one of these or another, that takes part in every race; left out if nothing finds room beside
                it.
            max_open: maximum number of candidates that are open at the same time, the anchor included.
            guests: references that run in the same rounds, as far as there is memory and time for all rounds with them.

        Returns:
            The objective in the counted runs of the candidates, by name.
        """
        found: dict[str, Measurement] = {}
        waiting = [*self.with_others(candidates), *guests]
        drop_losers = drop_losers and len(waiting) == len(candidates)  # no candidate may lose to one that cannot be chosen
        first = [] if anchor is None else [anchor]
        waiting = [candidate for candidate in waiting if anchor is None or candidate.name != anchor.name]
        while waiting or first:
            with contextlib.ExitStack() as stack:
                stack.callback(self._spent, clock.now() - self.opening_s)
                if self.meters is not None:
                    stack.enter_context(self.meters)
                runners: dict[str, Runner] = {}
                later: list[Candidate] = []
                for i, candidate in enumerate([*first, *waiting]):
                    self.say("compiling segments", i / (len(first) + len(waiting)))
                    may_wait = bool(runners) and not together
                    if may_wait and (len(runners) >= max_open or not self.has_room()):
                        later.append(candidate)
                        continue
                    if may_wait and (takes := self.compiling_s([candidate])) > max(left := self.left(), TRIFLE_S):
                        self.skip(candidate.name, too_late(takes, left), late=True)
                        continue
                    if candidate.reference is not None and not self.has_room():
                        self.skip(candidate.name, "there was no memory for it beside the others")
                        continue
                    try:
                        with self.ledger.on(COMPILING):
                            deployed = stack.enter_context(self.deploy(candidate))
                        self.update_facts(candidate.name, refused=deployed.refused)
                    except FAILURES as error:
                        lacking = isinstance(error, MemoryError | DeviceError) and not refuses_ops(error)
                        if may_wait and lacking:  # there may be room without the others
                            later.append(candidate)
                        else:
                            self.fail(candidate.name, error)
                        continue
                    if self.checks.passed(candidate.name, deployed):
                        alone = self.homes.get(candidate.name)
                        runners[candidate.name] = Runner(deployed, self.objective, alone, self.meters)
                    else:
                        deployed.close()
                stuck = len(later) == len(waiting)  # nothing finds room beside the anchor
                if runners:
                    found |= self.raced(runners, what, rounds, share, min_rounds, drop_losers, anchor)
            waiting = later
            if not waiting or stuck or (anchor is not None and self.known[anchor.name].failed is not None):
                first = []
        return {candidate.name: found[candidate.name] for candidate in candidates if candidate.name in found}

    def _spent(self, begin: float) -> None:
        self.running_s += clock.now() - self.opening_s - begin

    def raced(
        self,
        runners: Mapping[str, Runner],
        what: str,
        rounds: int,
        share: float,
        min_rounds: int,
        drop_losers: bool,
        anchor: Candidate | None = None,
    ) -> dict[str, Measurement]:
        """Race opened candidates, by name; close each that leaves."""
        segments: dict[str, NDArray[np.float64] | None] = {}  # of candidates that left early

        def leave(name: str, error: ExecutionError | None) -> None:
            deployed = runners[name].deployed
            if error is None:
                segments[name] = deployed.segment_seconds()
                if self.twice:
                    self.checks.passed(name, deployed, after=True)
            else:
                self.fail(name, error)
            deployed.close()

        race = Race(
            runners,
            seed=self.seed + len(self.races) + 1,
            warmup=self.warmup,
            leave=leave,
            rest=lambda name: runners[name].deployed.rest(),
            pace=self.pace,
            watch=self.watch,
        )
        self.story.tell("race begins", None, f"{what}: {', '.join(runners)}")
        found: dict[str, Measurement] = {}
        learned: list[str] = []
        try:
            until = clock.now() + max(0.0, self.left() * share)
            race.warm_up()
            if self.warmup:
                self._withdraw(race, runners, until, rounds, min_rounds, anchor)
            race.run(
                rounds=rounds,
                budget_s=min(self.duration, max(0.0, until - clock.now())),
                min_rounds=min_rounds,
                drop_losers=drop_losers,
                progress=lambda _, done: self.say(what, done),
            )
        finally:
            results = {name: result for name, result in race.results().items() if self.known[name].failed is None}
            self._uncounted = max((runners[name].deployed.uncounted for name in results), default=1.0)
            if self.meters is not None and self.meters.fault is not None:
                self.go_by_model()
            for name, measurement in results.items():
                if name in race.running:
                    segments[name] = runners[name].deployed.segment_seconds()
                found[name], state = self._valued(name, runners[name], measurement, race.counted(name))
                before = self.known[name].runs
                if before is not None and len(measurement.samples) < min(FEWEST, len(before.measured.samples)):
                    continue  # a race that was cut short says less than the one before
                if before is not None:  # an anchor may not run in this race
                    state = replace(state, cost=before.cost, steady=before.steady, final=before.final)
                state = replace(state, segment_s=segments.get(name))
                self.set_state(name, state, "measured", f"{len(measurement.samples)} rounds: {what}")
                learned.append(name)
            rounds_run = max((len(result.samples) for result in results.values()), default=0)
            self.races.append(RaceResult(what, rounds_run, results, race.disturbed, race.left_out))
            self.story.tell("race ends", None, f"{what}: {rounds_run} rounds")
        for name in race.running if self.twice else ():
            self.checks.passed(name, runners[name].deployed, after=True)
        found = {name: value for name, value in found.items() if self.known[name].failed is None}
        if anchor is not None:
            self.pair(found, learned, anchor.name)
        self.keep([name for name in runners if name in learned])
        return found

    def _valued(self, name: str, runner: Runner, measurement: Measurement, counted: Sequence[range]) -> tuple[Measurement, Ran]:
        """Return the objective of a candidate in the race that has just ended, and its state by this race."""
        value = runner.valued(measurement, counted)
        joules = runner.metered(measurement, counted) if self.objective.by_meters else None
        by = value if joules is None else joules
        if isinstance(runner.deployed, ReferenceRun) and self.known[name].reference is not None:
            self.update_facts(name, used=runner.deployed.used)
        modelled = value if self.objective.has_model else None
        return by, Ran(measurement, by, joules, modelled, inner_s=runner.within(counted), race=len(self.races))

    def _withdraw(
        self, race: Race, runners: Mapping[str, Runner], until: float, rounds: int, min_rounds: int, anchor: Candidate | None
    ) -> None:
        """Remove candidates from a race until there is time for the others, by the runs so far.

        References leave first, until there is time for all rounds, and then candidates, until there is time for ``min_rounds``;
        the slowest leave first. The anchor and another candidate stay.
        """
        slowest = sorted(race.running, key=lambda name: -runners[name].took)
        guests = [name for name in slowest if self.known[name].reference is not None]
        others = [name for name in slowest if name not in guests and (anchor is None or name != anchor.name)]
        for name in (*guests, *others[: len(slowest) - len(guests) - 2]):
            wanted = rounds if name in guests else min_rounds
            round_s = sum(block_s(runners[one].took, period=self.period) for one in race.running)
            if wanted * round_s > max(0.0, until - clock.now()):
                race.withdraw(name)
                runners[name].deployed.close()
                why = f"a run took {runners[name].took:.3g} s, and there was no time left for {wanted} rounds"
                self.skip(name, why, late=name not in guests)

    def pair(self, found: Mapping[str, Measurement], learned: Sequence[str], anchor: str) -> None:
        """Value candidates by their ratio to the anchor in the same rounds, which cancels drift of the machine."""
        if anchor not in found and not any(one.cost is not None for one in self.known.values()):
            anchor = min(found, key=lambda name: found[name].median, default=anchor)
        beside = found.get(anchor)
        base = math.nan
        if beside is not None and (runs := self.known[anchor].runs) is not None:
            base = beside.median if runs.cost is None else runs.cost
            self.revise(anchor, replace(runs, cost=base), "it is the anchor of the race")
        for name in (name for name in learned if name in found and name != anchor):
            value, runs = found[name], self.known[name].runs
            if runs is None:
                continue
            if beside is None:  # the speed of the machine during the race is unknown
                self.revise(name, replace(runs, cost=None, steady=True), "no anchor ran in the same rounds")
                continue
            cost = faster(value, beside).ratio * base
            cost = cost if math.isfinite(cost) else value.median  # objectives other than time can be zero
            self.revise(name, replace(runs, cost=cost, steady=steady(value, beside)), f"beside {anchor}")


def steady(value: Measurement, beside: Measurement) -> bool:
    """Return whether the ratio of two candidates of a race had no permanent change from some round on.

    It changes if a device that only one of them needs becomes slower or recovers. A single disturbed run is not a
    permanent change.
    """
    _, of_value, of_beside = np.intersect1d(value.rounds, beside.rounds, return_indices=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = value.samples[of_value] / beside.samples[of_beside]
    if not len(ratios):
        return False
    least = max(_LASTING, len(ratios) // _LASTING_SHARE)
    parts = ((ratios[:at], ratios[at:]) for at in range(least, len(ratios) - least + 1))
    return not any(a.max() * _SHIFT < b.min() or b.max() * _SHIFT < a.min() for a, b in parts)


def too_late(takes: float, left: float) -> str:
    """Return why a candidate is skipped that takes longer to compile than there is time left."""
    return f"compiling it takes about {takes:.3g} s, and {max(0.0, left):.3g} s are left for it"
