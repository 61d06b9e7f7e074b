"""The measuring protocol: the order of runs, and when to stop.

Every command and every benchmark measures through this module. Candidates take turns by blocks of runs
(:mod:`placeit.measuring.blocks`), so that a machine that slows down slows all of them down. Their times are evaluated in
:mod:`placeit.measuring.statistics`. ``docs/measuring.md`` has the reasons.
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
"""Function that runs a candidate once and returns the seconds from the call to its answer."""

Progress: TypeAlias = Callable[[int, float], None]
"""Function that is called after each round with the number of rounds done and the share of the work done, in [0, 1]."""

Leave: TypeAlias = Callable[[str, ExecutionError | None], object]
"""Function that is called when a candidate leaves a race early, with its name and the error of its run, None if it lost."""

FAILURES = (PlaceitError, RuntimeError, OSError, MemoryError, ArithmeticError, ValueError)
"""Errors that a candidate, or a library that runs it, may raise; any other error is a bug, and is not caught."""

DROP_MARGIN = 1.05
"""A candidate is dropped when the low end of its interval is above this multiple of the high end of the leader's."""
WARMUP = 2
"""Minimum number of runs of each candidate before those that count."""
_MIN_CANDIDATES = 2  # that stay in a race
_DROP_EVERY = 4  # rounds after which candidates are dropped again; each comparison of intervals could be wrong


class Watching(Protocol):
    """A monitor that reports whether other work disturbs the machine, such as :class:`placeit.profiler.machine_load.Watch`."""

    def begin(self) -> None:
        """Begin a period."""
        ...

    def disturbed(self, *, alone: bool = True) -> bool:
        """Return whether other work disturbed the period so far; ``alone`` is False if threads of this process share cores."""
        ...


@dataclass(frozen=True)
class _Sample:
    """The sample of a candidate in a round.

    Attributes:
        round: number of the round.
        seconds: median seconds of the runs that count.
        counted: numbers of these runs among all runs of the candidate.
    """

    round: int
    seconds: float
    counted: range


class Race:
    """Measures candidates against each other, round by round.

    In a round, each candidate runs several times in a row, a block. The first runs of a block find the caches full of other
    candidates' data, and are left out. The median of the runs that follow is the candidate's sample. How many runs are left
    out, and how many follow, is found by a trial before the first round. A run of 50 ms or more is a block by itself, and so is
    each run of the only candidate of a race.

    The race keeps every completed sample: after an error or Ctrl-C, :meth:`results` has the samples until then, and
    :meth:`run` can be called again for more rounds.

    Args:
        candidates: functions to measure, by name. A function contains nothing but the run of a program that is compiled and has
            its inputs in place.
        seed: seed of the order within each round.
        warmup: minimum number of uncounted runs of each candidate before the first round; 0 if candidates are warm.
        leave: called for each candidate that leaves before the end. With it, the other candidates continue when a run fails;
            without it, a run that fails ends the race.
        blocks: whether candidates run in blocks; False for one run in each round, where runs depend on each other.
        rest: called with the name of a candidate after each of its blocks and trials.
        pace: starts runs at a rate; None to start each run when the previous one has ended.
        watch: reports whether other work disturbed the machine during some rounds. In a race of at least six rounds, disturbed
            rounds are repeated, at most as many as the race has rounds. A disturbed round that was repeated counts only if
            fewer than six other rounds are left.
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
        self._seconds: dict[str, list[float]] = {name: [] for name in candidates}  # seconds of all runs
        self._single = len(candidates) == 1 or not blocks
        self._blocks: dict[str, Block] = {}
        self._running = list(candidates)
        self._random = np.random.default_rng(seed)
        self._warmup = warmup
        self._leave, self._rest, self._pace, self._watch = leave, rest, pace, watch
        self._round = 0
        self._disturbed: set[int] = set()  # numbers of disturbed rounds
        self._repeated: set[int] = set()  # numbers of the disturbed rounds that were repeated
        self._unchecked, self._unchecked_since = list[int](), 0.0  # rounds not yet checked for disturbance; start of the first

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
        """Number of disturbed rounds that do not count, because they were repeated."""
        return len(self._repeated) if self._undisturbed_suffice else 0

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
        are compared after ``min_rounds`` rounds, and then after every fourth round. At least two candidates stay in a race of
        two or more, so that the leader always has a rival in the same rounds.

        Args:
            rounds: number of rounds to add; None for as many as the budget allows.
            budget_s: seconds of wall-clock time, warm-up included; None for no limit. After the first ``min_rounds``, a round
                is not started if it would exceed the budget when it takes as long as the previous one.
            min_rounds: number of rounds that are run whatever the budget, and before any candidate is dropped.
            drop_losers: whether to drop candidates.
            progress: called after each round.

        Raises:
            ExecutionError: a run failed or reported an impossible time, and the race has no ``leave``; the message names the
                candidate and the cause.
            UsageError: neither ``rounds`` nor ``budget_s`` is given.
        """
        if rounds is None and budget_s is None:
            raise UsageError("A race needs an end: give the number of rounds, or a budget in seconds.")
        max_rounds = math.inf if rounds is None else rounds
        budget = math.inf if budget_s is None else budget_s
        begin = clock.now()
        self.warm_up()
        done, round_s = 0, 0.0
        max_repeats = max_rounds if max_rounds >= FEWEST else 0
        first_optional = self._round + min_rounds
        while done < max_rounds and self._running:
            elapsed = clock.now() - begin
            if self._round >= first_optional and elapsed + round_s > budget:
                break
            self._run_round()
            done += 1
            repeats = self._check_disturbed(max_repeats, last=done == max_rounds)
            done, max_repeats = done - repeats, max_repeats - repeats
            if drop_losers and not repeats and done >= min_rounds and (done - min_rounds) % _DROP_EVERY == 0:
                self._drop()
            total = clock.now() - begin
            round_s = total - elapsed
            if progress is not None:
                progress(done, min(1.0, max(done / max_rounds, total / budget if budget > 0 else 1.0)))
        self._check_disturbed(0, last=True)
        return self.results()

    def results(self) -> dict[str, Measurement]:
        """Return the results so far of all candidates that have finished a block, including dropped ones."""
        found = {}
        for name, samples in self._counted_samples().items():
            runs = [self._seconds[name][number] for sample in samples for number in sample.counted]
            found[name] = summed_up(name, [sample.seconds for sample in samples], [sample.round for sample in samples], runs)
        return found

    def counted(self, name: str) -> list[range]:
        """Return, for each sample of a candidate in :meth:`results`, the numbers of its runs among all its runs."""
        return [sample.counted for sample in self._counted_samples().get(name, ())]

    def warm_up(self) -> None:
        """Run the trials of all candidates, unless they were run before; :meth:`run` does this as part of its budget."""
        if self._warmup:
            for name in self.running:
                if name not in self._blocks:
                    self._attempt(name, self._run_trial)
            self._blocks = alike(self._blocks)

    def withdraw(self, name: str) -> None:
        """Remove a candidate from the race, without a call of ``leave``."""
        self._running.remove(name)

    def _counted_samples(self) -> dict[str, list[_Sample]]:
        """Return the samples that count, by name of the candidate."""
        measured = {name: samples for name, samples in self._samples.items() if samples}
        if self._undisturbed_suffice:  # a candidate that left early may have disturbed samples only
            return {name: self._undisturbed_samples(name) or samples for name, samples in measured.items()}
        return measured

    def _undisturbed_samples(self, name: str) -> list[_Sample]:
        """Return a candidate's samples of rounds that were not repeated."""
        return [sample for sample in self._samples[name] if sample.round not in self._repeated]

    @property
    def _undisturbed_suffice(self) -> bool:
        """True if rounds were repeated, and the others suffice for the interval of each candidate still in the race."""
        return bool(self._repeated) and all(len(self._undisturbed_samples(name)) >= FEWEST for name in self._running)

    def _run_round(self) -> None:
        """Run a block of each candidate."""
        if self._watch is not None and not self._unchecked:
            self._unchecked_since = clock.now()
            self._watch.begin()
        for name in [self._running[number] for number in self._random.permutation(len(self._running))]:
            self._attempt(name, self._run_block)
        self._unchecked.append(self._round)
        if self._round == 0:  # candidates that were warm before the race have had their trials in this round
            self._blocks = alike(self._blocks)
        self._round += 1

    def _check_disturbed(self, max_repeats: float, *, last: bool) -> int:
        """Check whether unchecked rounds were disturbed, once they have taken as long as a block or a round is the last.

        Args:
            max_repeats: largest number of rounds that may be repeated.
            last: whether no round follows.

        Returns:
            Number of rounds to repeat.
        """
        if self._watch is None or not self._unchecked or not (last or clock.now() - self._unchecked_since >= BLOCK_S):
            return 0
        rounds, self._unchecked = self._unchecked, []
        if not self._watch.disturbed():
            return 0
        repeated = rounds[: int(min(max_repeats, len(rounds)))]
        self._disturbed.update(rounds)
        self._repeated.update(repeated)
        return len(repeated)

    def _attempt(self, name: str, run: Callable[[str], object]) -> None:
        """Call a function with the name of a candidate; the candidate leaves the race if the call fails."""
        try:
            if self._pace is not None and len(self._candidates) > 1:
                self._pace.begin()
            run(name)
            if self._rest is not None:
                self._rest(name)
        except ExecutionError as error:
            if self._leave is None:
                raise
            self._running.remove(name)
            self._leave(name, error)

    def _run_trial(self, name: str, *earlier: float) -> None:
        """Find the length of a candidate's blocks by uncounted runs; ``earlier`` has the seconds of runs that were done."""
        if self._single:
            for _ in range(self._warmup):
                self._run_once(name)
            self._blocks[name] = SINGLE
            return
        seconds = list(earlier)
        while len(seconds) < self._warmup or not is_enough(seconds):
            seconds.append(self._run_once(name))
        self._blocks[name] = block_of(seconds, period=0.0 if self._pace is None else self._pace.period)

    def _run_block(self, name: str) -> None:
        """Run a block of a candidate, and record its sample."""
        seconds = self._seconds[name]
        if name in self._blocks:
            block = self._blocks[name]
            block.steady(lambda: self._run_once(name))
        else:  # the candidate is warm, so that a slow first run counts
            first = self._run_once(name)
            if self._single or first >= SLOW_S:
                block = self._blocks[name] = Block(0, 1, first)
            else:
                self._run_trial(name, first)
                block = self._blocks[name]
                block.steady(lambda: self._run_once(name))
        runs = range(len(seconds) - block.counted, len(seconds))
        self._samples[name].append(_Sample(self._round, float(np.median(seconds[runs.start :])), runs))

    def _run_once(self, name: str) -> float:
        """Run a candidate once and record its time; return the elapsed seconds, which are more if it ran several requests."""
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
        if len(self._running) <= _MIN_CANDIDATES:
            return
        results = self.results()
        standing = sorted(self._running, key=lambda name: results[name].median)
        limit = results[standing[0]].ci_high * DROP_MARGIN
        losers = [name for name in standing[_MIN_CANDIDATES:] if results[name].ci_low > limit]
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
