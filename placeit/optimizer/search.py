"""The state of a search: candidates, plans and proposals, and estimates of the time that races take."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError, FileError, UsageError
from placeit.core.memory_reads import MemoryReads
from placeit.measuring.budget import TRIFLE_S, race_s, rounds_within
from placeit.measuring.measure import FAILURES
from placeit.measuring.statistics import FEWEST
from placeit.optimizer.book import reason_of
from placeit.optimizer.candidates import Candidate, known_value, value_of
from placeit.optimizer.certainty import Excluded
from placeit.optimizer.decision import DECISION_ROUNDS
from placeit.optimizer.journal import Journal, Known
from placeit.optimizer.races import Races
from placeit.optimizer.runs import COMPILING_SHARE, RunOptions
from placeit.optimizer.whole_models import enter_compiled, in_other_precision, plain_candidates
from placeit.placers.base import Placer
from placeit.placers.bound import lower_bound
from placeit.placers.feasibility import fits, repair
from placeit.planning.segments import Plan
from placeit.profiler.support import refused_ops, refuses_ops, warn_of_refused

__all__ = ["FEWEST_BESIDE", "ROUNDS", "SELECTION_ROUNDS", "Explores", "Proposal", "Search"]

ROUNDS, SELECTION_ROUNDS = 6, 8  # rounds of a race in a turn, and of the race that selects the last two
FEWEST_BESIDE = 3  # minimum number of runs beside a candidate of known cost that give a candidate a cost
_FINAL_SINGLES, _FINAL_SPLITS = 2, 3  # single devices, and placements over several, that take part in the selection
_APART = 1.2  # times the best single device, from which on another one is not raced again if no split can be faster
_FAR_BEHIND = 1.05  # times the best single device, from which on a placement over several is far behind
_KEPT_ROUNDS = 12  # rounds of the deciding race that time is reserved for


class Proposal(NamedTuple):
    """A proposal of a placer.

    Attributes:
        placer: the placer that proposed it.
        candidate: name of the candidate.
        fresh: whether it was not a candidate before.
        same: whether it is the placement that the placer started from.
        measured: the objective, as the placer itself has measured it; None if it has not.
    """

    placer: str
    candidate: str
    fresh: bool
    same: bool
    measured: float | None = None


class Search(Races):
    """Candidates with their plans and races, which the stages of :func:`placeit.optimizer.optimize.find` add to."""

    def __init__(self, options: RunOptions) -> None:
        super().__init__(options)
        steady = self.objective.steady
        self.segmenter = self.segmenter_of(self.session.costs) if steady else self.session.segmenter
        self.problem = self.segmenter.problem()
        self._refused = set[tuple[int, int]]()  # groups, and devices that did not compile some of their ops
        self.unplanned: dict[str, tuple[str, str]] = {}  # candidate -> its placer, and why there is no plan
        self.unable: set[str] = set()  # unplanned candidates whose placer cannot place this model with its options
        self.excluded: Excluded | None = None  # why no split can be the answer, if that is known
        self.memory: MemoryReads | None = None  # bytes that groups read from a memory that devices share, if known
        self.once: dict[str, float] = {}  # seconds of one run of a single device, by name, where known
        self.searches = 0  # number of searches among plans so far
        self.placers: dict[str, Placer] = {}  # placers that gave a placement, by name
        self.proposals: list[Proposal] = []
        self.notes: dict[str, str] = {}  # by placer
        self.curves: dict[str, list[float]] = {}  # by placer that learned from runs: the values that it measured, in that order
        self.with_references = False  # whether to compare the answer with references
        self._named: dict[bytes, str] = {}  # names of the placements on the session's own devices

    @functools.cached_property
    def bound_s(self) -> float:
        """Lower bound of the seconds of any placement; NaN for throughput, or if the costs of groups are unknown.

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
            if not self._refused.isdisjoint(enumerate(groups.tolist())):
                groups = repair(self.problem, groups)
            known = self.find(groups)
            if known is None:
                candidate = self.enter_plan(name, placer, self.segmenter.plan(groups), start)
            else:
                candidate = known
                self.story.tell("proposed again", known.name, f"by {placer}")
            self.proposals.append(Proposal(placer, candidate.name, known is None, candidate.name == start))
        except FAILURES as error:
            self.unplanned[name] = (placer, reason_of(error))
            self.story.tell("no placement", None, f"{name}: {reason_of(error)}")
            if isinstance(error, UsageError | FileError):
                self.unable.add(name)

    def fail(self, name: str, why: BaseException | str) -> None:
        """Mark a candidate as failed; if a device did not compile some ops, keep them off it, and enter a candidate without."""
        super().fail(name, why)
        one = self.known[name]
        if not isinstance(why, DeviceError) or not refuses_ops(why) or not self.is_placed(one):
            return
        device, index = self.problem.device_names.index(why.device), self.session.model.graph.index
        groups = self.session.grouping.group_of[[index[op] for op in refused_ops(self.session.model, why)]]
        refused = {(group, device) for group in groups.tolist()}
        compute = self.problem.compute.copy()
        compute[groups, device] = np.inf
        if refused <= self._refused or not np.isfinite(compute).any(axis=1).all():  # nothing new, or no other device
            return
        self._refused |= refused
        self.problem = replace(self.problem, compute=compute)
        warn_of_refused(why, self.session.cluster)
        self.add(name, one.placer, one.groups.copy)

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
            if len(known.samples) >= (FEWEST if known.cost is None else FEWEST_BESIDE):
                self.recall(name, known, plan)

    def singles(self, *, plain: bool = True) -> None:
        """Enter each single-device placement, the plain devices, and the devices that compile the model."""
        for d in self.problem.single_devices:
            self.add(self.problem.device_names[d], "single", functools.partial(np.full, len(self.problem), d, np.int32))
        room = self.left() * COMPILING_SHARE
        for candidate, alone in plain_candidates(self.session, self.problem, room) if plain else ():
            self.enter(candidate, alone)
        if plain:
            enter_compiled(self, self.problem, self.left() * COMPILING_SHARE)
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
                self.update_facts(candidate.name, given=True)

    @property
    def indivisible(self) -> bool:
        """True if each placement is the whole model on one device, since there is only one group or one device."""
        return 1 in self.problem.compute.shape

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
        reserve, least = (self.race_s([*singles, *others], rounds) for rounds in (_KEPT_ROUNDS, FEWEST))
        return left if left < least else left - min(reserve, max(left / 2, least))

    def final_s(self) -> float:
        """Return the seconds that selection and decision will take."""
        singles, splits = self.finalists()
        select, decide = (
            self.race_s(self.with_others(candidates), rounds)
            for rounds, candidates in ((SELECTION_ROUNDS, [*singles, *splits]), (DECISION_ROUNDS, [*singles[:1], *splits[:1]]))
        )
        return select + decide

    @property
    def share_before_final(self) -> float:
        """Share of the time left that a race may take, so that selection and decision can follow."""
        left = max(self.left(), TRIFLE_S)
        return max(0.0, left - self.final_s()) / left

    def finalists(self) -> tuple[list[Candidate], list[Candidate]]:
        """Return the single devices, and the placements over several, that may be the answer, best first."""
        ranked = self.ranked
        singles = [candidate for candidate in ranked if candidate.placer == "single"][:_FINAL_SINGLES]
        splits = [candidate for candidate in ranked if candidate.placer != "single"][:_FINAL_SPLITS]
        if singles:  # one split is enough to show that all are far behind
            close = [candidate for candidate in splits if value_of(candidate) < _FAR_BEHIND * value_of(singles[0])]
            splits = close or splits[:1]
            if not splits and self.excluded is not None:
                singles = [candidate for candidate in singles if value_of(candidate) < _APART * value_of(singles[0])]
        return singles, splits

    def rounds_within(self, room: float, candidates: Sequence[Candidate]) -> int:
        """Return how many rounds of a race in a turn fit into ``room`` seconds; at least one."""
        runs = map(self.run_s, self.with_others(candidates))
        return int(np.clip(rounds_within(room, runs, period=self.period), 1, ROUNDS))

    def race_s(self, candidates: Sequence[Candidate], rounds: int) -> float:
        """Return the seconds that a race of candidates takes, with checks of their outputs."""
        return race_s(map(self.run_s, candidates), rounds, period=self.period)

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
        """Single devices that have not been measured, and for which there is time to compile."""
        return [one for one in self.standing if one.placer == "single" and one.measured is None and not one.late]

    def single_seconds(self) -> list[float]:
        """Return the seconds of a run on each single device of the cluster."""
        return [self.run_s(one) for one in self.candidates if one.placer == "single" and not one.plain]

    def learn(self) -> None:
        """Correct the costs by the measured times of segments that ran beside each other."""
        self.segmenter = self.segmenter_of(self.calibrated())


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
    return groups.astype(np.int32).tobytes()
