"""The measuring protocol: the order of runs, when to stop, and the statistics of the results.

Every command and every benchmark measures through this module. Candidates take turns by blocks of runs
(:mod:`placeit.measuring.blocks`), never one after the other for good, so that a machine that slows down slows all of them down;
medians come with a confidence interval; one candidate is faster than another only if the interval of their ratio, paired by
round, says so. ``docs/measuring.md`` has the reasons.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.core import clock
from placeit.core.errors import ExecutionError, PlaceitError, UsageError
from placeit.measuring.blocks import BLOCK_S, SINGLE, SLOW_S, Block, alike, block_of, is_enough
from placeit.measuring.pace import Pace

__all__ = [
    "FAILURES",
    "FEWEST",
    "WARMUP",
    "Leave",
    "Measurement",
    "Progress",
    "Race",
    "Ratio",
    "TimedRun",
    "Watching",
    "check_length",
    "faster",
    "faster_in_any_opening",
    "median_interval",
    "summed_up",
    "timed",
]

TimedRun: TypeAlias = Callable[[], float]
"""Runs once and returns the seconds from the call to its answer. :func:`timed` makes one of any callable."""

Progress: TypeAlias = Callable[[int, float], None]
"""Told after each round: rounds done, and the share of the work done, in [0, 1]."""

Leave: TypeAlias = Callable[[str, ExecutionError | None], object]
"""Told of a candidate that leaves a race before its end, with the error if a run of it failed, and None if it lost."""

FAILURES = (PlaceitError, RuntimeError, OSError, MemoryError, ArithmeticError, ValueError)
"""Errors that a candidate, or a library that runs it, may raise; any other error is a bug, and is not caught."""

MEDIAN_TAIL, RATIO_TAIL = 0.025, 0.0175
"""Largest probability that the true value lies beyond one given end of a 95 % interval; less for ratios, as they decide."""
DROP_MARGIN = 1.05
"""A candidate leaves a race when the low end of its interval is above the high end of the leader's times this."""
WARMUP = 2
"""Least runs of each candidate before those that count."""
FEWEST = 6
"""Fewest samples that have an interval: five are all on one side of the true median in 6 % of all cases."""
_EXACT = 64  # most samples whose interval is looked up in the exact distribution; for more, in a normal one
_BLOCKS = 1000  # most values whose pairs are all averaged
_OPENING = 0.007  # standard deviation of a ratio's logarithm over openings of both candidates, by `benchmarks.openings`
_LEAST = 2  # candidates that stay in a race
_LOOK_EVERY = 4  # rounds between two looks for candidates to drop: each look is a chance to be wrong


class Watching(Protocol):
    """A monitor that tells whether other work disturbs the machine, such as :class:`placeit.profiler.load.Watch`."""

    def begin(self) -> None:
        """Begin a period."""
        ...

    def disturbed(self, *, alone: bool = True) -> bool:
        """Return whether the period was disturbed until now; ``alone`` is False if threads of this process share cores."""
        ...


@dataclass(frozen=True, eq=False)
class Measurement:
    """Measurements of one candidate.

    Attributes:
        name: the candidate's.
        samples: ``float64[N]``, seconds of each round, the median of the runs that count in it, in the order they were taken.
        rounds: ``int64[N]``, the round of each sample; candidates of one race share round numbers.
        median: seconds.
        ci_low: low end of the 95 % confidence interval of the median, seconds; 0 for fewer than six samples.
        ci_high: high end of this interval, seconds; ``inf`` for fewer than six samples.
        p95: 95th percentile of the runs that count, seconds.
        runs: how many runs count; 0 if that is not known.
    """

    name: str
    samples: NDArray[np.float64]
    rounds: NDArray[np.int64]
    median: float
    ci_low: float
    ci_high: float
    p95: float
    runs: int = 0


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


@dataclass(frozen=True)
class Ratio:
    """Time of one candidate over the time of another, with its 95 % confidence interval."""

    ratio: float
    ci_low: float
    ci_high: float

    @property
    def faster(self) -> bool:
        """True if the first candidate is faster beyond the interval."""
        return self.ci_high < 1


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


def timed(run: Callable[[], object]) -> TimedRun:
    """Turn a callable into a candidate by timing it from outside."""

    def once() -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    return once


def faster(a: Measurement, b: Measurement) -> Ratio:
    """Compare two candidates of one race: time of ``a`` / time of ``b`` in the same round, with its interval.

    Pairing by round cancels disturbances that hit both candidates: a busy neighbour, a clock that was lowered. The ratio is the
    Hodges-Lehmann estimate of the logarithms, the median of the means of all pairs of them. The interval comes from Wilcoxon's
    signed-rank test. It assumes only that a round favours either candidate equally often and equally strongly beside their true
    ratio. The random order of a race ensures that, however the noise of the machine is distributed and correlated. ``a`` is
    faster beyond the interval if the whole interval is below 1. From fewer than :data:`FEWEST` common rounds nothing follows,
    and the interval is (0, inf).

    Source: M. Hollander, D. A. Wolfe, E. Chicken, "Nonparametric Statistical Methods", 3rd edition, 2014, sections 3.1 to 3.3.

    Raises:
        ExecutionError: they have no round in common.
    """
    common, of_a, of_b = np.intersect1d(a.rounds, b.rounds, return_indices=True)
    if len(common) == 0:
        raise ExecutionError(f"'{a.name}' and '{b.name}' were never measured in the same round, so they cannot be compared.")
    with np.errstate(divide="ignore"):  # objectives other than time can be zero
        logs = np.log(a.samples[of_a]) - np.log(b.samples[of_b])
    if len(logs) > _BLOCKS:
        logs = np.array([block.mean() for block in np.array_split(logs, _BLOCKS)])
    n = len(logs)
    first, second = np.triu_indices(n)
    means = np.sort((logs[first] + logs[second]) / 2)
    ratio = float(np.exp(np.median(means)))
    if n < FEWEST:
        return Ratio(ratio, 0.0, math.inf)
    low, high = _ends(means, range(1, n + 1), RATIO_TAIL)
    return Ratio(ratio, math.exp(low), math.exp(high))


def faster_in_any_opening(a: Measurement, b: Measurement) -> Ratio:
    """Compare two candidates as :func:`faster` does, with an interval that also holds for openings other than those raced.

    The addresses of buffers and weights are the same in all rounds of a race, and change the time of a plan by about half a
    percent. The rounds do not show this effect, so it is added to the interval, in quadrature.

    Raises:
        ExecutionError: they have no round in common.
    """
    ratio = faster(a, b)
    if a is b or not 0 < ratio.ci_low <= ratio.ratio <= ratio.ci_high < math.inf:
        return ratio
    below, above = (math.hypot(math.log(end / ratio.ratio), 1.96 * _OPENING) for end in (ratio.ci_low, ratio.ci_high))
    return Ratio(ratio.ratio, ratio.ratio * math.exp(-below), ratio.ratio * math.exp(above))


def median_interval(samples: ArrayLike) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median of positive samples of any distribution, by the sign test.

    Args:
        samples: ``float[N]``, N >= 1.

    Returns:
        Low and high end; (0, inf) for fewer than :data:`FEWEST` samples, from which nothing follows.
    """
    values = np.sort(np.asarray(samples, np.float64))
    n = len(values)
    return (0.0, math.inf) if n < FEWEST else _ends(values, (1,) * n, MEDIAN_TAIL)


def _ends(values: NDArray[np.float64], weights: Sequence[int], tail: float) -> tuple[float, float]:
    """Return the ends of the interval of a sign test (all weights are 1) or a signed-rank test (the weights are the ranks).

    The values are ascending, and as many as the sum of the weights. The true value lies beyond a given end with a probability
    of ``tail`` at most.
    """
    k = _position(weights, tail)
    return float(values[k - 1]), float(values[-k])


@functools.cache
def _position(weights: Sequence[int], tail: float) -> int:
    """Return the position of the ends among the values, counted from below and from above; 1 is the outermost.

    Toss a fair coin for each weight, and add the weights with heads. The position is the number of sums s = 0, 1, ... for which
    a sum of at most s has a probability of ``tail`` at most.
    """
    n, total = len(weights), sum(weights)
    if n > _EXACT:
        deviation = math.sqrt(sum(weight * weight for weight in weights)) / 2
        return math.floor(total / 2 + 0.5 + NormalDist().inv_cdf(tail) * deviation)
    ways = np.zeros(total + 1)
    ways[0] = 1
    for weight in weights:
        ways[weight:] += ways[:-weight].copy()
    return int(np.searchsorted(np.cumsum(ways), tail * 2.0**n, side="right"))


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


def summed_up(name: str, samples: ArrayLike, rounds: ArrayLike, runs: ArrayLike | None = None) -> Measurement:
    """Summarise the samples of one candidate, ``float[N]``, from rounds ``int[N]``, N >= 1.

    Args:
        name: the candidate's.
        samples: one for each round.
        rounds: their numbers.
        runs: ``float[R]``, seconds of all runs that count; None if they are the samples.
    """
    seconds = np.array(samples, np.float64)
    ascending, each = np.sort(seconds), np.sort(seconds if runs is None else np.asarray(runs, np.float64))
    low, high = median_interval(seconds)
    return Measurement(
        name, seconds, np.array(rounds, np.int64), _quantile(ascending, 0.5), low, high, _quantile(each, 0.95), len(each)
    )


def _quantile(ascending: NDArray[np.float64], share: float) -> float:
    """Return a quantile of ascending values, as NumPy interpolates it; NumPy takes ten times as long for few values."""
    whole, part = divmod(share * (len(ascending) - 1), 1)
    below = float(ascending[int(whole)])
    return below if part == 0 else below + part * (float(ascending[int(whole) + 1]) - below)
