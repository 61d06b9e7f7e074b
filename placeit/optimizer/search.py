"""The search for a placement: proposals, plans, races, and the corrections of costs that follow from them."""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.errors import FileError, UsageError
from placeit.core.memory_reads import MemoryReads
from placeit.core.problem import CostFunction, Problem
from placeit.measuring.budget import TRIFLE_S, needed, rounds_within
from placeit.measuring.incumbent import is_worth_trying, why_hopeless
from placeit.measuring.measure import FAILURES, FEWEST, faster_in_any_opening, summed_up
from placeit.optimizer.book import reason_of
from placeit.optimizer.candidates import (
    Candidate,
    known_value,
    value_of,
)
from placeit.optimizer.certainty import Excluded
from placeit.optimizer.decision import DECISION_ROUNDS, Decision, decision_rounds
from placeit.optimizer.journal import Journal, Known
from placeit.optimizer.ledger import COMPILING, DECIDING, MEASURING, Item, Ledger
from placeit.optimizer.races import Races, too_late
from placeit.optimizer.references import enter_references
from placeit.optimizer.state import Ran
from placeit.optimizer.wholes import in_other_precision, plain_candidates
from placeit.placers.asking import ask
from placeit.placers.base import Measured, Placer, RefiningPlacer, is_over
from placeit.placers.bound import lower_bound
from placeit.placers.feasibility import fits
from placeit.placers.registry import parse_placer
from placeit.planning.segments import Plan
from placeit.profiler.costs import Progress
from placeit.simulator.objectives.base import Objective
from placeit.simulator.simulate import SimulatedCost
from placeit.workbench import Workbench

__all__ = ["SEARCH", "Explores", "Proposal", "Search"]

_LOG = logging.getLogger(__name__)

SEARCH = "search"
"""Name of the placer for candidates that a search among plans finds."""

_FINALISTS = 5  # most new placements that are measured in one turn
_TURNS = 3  # most turns of measuring and searching again
_ROUNDS, _SELECTION_ROUNDS = 6, 8  # rounds of a race in a turn, and of the race that selects the last two
_FINAL_SINGLES, _FINAL_SPLITS = 2, 3  # single devices, and placements over several, that take part in the selection
_APART = 1.2  # times the best single device, from which on another one is not raced again if no split can be faster
_FAR_BEHIND = 1.05  # times the best single device, from which on a placement over several is far behind
_FEWEST_BESIDE = 3  # runs beside a candidate of known cost, from which on measurements of an earlier search count
_TURN_SHARE, _SELECTION_SHARE, _FIRST_SHARE = 0.35, 0.5, 0.4  # shares of the time left: a turn, the selection, whole requests
_KEPT_ROUNDS = 12  # rounds of the deciding race that time is reserved for
_MUCH_SHARE = 0.1  # share of the time left, from which on compiling a candidate has to be worth it
_ASKED_SHARE = 0.25  # share of the spare time for the placers; and for a search among plans
_AGAIN_SHARE = 0.1  # share of the spare time for placers that are asked again
_STARTS, _STEPS = 2, 600  # starts and steps of a search among plans, for an objective that is a time
_PLANS = 200  # moves that are tried in a search among plans, for other objectives


class Proposal(NamedTuple):
    """An answer of a placer.

    Attributes:
        placer: the placer that proposed it.
        candidate: name of the candidate.
        fresh: whether it was not a candidate before.
        same: whether it is the placement that the placer was told to start from.
        measured: the objective, as the placer itself has measured it; None if it has not.
    """

    placer: str
    candidate: str
    fresh: bool
    same: bool
    measured: float | None = None


class Search(Races):
    """The steps of :func:`placeit.optimizer.optimize.find`, and their results so far."""

    def __init__(
        self,
        session: Workbench,
        objective: Objective,
        deadline: float,
        seed: int,
        progress: Progress | None,
        ledger: Ledger | None = None,
    ) -> None:
        super().__init__(session, objective, deadline, seed, progress, ledger)
        self.segmenter = self.segmenter_of(session.costs) if objective.steady else session.segmenter
        self.problem = self.segmenter.problem()
        self.unplanned: dict[str, tuple[str, str]] = {}  # candidate -> its placer, and why there is no plan
        self.unable: set[str] = set()  # unplanned candidates whose placer cannot place this model with its options
        self.excluded: Excluded | None = None  # why no split can be the answer, if that is known
        self.memory: MemoryReads | None = None  # bytes that groups read from a memory that devices share, if known
        self.once: dict[str, float] = {}  # seconds of one run of a single device, by name, where known
        self.searches = 0  # number of searches among plans so far
        self.placers: list[str] = []  # placers that gave a placement
        self.proposals: list[Proposal] = []
        self.notes: dict[str, str] = {}  # by placer
        self.curves: dict[str, list[float]] = {}  # by placer that learned from runs: the values that it measured, in that order
        self.with_references = False  # whether to compare the answer with references
        self._named: dict[bytes, str] = {}  # names of the placements on the session's own devices

    @functools.cached_property
    def bound_s(self) -> float:
        """Least seconds of any placement; NaN for throughput, or if the costs of groups are unknown.

        The known error of the bound is corrected. If a device ran the whole model in less time than simulated, its costs are
        reduced by that factor, and the bound is at most the time of the fastest measured placement.
        """
        if self.objective.steady or self.session.costs.shared:
            return math.nan
        factor, least = np.ones(self.problem.devices), math.inf
        for one in self.known.values() if self.objective.is_makespan else ():
            if one.measured is not None and not one.earlier and self.is_placed(one):
                least = min(least, one.measured.median)
                if one.placer == "single" and one.simulated_s:
                    factor[one.groups[0]] = min(1.0, one.measured.median / one.simulated_s)
        return min(lower_bound(replace(self.problem, compute=self.problem.compute * factor), self.memory), least)

    def find(self, groups: NDArray[np.int32]) -> Candidate | None:
        """Return the candidate with this placement on the session's own devices, ``int32[G]``; None if it does not exist."""
        name = self._named.get(_key(groups))
        return None if name is None else self.known[name]

    def add(self, name: str, placer: str, propose: Callable[[], NDArray[np.int32]], *, start: str | None = None) -> None:
        """Enter the placement that ``propose`` returns, unless it is a candidate already; if that fails, record why.

        ``start`` names the candidate that the placer starts from.
        """
        try:
            groups = propose()
            known = self.find(groups)
            candidate = self.enter_plan(name, placer, self.segmenter.plan(groups), start) if known is None else known
            self.proposals.append(Proposal(placer, candidate.name, known is None, candidate.name == start))
        except FAILURES as error:
            self.unplanned[name] = (placer, reason_of(error))
            if isinstance(error, UsageError | FileError):
                self.unable.add(name)

    def enter_plan(self, name: str, placer: str, plan: Plan, start: str | None = None) -> Candidate:
        """Enter a plan as a candidate, under a numbered name if the name is taken, as by an earlier search."""
        free = self.free_name(name)
        candidate = self.enter(Candidate(free, placer, plan, self.session.placing, *self.simulated_of(plan), start=start))
        self._named[_key(candidate.groups)] = free
        return candidate

    def free_name(self, name: str) -> str:
        """Return the name, or a numbered one if a candidate has it already."""
        numbered = (f"{name} ({i})" for i in itertools.count(2))
        return next(free for free in itertools.chain([name], numbered) if free not in self.known)

    def expected(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the objective of feasible placements' plans, ``int32[B, G] -> float64[B]``, by the current costs."""
        return self.objective.of_plans(self.segmenter, placements)

    def resume(self, journal: Journal) -> None:
        """Enter an earlier search's measurements that are feasible now, and keep new measurements in the journal."""
        self.journal = journal
        self.take_over(journal.known)

    def take_over(self, measured: Iterable[Known]) -> None:
        """Enter measured placements that are feasible now; of several records of a placement, the last one counts.

        Replicas are entered with the other replicas (:func:`placeit.optimizer.replicas.enter_replicas`).
        """
        for known in measured:
            if known.replicas or not fits(self.problem, known.devices):
                continue
            plan = self.segmenter.merged(known.segment_of, known.devices)
            name = (self.find(known.devices) or self.enter_plan(known.name, known.placer, plan)).name
            if len(known.samples) >= (FEWEST if known.cost is None else _FEWEST_BESIDE):
                self.recall(name, known, plan)

    def singles(self, *, plain: bool = True) -> None:
        """Enter each single-device placement, and the plain devices."""
        for d in self.problem.single_devices:
            self.add(self.problem.device_names[d], "single", functools.partial(np.full, len(self.problem), d, np.int32))
        for candidate, alone in plain_candidates(self.session, self.problem) if plain else ():
            self.enter(candidate, alone)
        self.with_references = plain

    def compare_precisions(self) -> list[str]:
        """Enter single devices in another precision as well; return a sentence for each that has no other precision."""
        singles = [candidate for candidate in self.candidates if candidate.placer == "single"]
        others, missing = in_other_precision(self.session, singles, self.homes)
        for other, alone in others:
            self.enter(other, alone)
        return missing if singles else ["there is no single device for the whole model to compare"]

    def begin_with(self, placements: Mapping[str, NDArray[np.int32]]) -> None:
        """Enter starting placements: they are measured whatever their simulated values, and searches start from them."""
        for name, groups in placements.items():
            self.add(name, "start", groups.copy)
            if (candidate := self.find(groups)) is not None:
                self.learn_of(candidate.name, given=True)

    def propose(self, placers: Sequence[str]) -> None:
        """Ask every placer, then search among plans from the best answers."""
        if self.indivisible and self.candidates:
            return
        self.ask_all(placers)
        self.placers = [name for name in placers if name not in self.unplanned]
        self.refine()

    def check_asked(self, placers: Sequence[str]) -> None:
        """Raise UsageError if no named placer gave a placement, and one of them cannot place this model with its options."""
        unable = [name for name in placers if name in self.unable]
        if unable and not self.placers:
            why = " ".join(f"{name}: {self.unplanned[name][1]}" for name in unable)
            raise UsageError(f"None of the placers that were asked for gave a placement. {why}")

    def ask_all(self, placers: Sequence[str], share: float = _ASKED_SHARE, *, turn: int = 1) -> None:
        """Ask placers for a placement by the current costs, in a share of the spare time.

        After the first turn, they are asked to start from the measured placements.
        """
        problem, measured = self.segmenter.problem(), None
        ranked = [one for one in self.ranked if self.is_placed(one)]
        if turn > 1 and ranked:
            measured = Measured(np.stack([one.groups for one in ranked]), np.array([value_of(one) for one in ranked]))
        cost = self.simulated(problem)
        for i, placer in enumerate(placers):
            kind, name = placer.partition(":")[0], placer if turn == 1 else f"{placer}, turn {turn}"
            self.say(f"asking {kind}", i / len(placers))
            deadline = clock.now() + max(0.0, self.spare()) * share / (len(placers) - i)
            with self.ledger.on(Item(kind, placer=True)):  # PyTorch may have to be imported
                who = parse_placer(placer)
            start = ranked[0].name if measured is not None and isinstance(who, RefiningPlacer) else None
            asked = functools.partial(ask, who, problem, cost, seed=self.seed, deadline=deadline, measured=measured)
            with self.ledger.on(Item(kind, placer=True)):
                self.add(name, kind, asked, start=start)
            if name in self.unplanned and self.known:  # without any candidate, an error reports it
                why = self.unplanned[name][1]
                _LOG.warning("The placer '%s' gave no placement; the others continue: %s", placer, why)

    def simulated(self, problem: Problem) -> CostFunction:
        """Return the objective of a problem's placements as a cost function, by the rules that executors run by."""
        return self.objective.cost(problem, SimulatedCost(problem))

    @property
    def indivisible(self) -> bool:
        """True if each placement is the whole model on one device, since there is only one group or one device."""
        return 1 in self.problem.compute.shape

    def refine(self) -> None:
        """Search among plans from the best candidates, by the current costs; searches are numbered."""
        self.say("searching among plans", 0.0)
        placed = [one for one in self.standing if self.is_placed(one)]
        ranked = sorted(placed, key=lambda one: float(self.expected(one.groups[None])[0]))
        given = [one for one in placed if one.given and one.measured is None]
        for i, one in enumerate(dict.fromkeys([*ranked[:_STARTS], *given])):
            improve = functools.partial(self.improved, one.groups, self.seed + i)
            self.searches += 1
            with self.ledger.on(Item(SEARCH, placer=True)):
                self.add(f"{SEARCH} {self.searches}", SEARCH, improve, start=one.name)

    def improved(self, groups: NDArray[np.int32], seed: int) -> NDArray[np.int32]:
        """Return the placement that a search among plans finds from a given one."""
        deadline = clock.now() + max(0.0, self.spare()) * _ASKED_SHARE / _STARTS
        if self.objective.is_measured:
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

    def spare(self) -> float:
        """Return the seconds left, less the reserve for deciding between the best single device and the best other candidate.

        At least half of the time left is returned, unless the rest would then be too short for any decision. If it is too short
        already, there is no reserve.
        """
        best = sorted(self.standing, key=known_value)
        singles = [one for one in best if one.placer == "single"][:1]
        others = [one for one in best if one.placer != "single"][:1]
        left = self.left()
        if not singles or not others:
            return left
        kept, least = (self.race_s([*singles, *others], rounds) for rounds in (_KEPT_ROUNDS, FEWEST))
        return left if left < least else left - min(kept, max(left / 2, least))

    def compare_wholes(self) -> None:
        """Race candidates that serve whole requests: replicas, the throughput mode, and the best single devices beside them."""
        wholes = [one for one in self.standing if not self.is_placed(one) and one.measured is None and one.placer != "single"]
        wholes = [one for one in wholes if one.segments == len(one.plans)]
        if not self.session.executable or not wholes:
            return
        singles = sorted(self.fresh_singles, key=known_value)
        racing = [*singles[:1], *wholes, *(one for one in singles[1:] if one.simulated_value is None)]
        room = self.left() * _FIRST_SHARE
        while len(racing) > 2 and self.race_s(racing, 1) > room:
            racing.pop()
        with self.ledger.on(MEASURING):
            what, rounds = "measuring what serves whole requests", self.rounds_within(room, racing)
            self.race(racing, what, rounds=rounds, share=_FIRST_SHARE, min_rounds=1, anchor=racing[0])

    def improve(self) -> None:
        """Measure the most promising candidates, correct the costs by the times of their segments, and search again."""
        if not self.session.executable:
            return
        with self.ledger.on(MEASURING):
            self.time_plain()
            if not self.promising():  # there is time for one run of each single device only
                self.time_singles()
                return
        for turn in range(_TURNS):
            begin = clock.now()
            with self.ledger.on(MEASURING):
                self.measure()
            one_more = self.left() - (clock.now() - begin) > self.final_s()
            if self.excluded is not None or not one_more or turn == _TURNS - 1 or self.indivisible:
                return
            self.learn()
            known = len(self.known)
            self.ask_all(self.placers, _AGAIN_SHARE, turn=turn + 2)
            self.refine()
            if len(self.known) == known or not self.worth_another_turn():
                return

    def worth_another_turn(self) -> bool:
        """Return whether some unmeasured candidate is now expected to beat the best that was measured."""
        fresh = [one for one in self.standing if one.measured is None and one.placer != "single" and self.is_placed(one)]
        best = min(map(value_of, self.standing), default=math.inf)
        return any(is_worth_trying(self.expected(one.groups[None])[0] * self.scale, best) for one in fresh)

    def final_s(self) -> float:
        """Return the seconds that selection and decision will take."""
        singles, splits = self.finalists()
        select, decide = (
            self.race_s(self.with_others(some), rounds)
            for rounds, some in (
                (_SELECTION_ROUNDS, [*singles, *splits]),
                (DECISION_ROUNDS, [*singles[:1], *splits[:1]]),
            )
        )
        return select + decide

    def finalists(self) -> tuple[list[Candidate], list[Candidate]]:
        """Return the single devices, and the placements over several, that may be the answer, best first."""
        ranked = self.ranked
        singles = [candidate for candidate in ranked if candidate.placer == "single"][:_FINAL_SINGLES]
        splits = [candidate for candidate in ranked if candidate.placer != "single"][:_FINAL_SPLITS]
        if singles:  # one split is enough to show that all are far behind
            near = [candidate for candidate in splits if value_of(candidate) < _FAR_BEHIND * value_of(singles[0])]
            splits = near or splits[:1]
            if not splits and self.excluded is not None:
                singles = [candidate for candidate in singles if value_of(candidate) < _APART * value_of(singles[0])]
        return singles, splits

    def promising(self) -> list[Candidate]:
        """Return unmeasured candidates worth measuring, after the best measured one and the best single device."""
        scale = self.scale
        best = min((known_value(one, scale) for one in self.standing), default=math.inf)
        fresh: list[Candidate] = []
        for one in self.standing:
            if one.measured is None and one.placer != "single":
                # given placements are always measured
                known = one.given or one.simulated_value is None
                why = None if known else why_hopeless(known_value(one, scale), best, self.objective.worse)
                one = self.reconsider(one.name) if why is None else self.skip(one.name, why)
                if why is None:
                    fresh.append(one)
        fresh = sorted(fresh, key=lambda one: (not one.given, known_value(one, scale)))
        ranked = self.ranked
        singles = [one for one in ranked if one.placer == "single"][:1]
        singles += [one for one in self.fresh_singles if not self.is_excluded(one)]  # all of them, at first
        beside = sorted(dict.fromkeys([*singles, *ranked[:1]]), key=self.run_s)
        decision = 2 * self.race_s(beside[:1], FEWEST)
        room = max(min(max(self.left() * _TURN_SHARE, self.left() - decision), self.spare()), TRIFLE_S)
        chosen = self.within(room, fresh, beside)
        while beside and self.race_s([*beside, *chosen], 1) > room:  # the slowest first
            beside.pop()
        return [*beside, *chosen]

    def is_excluded(self, candidate: Candidate) -> bool:
        """Return whether the bound that excludes splits excludes a single device as well; if so, record that."""
        out = self.excluded is not None and self.is_placed(candidate) and not candidate.given
        if out:
            self.skip(candidate.name, "by the lower bound, it cannot be faster")
        return out

    def within(self, room: float, fresh: Sequence[Candidate], beside: Sequence[Candidate]) -> list[Candidate]:
        """Return the first candidates that can race beside others within ``room`` seconds, compiling included.

        A candidate that takes long to compile is left out unless it is expected to be better than the compiled ones.
        """
        chosen: list[Candidate] = []
        much = max(TRIFLE_S, self.left() * _MUCH_SHARE)
        scale = self.scale
        ready = min((known_value(one, scale) for one in self.standing if self.compiling_s([one]) <= much), default=math.inf)
        for one in fresh:
            race = [*beside, *chosen, one]
            running = self.race_s(race, _ROUNDS if len(race) > 1 else 1)
            if len(chosen) == _FINALISTS or running > room:
                break
            takes, better = self.compiling_s([one]), is_worth_trying(known_value(one, scale), ready)
            if takes > much and not better and not one.given:
                why = f"it is not simulated {self.objective.better} than the compiled ones, and compiling it takes"
                self.skip(one.name, f"{why} about {takes:.3g} s")
            elif running + self.compiling_s(race) > room:
                self.skip(one.name, too_late(takes, room), late=True)
            else:
                chosen.append(one)
        return chosen

    def rounds_within(self, room: float, candidates: Sequence[Candidate]) -> int:
        """Return how many rounds of a race in a turn fit into ``room`` seconds; at least one."""
        runs = map(self.run_s, self.with_others(candidates))
        return int(np.clip(rounds_within(room, runs, period=self.period), 1, _ROUNDS))

    def race_s(self, candidates: Sequence[Candidate], rounds: int) -> float:
        """Return the seconds that a race of candidates takes, with checks of their outputs."""
        return needed(map(self.run_s, candidates), rounds, period=self.period)

    def run_s(self, candidate: Candidate) -> float:
        """Return the seconds of a run of a candidate, with all its requests: measured, or else simulated."""
        if candidate.measured is not None:
            return self.lasting(candidate.measured.median * self.requests_of(candidate))
        simulated = candidate.simulated_s
        if simulated is None:  # a plain device; its core sets are hardly faster
            parts = (one.simulated_s for one in self.candidates if one.placer == "single")
            simulated = min((seconds for seconds in parts if seconds is not None), default=0.0)
        return self.lasting(self.once.get(candidate.name, simulated) * self.requests_of(candidate))

    @property
    def fresh_singles(self) -> list[Candidate]:
        """Single devices that have not been measured."""
        return [one for one in self.standing if one.placer == "single" and one.measured is None]

    def time_plain(self) -> None:
        """Run plain devices once if there is no time to race all single devices: nothing else tells how long they take."""
        fresh = self.fresh_singles
        if self.race_s(fresh, _ROUNDS) > max(self.left() * _TURN_SHARE, TRIFLE_S):
            for candidate in fresh:
                if candidate.simulated_s is None and (seconds := self.time_once(candidate)) is not None:
                    self.once[candidate.name] = seconds

    def time_once(self, candidate: Candidate) -> float | None:
        """Return the seconds of one run of a candidate, measured unless known already; None if it fails."""
        if (seconds := self.once.get(candidate.name)) is not None:
            return seconds
        try:
            with self.ledger.on(COMPILING):
                opened = self.deploy(candidate)
            with opened as deployed:
                seconds = deployed.time()
                return min(seconds, deployed.time()) if seconds < self.left() else seconds  # the first one is cold
        except FAILURES as error:
            self.fail(candidate.name, error)
            return None

    def time_singles(self) -> None:
        """Run every single device once, unless that has been done; without meters, since there is no time for them."""
        if self.meters is not None and self.meters.complete:
            self.meters.fault = "there was no time to read meters"
            self.go_by_model()
        for candidate in self.fresh_singles:
            if (seconds := self.time_once(candidate)) is None:
                continue
            name, alone = candidate.name, self.homes.get(candidate.name)
            used = np.eye(len(self.problem.device_names))[candidate.groups[0]] if alone is None else alone.busy
            busy = used * seconds
            value = summed_up(name, [self.objective.of_run(seconds, lambda: (busy, 0.0))], [0])  # noqa: B023
            modelled = value if self.objective.has_model else None
            state = Ran(summed_up(name, [seconds], [0]), value, modelled=modelled)
            self.become(name, state, "measured", "run once, since there is no time for a race")

    def measure(self) -> None:
        """Race the promising candidates; if all of them fail, race the next promising ones, until one has been measured."""
        while (promising := self.promising()) and any(one.measured is None for one in promising):
            what = f"measuring {len(promising)} placement{'s' if len(promising) > 1 else ''}"
            rounds = self.rounds_within(max(self.spare() - self.compiling_s(promising), TRIFLE_S), promising)
            known = [one for one in self.ranked if one in promising]
            singles = [one for one in (*known, *promising) if one.placer == "single"]
            anchor = self.anchor_of(singles, next((one for one in known if one.cost is not None), None), promising[0])
            self.race(promising, what, rounds=rounds, share=_TURN_SHARE, min_rounds=rounds, anchor=anchor)
            if self.ranked:
                return

    def learn(self) -> None:
        """Correct the costs by the measured times of segments that ran beside each other."""
        self.segmenter = self.segmenter_of(self.calibrated())

    def confirm(self) -> Decision:
        """Select the best single device and the best placement over several, then decide between the two.

        A race of the finalists selects the two, and another race of the two alone decides. So the luck that helped to select
        them does not enter the decision.
        """
        if not self.session.executable:
            return Decision()
        with self.ledger.on(DECIDING):
            while (decision := self.settled(*self.selected())) is None:
                pass
        return decision

    def selected(self) -> tuple[Candidate | None, Candidate | None]:
        """Return the best single device and the best placement over several, after a race of the finalists if time allows."""
        singles, splits = self.finalists()
        finalists = [*singles, *splits]
        rounds = 0
        if finalists:  # enough time has to be left for the decision
            share = min(_SELECTION_SHARE, self.spare() / max(self.left(), TRIFLE_S))
            rounds = self.affordable(_SELECTION_ROUNDS, finalists, max(share, 0.0))
        if (len(singles) > 1 or len(splits) > 1) and rounds >= FEWEST:
            self.race(finalists, "measuring the finalists", rounds=rounds, share=_SELECTION_SHARE, anchor=finalists[0])
        now = [[self.known[one.name] for one in some] for some in (singles, splits)]
        single, split = (min((one for one in some if one.failed is None), key=value_of, default=None) for some in now)
        return single, split

    def settled(self, single: Candidate | None, split: Candidate | None) -> Decision | None:
        """Decide between the two by a separate race; None if one of them failed in it.

        The number of rounds is fixed before the race, and the result is looked at only once, at its end.
        """
        if single is None or split is None or value_of(single) == 0:  # nothing is less than zero
            splits = (one for one in self.standing if one.placer != "single")
            waiting = any(one.measured is None and (one.not_run is None or one.late) for one in splits)
            winner = single or split
            if winner is not None and (guests := self.guests([winner], _SELECTION_ROUNDS)):
                what = "comparing with what OpenVINO does by itself"
                self.race([winner], what, rounds=_SELECTION_ROUNDS, share=1.0, together=True, guests=guests)
                winner = self.known[winner.name]
                if winner.failed is not None:
                    return None
            return Decision(winner, single and winner, hurried=split is None and waiting)
        pair, found = [single, split], {}
        rounds = self.affordable(decision_rounds(single, split), pair, 1.0)
        guests = self.guests(pair, max(rounds, FEWEST))
        if rounds >= FEWEST:
            what = "deciding between the finalists"
            found = self.race(pair, what, rounds=rounds, share=1.0, together=True, guests=guests)
        single, split = (self.known[one.name] for one in pair)
        if single.failed is not None or split.failed is not None:
            return None
        if len(found) < 2 or min(len(value.samples) for value in found.values()) < FEWEST:
            return Decision(single, single, hurried=True)
        single, split = (self._final(one) for one in (single, split))
        ratio = faster_in_any_opening(found[split.name], found[single.name])
        return Decision(split if ratio.faster else single, single, ratio)

    def _final(self, one: Candidate) -> Candidate:
        runs = one.runs
        return one if runs is None else self.revise(one.name, replace(runs, final=True), "in the deciding race")

    def guests(self, candidates: Sequence[Candidate], rounds: int) -> list[Candidate]:
        """Return the references to race beside candidates, as far as there is time left to compile and run them."""
        if not self.with_references:
            return []
        room, guests = self.left() - self.race_s(self.with_others(candidates), rounds), []
        for one in enter_references(self, self.problem):
            devices = one.reference.devices if one.reference is not None else ()
            room -= sum(map(self.session.runtime.compiler.takes_anew, devices)) + self.race_s([one], rounds)
            if room > 0:
                guests.append(self.reconsider(one.name))
            else:
                self.skip(one.name, "there was no time left to compile and run it")
        return guests

    def affordable(self, rounds: int, candidates: Sequence[Candidate], share: float) -> int:
        """Return how many of ``rounds`` rounds there is time for, in a share of the time left."""
        room = (self.left() - self.compiling_s(candidates)) * share
        return min(rounds, rounds_within(room, map(self.run_s, self.with_others(candidates)), period=self.period))


@runtime_checkable
class Explores(Placer, Protocol):
    """A placer that makes no proposal: it enters and measures candidates itself, before the decision."""

    def explore(self, search: Search) -> None:
        """Enter candidates in a search and measure them; leave :meth:`Search.final_s` seconds of the remaining time.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        ...


def _key(groups: NDArray[np.int32]) -> bytes:
    """Return the key of a placement of groups."""
    return groups.astype(np.int32).tobytes()
