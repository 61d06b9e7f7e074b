"""The measuring protocol: the order of runs, when to stop, and the statistics of the results.

Every command and every benchmark measures through this module. Candidates are interleaved, never timed one after the
other, so that a machine that slows down slows all of them down; medians come with a confidence interval; one candidate is
faster than another only if the interval of their ratio, paired by round, says so. ``docs/measuring.md`` has the reasons.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.core import clock
from placeit.core.errors import ExecutionError, PlaceitError, UsageError

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
    "check_length",
    "faster",
    "faster_in_any_opening",
    "median_interval",
    "summed_up",
    "timed",
]

TimedRun: TypeAlias = Callable[[], float]
"""Runs once and returns the seconds that the run took, by its own clock. :func:`timed` makes one of any callable."""

Progress: TypeAlias = Callable[[int, float], None]
"""Told after each round: rounds done, and the share of the work done, in [0, 1]."""

Leave: TypeAlias = Callable[[str, ExecutionError | None], object]
"""Told of a candidate that leaves a race before its end: with the error if a run of it failed, None if it lost."""

FAILURES = (PlaceitError, RuntimeError, OSError, MemoryError, ArithmeticError, ValueError)
"""Errors of a candidate, its own or of the libraries that run it; anything else is a bug, and is not kept quiet."""

MEDIAN_TAIL, RATIO_TAIL = 0.025, 0.0175
"""Most often that the truth lies on one given side of a 95 % interval. Ratios, which decisions are made by, have some room."""
DROP_MARGIN = 1.05
"""A candidate leaves a race when the low end of its interval is above the high end of the leader's times this."""
WARMUP = 2
"""Runs of each candidate before those that count."""
FEWEST = 6
"""Fewest samples that have an interval: of five, all are on one side of the true median in 6 % of all cases."""
_EXACT = 64  # most samples whose interval is looked up in the exact distribution; of more, in a normal one
_BLOCKS = 1000  # most values of which all pairs are averaged
_OPENING = 0.007  # deviation of the logarithm of a ratio from one opening of both to the next, by `benchmarks.openings`
_LEAST = 2  # candidates that stay in a race
_LOOK_EVERY = 4  # rounds between two looks at who can be dropped: each look is a chance to be wrong


@dataclass(frozen=True, eq=False)
class Measurement:
    """Measurements of one candidate.

    Attributes:
        name: the candidate's.
        samples: ``float64[N]``, seconds of each run, in the order they were taken.
        rounds: ``int64[N]``, the round of each sample; candidates of one race share round numbers.
        median: seconds.
        ci_low: low end of the 95 % confidence interval of the median, seconds; 0 of fewer than six samples.
        ci_high: its high end; ``inf`` of fewer than six samples.
        p95: 95th percentile, seconds.
    """

    name: str
    samples: NDArray[np.float64]
    rounds: NDArray[np.int64]
    median: float
    ci_low: float
    ci_high: float
    p95: float


@dataclass(frozen=True)
class Ratio:
    """Time of one candidate over that of another, with its 95 % confidence interval."""

    ratio: float
    ci_low: float
    ci_high: float

    @property
    def faster(self) -> bool:
        """True if the first candidate is faster beyond the interval."""
        return self.ci_high < 1


class Race:
    """Measures candidates against each other, round by round.

    The race keeps every completed sample: after an error or Ctrl-C, :meth:`results` has what was measured until then, and
    :meth:`run` can be called again for more rounds.

    Args:
        candidates: what to measure, by name. Compiled, with inputs in place: nothing but the run belongs in it.
        seed: decides the order within each round.
        warmup: runs of each candidate before the first round, not counted.
        leave: told of each candidate that leaves before the end. With it the others go on when a run fails; without it that
            ends the race.
    """

    def __init__(
        self, candidates: Mapping[str, TimedRun], *, seed: int = 0, warmup: int = WARMUP, leave: Leave | None = None
    ) -> None:
        if not candidates:
            raise UsageError("There is nothing to measure: the race has no candidates.")
        self._candidates = dict(candidates)
        self._samples: dict[str, list[tuple[int, float]]] = {name: [] for name in candidates}
        self._running = list(candidates)
        self._random = np.random.default_rng(seed)
        self._warmup = warmup
        self._leave = leave
        self._round = 0

    @property
    def running(self) -> tuple[str, ...]:
        """Candidates that are still in the race."""
        return tuple(self._running)

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

        Each round runs every remaining candidate once, in a new random order. A candidate is dropped when its interval
        lies above that of the leader (the lowest median) by more than :data:`DROP_MARGIN`; that is looked at after
        ``min_rounds`` rounds and every fourth round from there on, and at least two candidates stay in a race of two or
        more, so that the leader always has a rival in the same rounds.

        Args:
            rounds: rounds to add; None for as many as the budget allows.
            budget_s: seconds of wall-clock time, warm-up included; None for no limit. A round that would not end in time,
                going by the one before, is not started, except among the first ``min_rounds``.
            min_rounds: rounds that are run whatever the budget, and before anybody is dropped.
            drop_losers: whether to drop candidates.
            progress: called after each round.

        Raises:
            ExecutionError: a run failed, or gave no sensible time, and nobody is told who leaves; names the candidate, with
                the cause.
            UsageError: neither ``rounds`` nor ``budget_s`` is given.
        """
        if rounds is None and budget_s is None:
            raise UsageError("A race needs an end: give the number of rounds, or a budget in seconds.")
        most = math.inf if rounds is None else rounds
        budget = math.inf if budget_s is None else budget_s
        begin = clock.now()
        self.warm_up()
        done, last = 0, 0.0
        while done < most and self._running:
            elapsed = clock.now() - begin
            if done >= min_rounds and elapsed + last > budget:
                break
            for name in [self._running[number] for number in self._random.permutation(len(self._running))]:
                seconds = self._tried(name)
                if seconds is not None:
                    self._samples[name].append((self._round, seconds))
            self._round += 1
            done += 1
            if drop_losers and len(self._running) > _LEAST and done >= min_rounds and (done - min_rounds) % _LOOK_EVERY == 0:
                self._drop()
            spent = clock.now() - begin
            last = spent - elapsed
            if progress is not None:
                progress(done, min(1.0, max(done / most, spent / budget if budget > 0 else 1.0)))
        return self.results()

    def results(self) -> dict[str, Measurement]:
        """Results so far, including dropped candidates, without candidates that never finished a run."""
        return {
            name: summed_up(name, [seconds for _, seconds in samples], [number for number, _ in samples])
            for name, samples in self._samples.items()
            if samples
        }

    def warm_up(self) -> None:
        """Do the uncounted warm-up runs unless they are done; :meth:`run` does this as part of its budget."""
        while self._warmup > 0:
            for name in self.running:
                self._tried(name)
            self._warmup -= 1

    def withdraw(self, name: str) -> None:
        """Take a candidate out of the race; nobody is told."""
        self._running.remove(name)

    def _tried(self, name: str) -> float | None:
        try:
            return self._once(name)
        except ExecutionError as error:
            if self._leave is None:
                raise
            self._running.remove(name)
            self._leave(name, error)
            return None

    def _once(self, name: str) -> float:
        try:
            seconds = self._candidates[name]()
        except FAILURES as error:
            raise ExecutionError(f"A run of '{name}' failed: {error}") from error
        if not (0 < seconds < math.inf):
            raise ExecutionError(f"A run of '{name}' reports that it took {seconds} s, which is not a possible running time.")
        return seconds

    def _drop(self) -> None:
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

    Pairing by round cancels what both suffered in it: a busy neighbour, a clock that was lowered. The middle is the
    Hodges-Lehmann estimate of the logarithms, the median of the means of all pairs of them, and the interval is that of
    Wilcoxon's signed-rank test. It supposes only that a round favours either candidate equally often and equally strongly
    beside their true ratio, which the random order of a race sees to, however the noise of the machine is distributed and
    correlated. ``a`` is faster beyond the interval if the whole interval is below 1. From fewer than :data:`FEWEST` common
    rounds nothing follows, and the interval is (0, inf).

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

    Where buffers and weights come to lie is the same in all rounds of a race, and changes the time of the same plan by half a
    percent or so. No round shows that, so it is added to the interval, in quadrature.

    Raises:
        ExecutionError: they have no round in common.
    """
    ratio = faster(a, b)
    if a is b or not 0 < ratio.ci_low <= ratio.ratio <= ratio.ci_high < math.inf:
        return ratio
    below, above = (math.hypot(math.log(end / ratio.ratio), 1.96 * _OPENING) for end in (ratio.ci_low, ratio.ci_high))
    return Ratio(ratio.ratio, ratio.ratio * math.exp(-below), ratio.ratio * math.exp(above))


def median_interval(samples: ArrayLike) -> tuple[float, float]:
    """95 % confidence interval of the median of positive samples of any distribution, by the sign test.

    Args:
        samples: ``float[N]``, N >= 1.

    Returns:
        Low and high end; (0, inf) for fewer than :data:`FEWEST` samples, of which nothing follows.
    """
    values = np.sort(np.asarray(samples, np.float64))
    n = len(values)
    return (0.0, math.inf) if n < FEWEST else _ends(values, (1,) * n, MEDIAN_TAIL)


def _ends(values: NDArray[np.float64], weights: Sequence[int], tail: float) -> tuple[float, float]:
    """Ends of the interval of a test by signs (all weights 1) or signed ranks (the ranks), of ascending values.

    There are as many values as all weights together, and each end is passed by the truth with a probability of ``tail``
    at most.
    """
    k = _position(weights, tail)
    return float(values[k - 1]), float(values[-k])


@functools.cache
def _position(weights: Sequence[int], tail: float) -> int:
    """Position of the ends among the values, from below and from above: 1 is the outermost.

    It is the number of sums that are reached, by the weights on which a coin falls heads, with a probability of ``tail`` at
    most: the sum itself or a lower one.
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
        UsageError: no runs, no seconds, or fewer than no runs for warming up.
    """
    if runs < 1:
        raise UsageError(f"{runs} runs measure nothing; there must be at least one.")
    if duration is not None and not 0 < duration < math.inf:
        raise UsageError(f"The duration is {duration} seconds; it must be positive and finite.")
    if warmup < 0:
        raise UsageError(f"{warmup} runs for warming up are not possible; 0 is the least.")


def summed_up(name: str, samples: ArrayLike, rounds: ArrayLike) -> Measurement:
    """Summarise the samples of one candidate, ``float[N]``, from rounds ``int[N]``, N >= 1."""
    seconds = np.array(samples, np.float64)
    ascending = np.sort(seconds)
    low, high = median_interval(seconds)
    return Measurement(
        name, seconds, np.array(rounds, np.int64), _quantile(ascending, 0.5), low, high, _quantile(ascending, 0.95)
    )


def _quantile(ascending: NDArray[np.float64], share: float) -> float:
    """Interpolate as NumPy does, which takes ten times as long for as few values as these."""
    whole, part = divmod(share * (len(ascending) - 1), 1)
    below = float(ascending[int(whole)])
    return below if part == 0 else below + part * (float(ascending[int(whole) + 1]) - below)
