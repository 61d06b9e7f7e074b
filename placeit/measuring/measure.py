"""The measuring protocol: the order of runs, and when to stop.

Every command and every benchmark measures through this module. Candidates take turns by blocks of runs
(:mod:`placeit.measuring.blocks`), never one after the other for good, so that a machine that slows down slows all of them down;
what follows from their times is in :mod:`placeit.measuring.statistics`. ``docs/measuring.md`` has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from placeit.core import clock
from placeit.core.errors import ExecutionError, PlaceitError, UsageError
from placeit.measuring.blocks import BLOCK_S, SINGLE, SLOW_S, Block, alike, block_of, is_enough
from placeit.measuring.pace import Pace
from placeit.measuring.statistics import FEWEST, Measurement, summed_up

__all__ = ["FAILURES", "WARMUP", "Leave", "Progress", "Race", "TimedRun", "Watching", "check_length"]

TimedRun: TypeAlias = Callable[[], float]
"""Runs once and returns the seconds from the call to its answer. :func:`timed` makes one of any callable."""

Progress: TypeAlias = Callable[[int, float], None]
"""Told after each round: rounds done, and the share of the work done, in [0, 1]."""

Leave: TypeAlias = Callable[[str, ExecutionError | None], object]
"""Told of a candidate that leaves a race before its end, with the error if a run of it failed, and None if it lost."""

FAILURES = (PlaceitError, RuntimeError, OSError, MemoryError, ArithmeticError, ValueError)
"""Errors that a candidate, or a library that runs it, may raise; any other error is a bug, and is not caught."""

DROP_MARGIN = 1.05
"""A candidate leaves a race when the low end of its interval is above the high end of the leader's times this."""
WARMUP = 2
"""Least runs of each candidate before those that count."""
_LEAST = 2  # candidates that stay in a race
_LOOK_EVERY = 4  # rounds between two looks for candidates to drop: each look is a chance to be wrong


class Watching(Protocol):
    """A monitor that tells whether other work disturbs the machine, such as :class:`placeit.profiler.machine_load.Watch`."""

    def begin(self) -> None:
        """Begin a period."""
        ...

    def disturbed(self, *, alone: bool = True) -> bool:
        """Return whether the period was disturbed until now; ``alone`` is False if threads of this process share cores."""
        ...


@dataclass(frozen=True)
class _Sample:
    """The sample of a candidate in a round.

    Attributes:
        round: number of the round.
        seconds: median of the runs that count.
        counted: these runs, by their numbers among all runs of the candidate.
    """

    round: int
    seconds: float
    counted: range


class Race:
    """Measures candidates against each other, round by round.

    In a round, each candidate runs for a while by itself, a block. Its first runs find the caches full of what others have
    used, and are left out. The median of the runs that follow is the candidate's sample. How many runs are left out, and how
    many follow, comes from a trial before the first round. A run of 50 ms or more is a block by itself, and so is each run of
    a candidate that nothing else takes turns with.

    The race keeps every completed sample: after an error or Ctrl-C, :meth:`results` has the samples until then, and
    :meth:`run` can be called again for more rounds.

    Args:
        candidates: what to measure, by name. Compiled, with inputs in place: nothing but the run belongs in it.
        seed: decides the order within each round.
        warmup: least runs of each candidate before the first round, not counted; 0 if they are warm.
        leave: told of each candidate that leaves before the end. With it, the others go on when a run fails; without it, a run
            that fails ends the race.
        blocks: whether candidates run for a while in each round; False for one run each, where runs depend on each other.
        rest: called with the name of a candidate when a block or a trial of it is over.
        pace: starts runs at a rate; None to start each when the one before has ended.
        watch: tells whether something else disturbed the machine during some rounds. In a race of at least six rounds, a
            disturbed round is repeated, at most as many as the race has rounds. A repeated round counts only if fewer than six
            other rounds are left.
    """

    def __init__(
        self,
        candidates: Mapping[str, TimedRun],
        *,
        seed: int = 0,
        warmup: int = WARMUP,
        leave: Leave | None = None,
        blocks: bool = True,
        rest: Callable[[str], object] | None = None,
        pace: Pace | None = None,
        watch: Watching | None = None,
    ) -> None:
        if not candidates:
            raise UsageError("There is nothing to measure: the race has no candidates.")
        self._candidates = dict(candidates)
        self._samples: dict[str, list[_Sample]] = {name: [] for name in candidates}
        self._seconds: dict[str, list[float]] = {name: [] for name in candidates}  # of all runs
        self._single = len(candidates) == 1 or not blocks
        self._blocks: dict[str, Block] = {}
        self._running = list(candidates)
        self._random = np.random.default_rng(seed)
        self._warmup = warmup
        self._leave, self._rest, self._pace, self._watch = leave, rest, pace, watch
        self._round = 0
        self._disturbed: set[int] = set()  # numbers of disturbed rounds
        self._repeated: set[int] = set()  # numbers of the disturbed rounds that were repeated
        self._watched, self._watched_since = list[int](), 0.0  # rounds that were not judged yet, and the start of the first

    @property
    def running(self) -> tuple[str, ...]:
        """Candidates that are still in the race."""
        return tuple(self._running)

    @property
    def disturbed(self) -> int:
        """Number of disturbed rounds that count."""
        return len(self._disturbed) - self.left_out

    @property
    def left_out(self) -> int:
        """Number of disturbed rounds that do not count, as they were repeated."""
        return len(self._repeated) if self._are_enough else 0

    def run(
        self,
        *,
        rounds: int | None = None,
        budget_s: float | None = None,
        min_rounds: int = 6,
        drop_losers: bool = True,
        progress: Progress | None = None,
    ) -> dict[str, Measurement]:
        """Run rounds until their number or the budget is reached, and return :meth:`results`.

        Each round runs a block of every remaining candidate, in a new random order. A candidate is dropped when its interval
        lies above the interval of the leader (the candidate with the lowest median) by more than :data:`DROP_MARGIN`. Intervals
        are compared after ``min_rounds`` rounds, and after every fourth round from there on. At least two candidates stay in a
        race of two or more, so that the leader always has a rival in the same rounds.

        Args:
            rounds: rounds to add; None for as many as the budget allows.
            budget_s: seconds of wall-clock time, warm-up included; None for no limit. A round that would not end in time,
                going by the one before, is not started, except among the first ``min_rounds``.
            min_rounds: rounds that are run whatever the budget, and before any candidate is dropped.
            drop_losers: whether to drop candidates.
            progress: called after each round.

        Raises:
            ExecutionError: a run failed or reported an impossible time, and the race has no ``leave``; names the candidate,
                with the cause.
            UsageError: neither ``rounds`` nor ``budget_s`` is given.
        """
        if rounds is None and budget_s is None:
            raise UsageError("A race needs an end: give the number of rounds, or a budget in seconds.")
        most = math.inf if rounds is None else rounds
        budget = math.inf if budget_s is None else budget_s
        begin = clock.now()
        self.warm_up()
        done, last = 0, 0.0
        again = most if most >= FEWEST else 0  # rounds that may be repeated
        least = self._round + min_rounds
        while done < most and self._running:
            elapsed = clock.now() - begin
            if self._round >= least and elapsed + last > budget:
                break
            self._run_round()
            done += 1
            repeated = self._judge(again, last=done == most)
            done, again = done - repeated, again - repeated
            if drop_losers and not repeated and done >= min_rounds and (done - min_rounds) % _LOOK_EVERY == 0:
                self._drop()
            spent = clock.now() - begin
            last = spent - elapsed
            if progress is not None:
                progress(done, min(1.0, max(done / most, spent / budget if budget > 0 else 1.0)))
        self._judge(0, last=True)
        return self.results()

    def results(self) -> dict[str, Measurement]:
        """Return the results so far, of all candidates that have finished a block, also of dropped ones."""
        found = {}
        for name, samples in self._counted().items():
            runs = [self._seconds[name][number] for sample in samples for number in sample.counted]
            found[name] = summed_up(name, [one.seconds for one in samples], [one.round for one in samples], runs)
        return found

    def counted(self, name: str) -> list[range]:
        """Return the runs behind each sample of a candidate in :meth:`results`, by their numbers among all its runs."""
        return [sample.counted for sample in self._counted().get(name, ())]

    def warm_up(self) -> None:
        """Do the uncounted runs before the first round unless they are done; :meth:`run` does this as part of its budget."""
        if self._warmup:
            for name in self.running:
                if name not in self._blocks:
                    self._tried(name, self._try)
            self._blocks = alike(self._blocks)

    def withdraw(self, name: str) -> None:
        """Take a candidate out of the race, without a call of ``leave``."""
        self._running.remove(name)

    def _counted(self) -> dict[str, list[_Sample]]:
        """Return the samples that count, by name of the candidate."""
        return self._others if self._are_enough else {name: samples for name, samples in self._samples.items() if samples}

    @property
    def _others(self) -> dict[str, list[_Sample]]:
        """Samples of rounds that were not repeated, by name."""
        every = {name: samples for name, samples in self._samples.items() if samples}
        return {name: [one for one in samples if one.round not in self._repeated] for name, samples in every.items()}

    @property
    def _are_enough(self) -> bool:
        """True if rounds were repeated, and the others are enough for the interval of each candidate."""
        return bool(self._repeated) and all(len(samples) >= FEWEST for samples in self._others.values())

    def _run_round(self) -> None:
        """Run a block of each candidate."""
        if self._watch is not None and not self._watched:
            self._watched_since = clock.now()
            self._watch.begin()
        for name in [self._running[number] for number in self._random.permutation(len(self._running))]:
            self._tried(name, self._run_block)
        self._watched.append(self._round)
        if self._round == 0:  # candidates that were warm before the race have had their trials in this round
            self._blocks = alike(self._blocks)
        self._round += 1

    def _judge(self, again: float, *, last: bool) -> int:
        """Ask whether the rounds that were not judged yet were disturbed; short ones wait, unless a round is the ``last``.

        Args:
            again: number of them that may be repeated.
            last: whether no round follows.

        Returns:
            Number of rounds to repeat.
        """
        if self._watch is None or not self._watched or not (last or clock.now() - self._watched_since >= BLOCK_S):
            return 0
        watched, self._watched = self._watched, []
        if not self._watch.disturbed():
            return 0
        repeated = watched[: int(min(again, len(watched)))]
        self._disturbed.update(watched)
        self._repeated.update(repeated)
        return len(repeated)

    def _tried(self, name: str, what: Callable[[str], object]) -> None:
        """Call a function with the name of a candidate, which leaves the race if the call fails."""
        try:
            if self._pace is not None and len(self._candidates) > 1:
                self._pace.begin()
            what(name)
            if self._rest is not None:
                self._rest(name)
        except ExecutionError as error:
            if self._leave is None:
                raise
            self._running.remove(name)
            self._leave(name, error)

    def _try(self, name: str, *taken: float) -> None:
        """Find the length of a candidate's blocks by runs that do not count; ``taken`` has the seconds of earlier ones."""
        if self._single:
            for _ in range(self._warmup):
                self._once(name)
            self._blocks[name] = SINGLE
            return
        seconds = list(taken)
        while len(seconds) < self._warmup or not is_enough(seconds):
            seconds.append(self._once(name))
        self._blocks[name] = block_of(seconds, period=0.0 if self._pace is None else self._pace.period)

    def _run_block(self, name: str) -> None:
        """Run a block of a candidate, and keep its sample."""
        seconds = self._seconds[name]
        if name in self._blocks:
            block = self._blocks[name]
            block.steady(lambda: self._once(name))
        else:  # the candidate is warm, so that a slow first run counts
            first = self._once(name)
            if self._single or first >= SLOW_S:
                block = self._blocks[name] = Block(0, 1, first)
            else:
                self._try(name, first)
                block = self._blocks[name]
                block.steady(lambda: self._once(name))
        runs = range(len(seconds) - block.counted, len(seconds))
        self._samples[name].append(_Sample(self._round, float(np.median(seconds[runs.start :])), runs))

    def _once(self, name: str) -> float:
        """Run a candidate once, keep its time, and return the seconds that passed: more, if it ran several requests."""
        if self._pace is not None:
            self._pace.wait()
        begin = clock.now()
        try:
            seconds = self._candidates[name]()
        except FAILURES as error:
            raise ExecutionError(f"A run of '{name}' failed: {error}") from error
        if not (0 < seconds < math.inf):
            raise ExecutionError(f"A run of '{name}' reports that it took {seconds} s, which is not a possible running time.")
        self._seconds[name].append(seconds)
        return max(seconds, clock.now() - begin)

    def _drop(self) -> None:
        if len(self._running) <= _LEAST:
            return
        results = self.results()
        standing = sorted(self._running, key=lambda name: results[name].median)
        limit = results[standing[0]].ci_high * DROP_MARGIN
        losers = [name for name in standing[_LEAST:] if results[name].ci_low > limit]
        self._running = [name for name in self._running if name not in losers]
        for name in losers:
            if self._leave is not None:
                self._leave(name, None)


def check_length(runs: int, duration: float | None, warmup: int) -> None:
    """Check the length of a measurement: a number of runs, or seconds instead, after uncounted warm-up runs.

    Raises:
        UsageError: there are no runs, the duration is not positive and finite, or the number of warm-up runs is negative.
    """
    if runs < 1:
        raise UsageError(f"{runs} runs measure nothing; there must be at least one.")
    if duration is not None and not 0 < duration < math.inf:
        raise UsageError(f"The duration is {duration} seconds; it must be positive and finite.")
    if warmup < 0:
        raise UsageError(f"{warmup} runs for warming up are not possible; 0 is the least.")
