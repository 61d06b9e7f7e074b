"""Races between placements, with their outputs checked, and what is measured in them."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError, ExecutionError, PlaceitError
from placeit.devices.host import free_bytes
from placeit.optimizer.entries import (
    Entry,
    Raced,
    Runner,
    alone_on,
    plain_entries,
)
from placeit.optimizer.journal import Journal, Known
from placeit.planning.segments import Plan
from placeit.profiler.costs import Progress
from placeit.runtime.measure import FAILURES, FEWEST, WARMUP, Measurement, Race, check_length
from placeit.runtime.plan_executor import PlanExecutor
from placeit.session import Session
from placeit.simulator.objectives import Latency, Objective

__all__ = ["Races", "key_of", "race_all", "reason_of"]

_COPIES = 2  # of the weights that there has to be room for before another placement is opened


class Races:
    """Races on a session's devices, and what they have measured.

    Args:
        session: a model on its devices.
        objective: what runs are valued by.
        deadline: when the last of them should be over, by ``time.perf_counter()``.
        seed: decides the order within each round.
        progress: told what is being done.

    Attributes:
        entries: placements, by :func:`key_of`.
        others: single devices in another precision, which race whenever theirs does, and are no candidates.
        races: those that have been run.
        journal: where what is measured of entries is kept; None for nowhere.
        warmup: runs of each entry before a race that do not count.
        duration: seconds of a race, at most.
    """

    def __init__(self, session: Session, objective: Objective, deadline: float, seed: int, progress: Progress | None) -> None:
        self.session, self.objective, self.deadline = session, objective, deadline
        self.seed, self.progress = seed, progress
        self.entries: dict[bytes, Entry] = {}
        self.others: list[Entry] = []
        self.races: list[Raced] = []
        self.journal: Journal | None = None
        self.warmup, self.duration = WARMUP, math.inf

    def say(self, what: str, share: float) -> None:
        """Tell what is being done, and which share of it is done."""
        if self.progress is not None:
            self.progress(what, share)

    def left(self) -> float:
        """Seconds until the search should be over."""
        return self.deadline - time.perf_counter()

    def has_room(self) -> bool:
        """Whether this machine has memory for another copy of the model's weights, and as much again for all else."""
        return free_bytes() > _COPIES * float(self.session.grouping.groups.param_bytes.sum())

    def keep(self, entries: Sequence[Entry]) -> None:
        """Write what has been measured of entries to the journal, if there is one."""
        if self.journal is None:
            return
        for entry in entries:
            ours = entry.alone is None and self.entries.get(key_of(entry.groups)) is entry  # a placement on these devices
            measured, value, error = entry.measured, entry.value, entry.output_error
            if not ours or entry.failed is not None or measured is None or value is None or error is None:
                continue
            if len(measured.samples) >= FEWEST:
                self.journal.add(
                    Known.of_plan(entry.name, entry.placer, entry.groups, entry.plan, measured, value, entry.segment_s, error)
                )

    def with_others(self, entries: Sequence[Entry]) -> list[Entry]:
        """Entries, and those that race whenever they do."""
        return [*entries, *(other for other in self.others if other.failed is None and other.of in entries)]

    def race(
        self,
        entries: Sequence[Entry],
        what: str,
        *,
        rounds: int,
        share: float,
        min_rounds: int = 0,
        together: bool = False,
        drop_losers: bool = True,
    ) -> dict[str, Measurement]:
        """Race entries against each other in fresh instances, with their outputs checked.

        An entry that fails, wherever it does, is out, and the others go on. Only what races is held open. What finds no room
        beside the others races afterwards, unless all have to race together: then it is out.

        Args:
            entries: who takes part.
            what: what is said to be done.
            rounds: most rounds.
            share: of the time left that they may take.
            min_rounds: rounds that are run whatever time they take.
            together: whether the entries are to be compared with each other, by round.
            drop_losers: whether those that are far behind leave early.

        Returns:
            The objective in the counted runs, by name.
        """
        found: dict[str, Measurement] = {}
        waiting = self.with_others(entries)
        drop_losers = drop_losers and len(waiting) == len(entries)  # nobody loses to what is no candidate
        while waiting:
            with contextlib.ExitStack() as stack:
                runners: dict[str, Runner] = {}
                later: list[Entry] = []
                for i, entry in enumerate(waiting):
                    self.say("compiling segments", i / len(waiting))
                    may_wait = bool(runners) and not together
                    if may_wait and not self.has_room():
                        later.append(entry)
                        continue
                    try:
                        executor = stack.enter_context(entry.home(self.session).executor(entry.plan))
                    except FAILURES as error:
                        if may_wait and isinstance(error, DeviceError | MemoryError):  # there may be room without the others
                            later.append(entry)
                        else:
                            self.fail(entry, error)
                        continue
                    if self.checked(entry, executor):
                        runners[entry.name] = Runner(executor, self.objective, entry.alone)
                    else:
                        executor.close()
                racing = [entry for entry in waiting if entry.name in runners]
                waiting = later
                if racing:
                    found |= self.raced(racing, runners, what, rounds, share, min_rounds, drop_losers)
        return {entry.name: found[entry.name] for entry in entries if entry.name in found}

    def raced(
        self,
        entries: Sequence[Entry],
        runners: Mapping[str, Runner],
        what: str,
        rounds: int,
        share: float,
        min_rounds: int,
        drop_losers: bool,
    ) -> dict[str, Measurement]:
        """Race open entries; close who leaves."""
        by_name = {entry.name: entry for entry in entries}

        def leave(name: str, error: ExecutionError | None) -> None:
            entry, executor = by_name[name], runners[name].executor
            if error is None:
                entry.segment_s = executor.segment_seconds()
                self.checked(entry, executor, after=True)
            else:
                self.fail(entry, error)
            executor.close()

        race = Race(runners, seed=self.seed + len(self.races) + 1, warmup=self.warmup, leave=leave)
        found: dict[str, Measurement] = {}
        try:
            if self.duration < math.inf:
                race.warm_up()
            race.run(
                rounds=rounds,
                budget_s=min(self.duration, max(0.0, self.left() * share)),
                min_rounds=min_rounds,
                drop_losers=drop_losers,
                progress=lambda _, done: self.say(what, done),
            )
        finally:
            results = {name: result for name, result in race.results().items() if by_name[name].failed is None}
            for name, measurement in results.items():
                entry = by_name[name]
                found[name] = runners[name].valued(measurement)
                if entry.measured is not None and len(measurement.samples) < min(FEWEST, len(entry.measured.samples)):
                    continue  # a race that was cut short says less than the one before
                entry.measured, entry.value = measurement, found[name]
                entry.race, entry.earlier = len(self.races), False
                if name in race.running:
                    entry.segment_s = runners[name].executor.segment_seconds()
            self.races.append(Raced(what, max((len(result.samples) for result in results.values()), default=0), results))
        for name in race.running:
            self.checked(by_name[name], runners[name].executor, after=True)
        self.keep(entries)
        return {name: value for name, value in found.items() if by_name[name].failed is None}

    def checked(self, entry: Entry, executor: PlanExecutor, *, after: bool = False) -> bool:
        """Whether an entry runs and its outputs are right; the worst of all checks of its outputs counts."""
        try:
            found = self.session.check_outputs(executor, after=after)
        except FAILURES as error:
            self.fail(entry, error)
        else:
            entry.output_error = found if entry.output_error is None else entry.output_error.worse(found)
            if (why := entry.output_error.wrong(entry.home(self.session).tolerance)) is not None:
                self.fail(entry, why)
        return entry.failed is None

    def fail(self, entry: Entry, why: BaseException | str) -> None:
        """Put an entry out: what was measured of it counts no more."""
        entry.failed = why if isinstance(why, str) else reason_of(why)
        entry.measured = entry.value = entry.segment_s = entry.race = None
        entry.final = False


def race_all(
    session: Session,
    plans: Mapping[str, Plan],
    alone: Mapping[str, Session],
    *,
    rounds: int,
    duration: float | None = None,
    warmup: int = WARMUP,
    seed: int,
    progress: Progress | None,
) -> tuple[list[Entry], bool]:
    """Race placements, by name, against each other and against plain devices, with their outputs checked.

    Args:
        session: the model on the devices.
        plans: of placements, by name.
        alone: others, by name, each the whole model on the only device of a session (:meth:`placeit.session.Session.alone`).
        rounds: how many.
        duration: seconds, in place of their number: as many rounds as fit, and one in any case.
        warmup: runs of each placement before the rounds, which do not count.
        seed: decides the order within each round.
        progress: told what is being done.

    Returns:
        What was measured, and whether Ctrl-C ended that early.

    Raises:
        UsageError: no rounds, or no time for them.
        KeyboardInterrupt: Ctrl-C before anything was measured.
        ExecutionError: all of them failed; says why each did.
    """
    check_length(rounds, duration, warmup)
    races = Races(session, Latency(), math.inf, seed, progress)
    races.warmup = warmup
    if duration is not None:
        races.duration, rounds = duration, sys.maxsize
    least = rounds if duration is None else 1
    entries = plain_entries(session, session.segmenter.problem())
    entries += [alone_on(home, name, np.ones(len(session.cluster))) for name, home in alone.items()]
    for name, plan in plans.items():
        groups = plan.placement[plan.segment_of]
        entries.append(Entry(name, "given", groups, plan, plan.schedule.makespan, races.objective.of_schedule(plan.schedule)))
    interrupted = False
    try:
        races.race(entries, "measuring", rounds=rounds, share=1.0, min_rounds=least, together=True, drop_losers=False)
    except KeyboardInterrupt:
        if all(entry.measured is None for entry in entries):
            raise
        interrupted = True
        session.hurry()
    if all(entry.failed is not None for entry in entries):
        raise ExecutionError(
            " ".join(["Everything that was to be compared failed.", *(f"{entry.name}: {entry.failed}" for entry in entries)])
        )
    return entries, interrupted


def key_of(groups: NDArray[np.int32]) -> bytes:
    """What a placement of groups is known by among the entries."""
    return groups.astype(np.int32).tobytes()


def reason_of(error: BaseException) -> str:
    """What went wrong, in one paragraph that ends with a full stop."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text if isinstance(error, PlaceitError) else f"{type(error).__name__}: {text}"
    return text if text.endswith(".") else f"{text}."
