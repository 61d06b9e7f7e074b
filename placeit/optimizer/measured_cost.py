"""A cost function whose values are measured: it is called like a simulated one, by placers and trainings."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.core.errors import ExecutionError, UsageError
from placeit.core.placement import Placement
from placeit.measuring.budget import CHECKS, race_s
from placeit.measuring.incumbent import HOPELESS, is_hopeless, is_worth_trying
from placeit.measuring.statistics import Measurement, Ratio, faster
from placeit.optimizer.candidates import Candidate, value_of
from placeit.optimizer.journal import Journal, Known, open_journal
from placeit.optimizer.outcomes import Asked, MeasuredOutcome, Outcomes
from placeit.optimizer.races import Races
from placeit.optimizer.runs import RunOptions
from placeit.planning.segments import Costs
from placeit.profiler.costs import Progress
from placeit.runtime.programs import searching
from placeit.simulator.objectives.registry import get_objective
from placeit.workbench import Workbench

__all__ = ["MeasuredCost", "Winner"]


_AT_ONCE = 8  # plans that are open at the same time, the anchor included
_RIVALS = 3  # maximum number of plans in a second race, for plans that look better than the incumbent
_MORE = 2  # rounds of a second race, as a multiple of the rounds of a first one
_GROWN = 1.1  # growth of the number of races after which costs are calibrated again


@dataclass(frozen=True, eq=False)
class Winner:
    """The best placement of a last race.

    Attributes:
        outcome: its outcome before that race.
        placement: placement of the model's ops, with its segments.
        measured: seconds in the last race, with their interval.
        value: the objective in the same runs.
        ratio: its objective over the second best's in the same rounds, with its interval; None if no other placement ran.
    """

    outcome: MeasuredOutcome
    placement: Placement
    measured: Measurement
    value: Measurement
    ratio: Ratio | None


class MeasuredCost:
    """A cost function that runs placements of a session's groups: ``cost(int32[B, G]) -> float64[B]``, seconds or joules.

    A value is NaN if the placement failed and ``inf`` if it does not fit; :meth:`outcomes` has the reason. Each plan is
    measured once, in a race with other plans and with an anchor: the single device of lowest simulated time. Its value is its
    time over the anchor's in the same rounds, times the anchor's time in its first race. Values therefore compare even if the
    speed of the machine changes between races. A plan that looks better than the incumbent, the best one so far, is raced again
    together with the incumbent before it takes its place.

    Segments are compiled before the clock starts, with nothing else running; a few plans are open at a time. Outputs are
    checked before the runs, and also after them if a plan is raced again.

    Args:
        session: a model on real devices, profiled (:meth:`placeit.Session.profile`). It must stay open while this is in use.
        objective: ``latency``, ``throughput`` (as seconds per request), ``total-cost`` or ``energy``.
        journal: a file of measurements, or an open journal. If it exists, its measurements are taken over. New ones are added
            to it before anything else is done, so that a killed process loses one batch at most. ``optimize`` can resume from
            the file.
        rounds: runs of each plan, after the two runs that check its outputs.
        hopeless: a plan is not run if the calibrated simulator expects its value to be more than this many times the
            incumbent's. Its value is then the expected one, and its ``source`` says so. None to run everything.
        deadline: when to stop measuring, by :func:`placeit.core.clock.now`. At most one plan exceeds it.
        seed: seed of the order within rounds.
        progress: called with the current step and the share of it that is done.

    Raises:
        UsageError: a device exists in simulation only, nothing is profiled, the objective does not exist, or the journal
            belongs to another search.
        FileError: the journal cannot be read or written.
    """

    def __init__(
        self,
        session: Workbench,
        objective: str = "latency",
        *,
        journal: str | Path | Journal | None = None,
        rounds: int = 6,
        hopeless: float | None = HOPELESS,
        deadline: float = math.inf,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        wanted = get_objective(objective, session.cluster)
        if not session.cluster.executable:
            raise UsageError("Devices that are only described run nothing, so there is nothing to measure.")
        if rounds < 1 or (hopeless is not None and not hopeless > 1):
            raise UsageError(f"'rounds' is at least 1 and 'hopeless' more than 1; got {rounds} and {hopeless}.")
        with contextlib.ExitStack() as stack:  # keeps compiled programs until this object is deleted
            stack.enter_context(searching())
            self._races = Races(RunOptions(session, wanted, deadline, seed, progress))
            weakref.finalize(self, stack.pop_all().close).atexit = False
        self._races.watch_machine()
        self._segmenter = self._races.segmenter_of(session.costs)
        self._problem = self._segmenter.problem()
        self._races.warmup = 0  # the runs that check outputs are enough to warm up
        self._rounds, self._hopeless = rounds, hopeless
        self._measured = 0  # plans that this process has measured
        self._asked = Asked(self._races, self._segmenter, self._problem)
        self._outcomes = Outcomes(self._races)
        self._confirmed: set[str] = set()  # candidates that may be the incumbent: raced twice, or the first ones
        self._estimator = 0, self._segmenter  # number of races that costs are calibrated by, and a segmenter with these costs
        if journal is not None:
            journal = journal if isinstance(journal, Journal) else open_journal(Path(journal), session, wanted)
            self.take_over(journal.known)
            self._races.journal = journal

    def __call__(self, placements: ArrayLike) -> NDArray[np.float64]:
        """Return the values of placements, ``int32[B, G] -> float64[B]``. Raises as :meth:`outcomes`."""
        return np.array([outcome.value for outcome in self.outcomes(placements)])

    def outcomes(self, placements: ArrayLike) -> list[MeasuredOutcome]:
        """Measure placements that are not measured yet, and return the outcome of each row of ``int32[B, G]``.

        Raises:
            PlacementError: a placement has the wrong length, or an unknown device.
            KeyboardInterrupt: Ctrl-C; measurements of earlier batches are kept.
        """
        rows = self._asked.rows(placements)
        names = [self._asked.name_of(row, planned=self._races.left() > 0) for row in rows]
        waiting = list(dict.fromkeys(name for name in names if name is not None and not self._outcomes.is_known(name)))
        if self._hopeless is not None:
            waiting.sort(key=self._expected)
        while waiting:
            batch: list[str] = []
            limit = self._affordable(waiting)
            while waiting and len(batch) < limit:
                if not self._is_hopeless(name := waiting.pop(0)):
                    batch.append(name)
            if batch:
                self._measure(batch)
                self._challenge()
            if limit < 1:
                self._outcomes |= {name: self._asked.left_out(self._races.known[name].groups) for name in waiting}
                waiting = []
        return [
            self._asked.left_out(row) if name is None else replace(self._outcomes[name], devices=row)
            for row, name in zip(rows, names, strict=True)
        ]

    @property
    def tried(self) -> list[MeasuredOutcome]:
        """Outcomes of all plans so far, in the order of their first request; placements that do not fit are left out."""
        return [self._outcomes[name] for name in self._races.known if name in self._outcomes]

    @property
    def failures(self) -> list[MeasuredOutcome]:
        """Outcomes of the plans that failed or found no room, with their reasons."""
        return [outcome for outcome in self.tried if outcome.source in ("failed", "infeasible")]

    @property
    def incumbent(self) -> MeasuredOutcome | None:
        """Outcome of the best measured plan so far; None if nothing was measured."""
        best = self._best()
        return None if best is None else self._outcomes[best.name]

    @property
    def known(self) -> list[Known]:
        """All measurements so far, as a journal keeps them."""
        return [known for name in self._races.known if (known := self._races.recorded(name)) is not None]

    @property
    def samples(self) -> int:
        """Number of timed runs in this process, runs of the anchor included."""
        return sum(len(measured.samples) for race in self._races.races for measured in race.measured.values())

    @property
    def compile_s(self) -> float:
        """Seconds that were spent compiling and opening plans."""
        return self._races.opening_s

    @property
    def run_s(self) -> float:
        """Seconds that were spent running plans: checks, warm-up, rounds."""
        return self._races.running_s

    @property
    def deadline(self) -> float:
        """When to stop measuring, by :func:`placeit.core.clock.now`."""
        return self._races.deadline

    @deadline.setter
    def deadline(self, deadline: float) -> None:
        self._races.deadline = deadline

    def calibrated(self) -> Costs:
        """Return the session's costs, corrected by all measurements; :class:`Segmenter` makes a problem of them."""
        return self._races.calibrated()

    def winner(self, few: int = 3, rounds: int = 25) -> Winner:
        """Race the best few placements against each other again, regardless of the deadline, and return the winner.

        Only the new runs count: the earlier ones selected these placements, so they are biased.

        Args:
            few: number of placements that take part.
            rounds: runs of each.

        Raises:
            UsageError: ``few`` or ``rounds`` is less than 1.
            ExecutionError: nothing was measured, or all of these placements failed.
        """
        if few < 1 or rounds < 1:
            raise UsageError(f"A last race takes at least one placement and one round; got {few} and {rounds}.")
        races = self._races
        names = [name for name, one in self._outcomes.items() if one.source == "measured"]
        best_names = sorted(names, key=self._value)[:few]
        if not best_names:
            raise ExecutionError("Nothing has been measured, so nothing can be the best.")
        best = [races.known[name] for name in best_names]
        found = self._race(best, best[0], rounds, "measuring the best once more", min_rounds=rounds)
        names = sorted((name for name in found if self._outcomes[name].source == "measured"), key=self._value)
        if not names:
            reasons = dict.fromkeys(str(self._outcomes[name].reason) for name in best_names)
            raise ExecutionError(" ".join(["None of the best placements could be run once more.", *reasons]))
        first, won = names[0], races.known[names[0]]
        rivals = [name for name in names[1:] if len(np.intersect1d(found[name].rounds, found[first].rounds))]
        ratio = faster(found[first], found[rivals[0]]) if rivals else None
        measured = next(race.measured[first] for race in reversed(races.races) if first in race.measured)
        return Winner(self._outcomes[first], won.placement, measured, found[first], ratio)

    def take_over(self, measured: Iterable[Known]) -> None:
        """Take over measurements of the same search; of several records of a placement, the last one counts."""
        for known in measured:
            if known.cost is not None and not known.replicas and self._asked.refused(known.devices) is None:
                plan = self._segmenter.merged(known.segment_of, known.devices)
                name = self._asked.enter(plan, known.placer)
                self._races.recall(name, known, plan)
                self._confirmed.add(name)
                self._outcomes.conclude(name)

    def _expected(self, name: str) -> float:
        """Return the objective of a candidate by calibrated costs; calibrate again if there were 10 % more races since."""
        calibrated_races, segmenter = self._estimator
        if (races := len(self._races.races)) > calibrated_races * _GROWN:
            segmenter = self._races.segmenter_of(self.calibrated())
            self._estimator = races, segmenter
        return self._races.objective.of_plan(segmenter.priced(self._races.known[name].plan)) * self._races.scale

    def _is_hopeless(self, name: str) -> bool:
        """Return whether a candidate is not worth a run; if so, record its expected value as its outcome."""
        best = self._best()
        if self._hopeless is None or best is None or best.cost is None:
            return False
        expected = self._expected(name)
        if hopeless := is_hopeless(expected, best.cost, self._hopeless):
            why = f"It was not run: its expected value is {expected / best.cost:.1f} times the incumbent's."
            self._outcomes[name] = MeasuredOutcome(self._races.known[name].groups, expected, "estimated", why)
        return hopeless

    def _affordable(self, names: Sequence[str]) -> int:
        """Return how many of the plans there is time for in one batch; one if there is time for at least half of it.

        Each is assumed to take the mean time of earlier plans, or the time of its simulated runs if that is longer.
        """
        races = self._races
        left, average = races.left(), (self.compile_s + self.run_s) / max(1, self._measured)
        if left <= average / 2:
            return 0
        plans = [races.known[name] for name in names]
        seconds = [races.lasting((one.simulated_s or 0.0) * races.requests_of(one)) for one in plans]
        # a first race checks outputs only before its runs
        race_seconds = [race_s([one], self._rounds, period=races.period, checks=CHECKS // 2) for one in seconds]
        total = np.cumsum(np.maximum(race_seconds, average))
        return min(_AT_ONCE - 1, max(1, int(np.searchsorted(total, left, side="right"))))

    def _value(self, name: str) -> float:
        return self._outcomes[name].value

    def _best(self) -> Candidate | None:
        """Return the incumbent: the best confirmed candidate if there is one, else the best of all."""
        valued = self._valued()
        return next((one for one in valued if one.name in self._confirmed), valued[0] if valued else None)

    def _valued(self) -> list[Candidate]:
        """Return the candidates whose values compare across races, best first."""
        return [one for one in self._races.ranked if one.cost is not None and one.steady]

    def _anchor(self, otherwise: Candidate) -> Candidate:
        """Return the single device of lowest simulated time that runs; see :meth:`Races.anchor_of`."""
        groups = len(self._problem)
        names = [self._asked.name_of(np.full(groups, d, np.int32)) for d in self._problem.single_devices]
        singles = sorted(
            (self._races.known[name] for name in names if name is not None), key=lambda one: one.plan.schedule.makespan
        )
        usable = [one for one in singles if one.cost is not None or not self._outcomes.is_known(one.name)]
        return self._races.anchor_of(usable, self._best(), otherwise)

    def _measure(self, names: Sequence[str]) -> None:
        """Race candidates beside the anchor, and record their outcomes."""
        races, fresh = self._races, [self._races.known[name] for name in names]
        anchor = self._anchor(fresh[0])
        self._race(fresh, anchor, self._rounds, f"measuring {len(names)} placement{'s' * (len(names) > 1)}", again=False)
        self._measured += len(names)
        first = anchor if races.known[anchor.name].cost is not None else self._best()
        if not self._confirmed and first is not None:
            self._confirmed.add(first.name)

    def _challenge(self) -> None:
        """Race the candidates that look better than the incumbent again: the best of many is partly lucky."""
        while (best := self._best()) is not None and best.cost is not None and self._races.left() > 0:
            fresh = self._outcomes.keys() - self._confirmed
            rivals = [one for one in self._valued() if one.name in fresh and is_worth_trying(value_of(one), best.cost)]
            rivals = rivals[: self._affordable([one.name for one in rivals[:_RIVALS]])]
            if not rivals:
                return
            self._race([*rivals, best], self._anchor(best), _MORE * self._rounds, "measuring what looks better once more")
            self._confirmed |= {one.name for one in rivals}

    def _race(
        self,
        candidates: Sequence[Candidate],
        anchor: Candidate,
        rounds: int,
        what: str,
        *,
        again: bool = True,
        min_rounds: int = 1,
    ) -> dict[str, Measurement]:
        """Race candidates beside an anchor, and record their outcomes; if the anchor fails, their measurements are dropped."""
        races = self._races
        races.twice = again
        found = races.race(
            candidates,
            what,
            rounds=rounds,
            share=1.0,
            min_rounds=min_rounds,
            drop_losers=False,
            anchor=anchor,
            max_open=_AT_ONCE,
        )
        undone = self._outcomes.undo(candidates, anchor, found)
        for one in (anchor, *candidates):
            if one.name not in undone:
                self._outcomes.conclude(one.name)
        return found
