"""The search for a placement: proposals, plans, races, and what is learned from them."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from placeit.optimizer.entries import (
    Entry,
    in_other_precision,
    known_value,
    measured_median,
    plain_entries,
    value_of,
)
from placeit.optimizer.journal import Journal
from placeit.optimizer.races import Races, key_of, reason_of
from placeit.placers.asking import ask
from placeit.placers.base import is_over
from placeit.placers.feasibility import fits
from placeit.placers.registry import parse_placer
from placeit.planning.segments import Plan, Segmenter
from placeit.profiler.calibration import calibrated
from placeit.profiler.costs import Progress
from placeit.runtime.budget import CHECKS, TRIFLE_S, hopeless, needed
from placeit.runtime.measure import FAILURES, FEWEST, WARMUP, Measurement, Ratio, faster, summed_up
from placeit.session import Session
from placeit.simulator.objectives import Objective
from placeit.simulator.simulate import SimulatedCost

__all__ = ["WORTH_MEASURING", "Search"]

_LOG = logging.getLogger(__name__)

_FINALISTS = 5  # most new placements that are measured in one turn
_TURNS = 3  # most turns of measuring and searching again
_ROUNDS, _SELECTION_ROUNDS = 6, 9  # of a race in a turn, and of the one that selects who is decided about
_DECISION_ROUNDS, _MOST_DECISION_ROUNDS = 25, 75  # of the race that decides, where runs vary little, and at most
_STEADY = 0.1  # how much a ratio of two runs may vary, as a share of it, for so few rounds to be enough
_FINAL_SINGLES, _FINAL_SPLITS = 2, 3  # single devices, and placements over several, that take part in the selection
WORTH_MEASURING, _FAR_BEHIND = 0.99, 1.05  # of the best measured, and of the best single device
_TURN_SHARE, _SELECTION_SHARE = 0.35, 0.5  # of what is left of the budget
_ASKED_SHARE = 0.25  # of it, for what is left of the placers; and for a search among plans
_STARTS, _STEPS = 2, 600  # of a search among plans by their makespan
_PLANS = 200  # moves that are tried in a search among plans by another objective


class Search(Races):
    """The steps of :func:`placeit.optimizer.optimize.optimize` and what they have found so far."""

    def __init__(self, session: Session, objective: Objective, deadline: float, seed: int, progress: Progress | None) -> None:
        super().__init__(session, objective, deadline, seed, progress)
        self.segmenter = session.segmenter
        self.problem = self.segmenter.problem()
        self.unplanned: dict[str, tuple[str, str]] = {}  # candidate -> who was to propose it, and why it came to nothing
        self.ratio: Ratio | None = None
        self.winner: Entry | None = None
        self.single: Entry | None = None
        self.hurried = False  # whether there was no time for a decision
        self.once: dict[str, float] = {}  # seconds of one run of single devices, as far as they are known

    def add(self, name: str, placer: str, propose: Callable[[], NDArray[np.int32]]) -> None:
        """Enter a placement, unless it is there already; if it cannot be had or planned, remember why."""
        try:
            groups = propose()
            if key_of(groups) not in self.entries:
                self.enter(name, placer, groups, self.segmenter.plan(groups))
        except FAILURES as error:
            self.unplanned[name] = (placer, reason_of(error))

    def enter(self, name: str, placer: str, groups: NDArray[np.int32], plan: Plan) -> Entry:
        """Enter a plan, under another name if there is one of that name: an earlier search may have used it."""
        used = {entry.name for entry in self.entries.values()}
        free = name if name not in used else next(n for i in itertools.count(2) if (n := f"{name} ({i})") not in used)
        entry = Entry(free, placer, groups, plan, plan.schedule.makespan, self.objective.of_schedule(plan.schedule))
        self.entries[key_of(groups)] = entry
        return entry

    @property
    def standing(self) -> list[Entry]:
        """Entries that have not failed."""
        return [entry for entry in self.entries.values() if entry.failed is None]

    @property
    def ranked(self) -> list[Entry]:
        """Those of them that were measured, best first."""
        return sorted((entry for entry in self.standing if entry.measured is not None), key=value_of)

    def expected(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Objective of feasible placements' plans, ``int32[B, G] -> float64[B]``, by the costs as they are known now."""
        return self.objective.of_plans(self.segmenter, placements)

    def resume(self, journal: Journal) -> None:
        """Enter what an earlier search has measured, as far as it is feasible now, and keep what this one measures."""
        self.journal = journal
        for known in journal.known:  # the last that is known of a placement counts
            if not fits(self.problem, known.devices):
                continue
            plan = self.segmenter.merged(known.segment_of, known.devices)
            entry = self.entries.get(key_of(known.devices)) or self.enter(known.name, known.placer, known.devices, plan)
            entry.plan, entry.earlier, entry.output_error = plan, True, known.output_error
            rounds = range(len(known.samples))
            entry.measured = summed_up(entry.name, known.samples, rounds)
            entry.value = summed_up(entry.name, known.values, rounds)
            entry.segment_s = known.segment_s

    def singles(self, *, plain: bool = True) -> None:
        """Enter each single-device placement, and what one would do without placeit."""
        for d in self.problem.single_devices:
            self.add(self.problem.device_names[d], "single", functools.partial(np.full, len(self.problem), d, np.int32))
        if plain:
            self.entries |= {entry.name.encode(): entry for entry in plain_entries(self.session, self.problem)}

    def compare_precisions(self) -> list[str]:
        """Have single devices raced in another precision as well; return a sentence for each that has no other."""
        singles = [entry for entry in self.entries.values() if entry.placer == "single"]
        self.others, missing = in_other_precision(self.session, singles)
        return missing if singles else ["there is no single device for the whole model to compare"]

    def begin_with(self, placements: Mapping[str, NDArray[np.int32]]) -> None:
        """Enter placements of groups that are measured whatever is simulated of them, and searched on from."""
        for name, groups in placements.items():
            self.add(name, "start", groups.copy)
            if (entry := self.entries.get(key_of(groups))) is not None:
                entry.given = True

    def propose(self, placers: Sequence[str]) -> None:
        """Ask every placer, then search among plans from the best answers."""
        cost = self.objective.cost(self.problem, SimulatedCost(self.problem, links="channel", queue="priority"))
        for i, name in enumerate(placers):
            self.say(f"asking {name.partition(':')[0]}", i / len(placers))
            deadline = time.perf_counter() + max(0.0, self.left()) * _ASKED_SHARE / (len(placers) - i)
            self.add(
                name,
                name.partition(":")[0],
                functools.partial(ask, parse_placer(name), self.problem, cost, seed=self.seed, deadline=deadline),
            )
        if self.entries:  # or an error will say it all
            for name in (placer for placer in placers if placer in self.unplanned):
                _LOG.warning("The placer '%s' gave no placement; the others continue: %s", name, self.unplanned[name][1])
        self.refine("segment-search")

    def refine(self, name: str) -> bool:
        """Search among plans from the best entries; return whether that led to a placement not entered before."""
        self.say("searching among plans", 0.0)
        known = len(self.entries)
        placed = [entry for entry in self.standing if entry.alone is None]
        ranked = sorted(placed, key=lambda e: float(self.expected(e.groups[None])[0]))
        given = [entry for entry in placed if entry.given and entry.measured is None]
        for i, entry in enumerate(dict.fromkeys([*ranked[:_STARTS], *given])):
            improve = functools.partial(self.improved, entry.groups, self.seed + i)
            self.add(name if i == 0 else f"{name}, start {i + 1}", "segment-search", improve)
        return len(self.entries) > known

    def improved(self, groups: NDArray[np.int32], seed: int) -> NDArray[np.int32]:
        """Search among plans from a placement on."""
        deadline = time.perf_counter() + max(0.0, self.left()) * _ASKED_SHARE / _STARTS
        if self.objective.is_makespan:
            return self.segmenter.search(groups, self.problem, steps=_STEPS, seed=seed, deadline=deadline)
        rng, now = np.random.default_rng(seed), self.expected(groups[None])[0]
        for _ in range(_PLANS):
            if is_over(deadline):
                break
            moved, v = groups.copy(), int(rng.integers(len(groups)))
            moved[v] = rng.choice(np.flatnonzero(self.problem.feasible[v]))
            if fits(self.problem, moved) and (value := self.expected(moved[None])[0]) < now:
                groups, now = moved, value
        return groups

    def improve(self) -> None:
        """Measure the most promising entries, learn from how long their segments took, search again."""
        if not self.session.executable:
            return
        self.time_plain()
        if not self.promising():  # there is time for one run of each
            self.time_singles()
            return
        for turn in range(_TURNS):
            begin = time.perf_counter()
            self.measure()
            one_more = self.left() - (time.perf_counter() - begin) > self.final_s()
            if not one_more or turn == _TURNS - 1 or len(self.problem.device_names) == 1:
                return
            self.learn()
            if not self.refine(f"calibrated-search {turn + 1}") or not self.worth_another_turn():
                return

    def worth_another_turn(self) -> bool:
        """Whether some unmeasured entry is now expected to beat the best that was measured."""
        fresh = [e for e in self.standing if e.measured is None and e.placer != "single"]
        best = min(map(value_of, self.standing), default=math.inf)
        return any(self.expected(e.groups[None])[0] < best * WORTH_MEASURING for e in fresh)

    def final_s(self) -> float:
        """Seconds that selection and decision will take."""
        singles, splits = self.finalists()
        select, decide = (
            needed(map(measured_median, self.with_others(entries)), rounds)
            for rounds, entries in (
                (_SELECTION_ROUNDS, [*singles, *splits]),
                (_DECISION_ROUNDS, [*singles[:1], *splits[:1]]),
            )
        )
        return select + decide

    def finalists(self) -> tuple[list[Entry], list[Entry]]:
        """Single devices, and placements over several, that may be the answer, best first."""
        ranked = self.ranked
        singles = [entry for entry in ranked if entry.placer == "single"][:_FINAL_SINGLES]
        splits = [entry for entry in ranked if entry.placer != "single"][:_FINAL_SPLITS]
        if singles:  # of several that are far behind, one is enough to say so
            near = [entry for entry in splits if value_of(entry) < _FAR_BEHIND * value_of(singles[0])]
            splits = near or splits[:1]
        return singles, splits

    def promising(self) -> list[Entry]:
        """Unmeasured entries worth measuring, with the best measured one and the best single device beside them."""
        fresh = [e for e in self.standing if e.measured is None and e.placer != "single"]
        best = min((known_value(e) for e in self.standing), default=math.inf)
        for entry in fresh:
            if not entry.given:  # the user wants to know
                entry.not_run = hopeless(known_value(entry), best, self.objective.worse)
        fresh = sorted((e for e in fresh if e.not_run is None), key=lambda e: (not e.given, known_value(e)))[:_FINALISTS]
        ranked = self.ranked
        singles = [e for e in ranked if e.placer == "single"][:1]
        singles += [e for e in self.standing if e.placer == "single" and e.measured is None]  # all of them, at first
        entries = sorted(dict.fromkeys([*singles, *ranked[:1]]), key=self.run_s)
        decision = needed([2 * self.run_s(entries[0])], FEWEST) if entries else 0.0
        room = max(self.left() * _TURN_SHARE, self.left() - decision, TRIFLE_S)
        while fresh and needed(map(self.run_s, (*entries, *fresh)), _ROUNDS if entries or len(fresh) > 1 else 1) > room:
            fresh.pop()
        while entries and needed(map(self.run_s, (*entries, *fresh)), 1) > room:  # the slowest first
            entries.pop()
        return [*entries, *fresh]

    def run_s(self, entry: Entry) -> float:
        """Seconds that a run takes, as it was measured, or else simulated."""
        if entry.measured is not None:
            return entry.measured.median
        simulated = entry.simulated_s
        if simulated is None:  # a plain device; what it is made of is hardly faster
            parts = (e.simulated_s for e in self.entries.values() if e.placer == "single")
            simulated = min((seconds for seconds in parts if seconds is not None), default=0.0)
        return self.once.get(entry.name, simulated)

    def time_plain(self) -> None:
        """Run plain devices once where there is no time to race all single devices: nothing else says how long they take."""
        fresh = [e for e in self.standing if e.placer == "single" and e.measured is None]
        if needed(map(self.run_s, fresh), _ROUNDS) > max(self.left() * _TURN_SHARE, TRIFLE_S):
            for entry in fresh:
                if entry.simulated_s is None and (seconds := self.time_once(entry)) is not None:
                    self.once[entry.name] = seconds

    def time_once(self, entry: Entry) -> float | None:
        """Seconds of one run of an entry, unless they are known; None if it fails."""
        if (seconds := self.once.get(entry.name)) is not None:
            return seconds
        try:
            with entry.home(self.session).executor(entry.plan) as executor:
                seconds = executor.time()
                return min(seconds, executor.time()) if seconds < self.left() else seconds  # the first one is cold
        except FAILURES as error:
            self.fail(entry, error)
            return None

    def time_singles(self) -> None:
        """Run every single device once, unless that has been done."""
        for entry in [e for e in self.standing if e.placer == "single" and e.measured is None]:
            if (seconds := self.time_once(entry)) is None:
                continue
            used = np.eye(len(self.problem.device_names))[entry.groups[0]] if entry.alone is None else entry.alone.busy
            busy = used * seconds
            value = self.objective.of_run(seconds, lambda: (busy, 0.0))  # noqa: B023
            entry.measured, entry.value = (summed_up(entry.name, [one], [0]) for one in (seconds, value))

    def measure(self) -> None:
        """Race what is promising; where all of it fails, what is promising then, so that something is left if anything runs."""
        while (entries := self.promising()) and any(entry.measured is None for entry in entries):
            what = f"measuring {len(entries)} placement{'s' if len(entries) > 1 else ''}"
            each = sum(map(self.run_s, self.with_others(entries)))
            rounds = int(np.clip(max(self.left(), TRIFLE_S) / each - WARMUP - CHECKS, 1, _ROUNDS)) if each > 0 else _ROUNDS
            self.race(entries, what, rounds=rounds, share=_TURN_SHARE, min_rounds=rounds)
            if self.ranked:
                return

    def learn(self) -> None:
        """Correct the costs by what segments really took beside each other."""
        profiled = self.session.segmenter  # an entry's plan may say what corrected costs have already put right
        runs = [
            (profiled.priced(entry.plan), entry.segment_s)
            for entry in self.entries.values()
            if entry.segment_s is not None and len(entry.plan.segments) > 1 and entry.alone is None
        ]
        self.segmenter = Segmenter(self.session.grouping, calibrated(self.session.costs, runs))

    def confirm(self) -> None:
        """Select the best single device and the best placement over several, then decide between the two.

        They are selected by a race of the finalists, and decided about by a race of the two alone: what made them look good
        enough to be selected does not enter the decision.
        """
        if self.session.executable:
            while not self.settled(*self.selected()):
                pass

    def selected(self) -> tuple[Entry | None, Entry | None]:
        """The best single device and the best placement over several, by a race of the finalists if there is time for it."""
        singles, splits = self.finalists()
        entries = [*singles, *splits]
        rounds = self.affordable(_SELECTION_ROUNDS, entries, _SELECTION_SHARE) if entries else 0
        found: dict[str, Measurement] = {}
        if (len(singles) > 1 or len(splits) > 1) and rounds >= FEWEST:
            found = self.race(entries, "measuring the finalists", rounds=rounds, share=_SELECTION_SHARE)

        def order(entry: Entry) -> float:
            together = len(found) == len(entries)
            return faster(found[entry.name], found[entries[0].name]).ratio if together else value_of(entry)

        best = [min((e for e in some if e.failed is None), key=order, default=None) for some in (singles, splits)]
        return best[0], best[1]

    def settled(self, single: Entry | None, split: Entry | None) -> bool:
        """Decide between the two, by the samples of a race of their own; return whether neither has failed in it.

        The number of rounds is settled before the race begins, and there is one look at its end.
        """
        self.single = single
        if single is None or split is None or value_of(single) == 0:  # nothing is less than zero
            self.winner = single or split
            self.hurried = split is None and any(
                e.measured is None and e.not_run is None for e in self.standing if e.placer != "single"
            )
            return True
        pair, found = [single, split], {}
        if (rounds := self.affordable(decision_rounds(single, split), pair, 1.0)) >= FEWEST:
            found = self.race(pair, "deciding between the finalists", rounds=rounds, share=1.0, together=True)
        if single.failed is not None or split.failed is not None:
            return False
        self.winner = single
        self.hurried = len(found) < 2 or min(len(value.samples) for value in found.values()) < FEWEST
        if not self.hurried:
            single.final = split.final = True
            self.ratio = faster(found[split.name], found[single.name])
            self.winner = split if self.ratio.faster else single
        return True

    def affordable(self, rounds: int, entries: Sequence[Entry], share: float) -> int:
        """How many of some rounds there is time for, in a share of what is left."""
        each = sum(map(measured_median, self.with_others(entries)))
        return min(rounds, int(self.left() * share / each) - WARMUP - CHECKS)


def decision_rounds(single: Entry, split: Entry) -> int:
    """Rounds of the race that decides: more where a gain is likely and runs vary much, by earlier races of the two."""
    if value_of(split) >= value_of(single):
        return _DECISION_ROUNDS
    variance = 0.0
    for entry in (single, split):
        assert entry.value is not None  # noqa: S101
        logs = np.log(np.maximum(entry.value.samples, np.finfo(float).tiny))
        variance += float(1.48 * np.median(abs(logs - np.median(logs)))) ** 2
    return int(np.clip(_DECISION_ROUNDS * variance / _STEADY**2, _DECISION_ROUNDS, _MOST_DECISION_ROUNDS))
