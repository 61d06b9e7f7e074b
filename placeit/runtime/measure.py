"""The measuring protocol: what runs when, when to stop, and what the numbers allow one to say.

Every command and every benchmark measures through this module. Candidates are interleaved, never timed one after the
other, so that a machine that slows down slows all of them down; medians come with a bootstrap confidence interval; one
candidate is faster than another only if the interval of their ratio, paired by round, says so. ``docs/measuring.md``
has the reasons.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.errors import ExecutionError, PlaceitError, UsageError

__all__ = ["Candidate", "Measurement", "Progress", "Race", "Ratio", "faster", "median_interval", "race", "timed"]

Candidate: TypeAlias = Callable[[], float]
"""Runs once and returns the seconds that the run took, by its own clock. :func:`timed` makes one of any callable."""

Progress: TypeAlias = Callable[[int, float], None]
"""Told after each round: rounds done, and the share of the work done, in [0, 1]."""

CONFIDENCE = 0.95
RESAMPLES = 10_000
DROP_MARGIN = 1.05
"""A candidate leaves a race when the low end of its interval is above the high end of the leader's times this."""
FEWEST = 6
"""Fewest samples that have an interval: of five, all are on one side of the true median in 6 % of all cases."""
_LOOK_EVERY = 4  # rounds between two looks at who can be dropped: each look is a chance to be wrong


@dataclass(frozen=True, eq=False)
class Measurement:
    """What was measured of one candidate.

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
        """Whether the first candidate is faster beyond the interval."""
        return self.ci_high < 1


class Race:
    """Measures candidates against each other, a round at a time.

    The race keeps every completed sample: after an error or Ctrl-C, :meth:`results` has what was measured until then, and
    :meth:`run` can be called again for more rounds.

    Args:
        candidates: what to measure, by name. Compiled, with inputs in place: nothing but the run belongs in it.
        seed: decides the order within each round.
        warmup: runs of each candidate before the first round, not counted.
    """

    def __init__(self, candidates: Mapping[str, Candidate], *, seed: int = 0, warmup: int = 2) -> None:
        if not candidates:
            raise UsageError("There is nothing to measure: the race has no candidates.")
        self._candidates = dict(candidates)
        self._samples: dict[str, list[tuple[int, float]]] = {name: [] for name in candidates}
        self._running = list(candidates)
        self._random = np.random.default_rng(seed)
        self._warmup = warmup
        self._round = 0

    @property
    def running(self) -> tuple[str, ...]:
        """Candidates that have not been dropped."""
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
            ExecutionError: a run failed, or gave no sensible time; names the candidate, with the cause.
            UsageError: neither ``rounds`` nor ``budget_s`` is given.
        """
        if rounds is None and budget_s is None:
            raise UsageError("A race needs an end: give the number of rounds, or a budget in seconds.")
        most = math.inf if rounds is None else rounds
        budget = math.inf if budget_s is None else budget_s
        begin = time.perf_counter()
        self._warm_up()
        done, last = 0, 0.0
        while done < most:
            elapsed = time.perf_counter() - begin
            if done >= min_rounds and elapsed + last > budget:
                break
            for number in self._random.permutation(len(self._running)):
                name = self._running[number]
                self._samples[name].append((self._round, self._once(name)))
            self._round += 1
            done += 1
            if drop_losers and done >= min_rounds and (done - min_rounds) % _LOOK_EVERY == 0:
                self._drop()
            spent = time.perf_counter() - begin
            last = spent - elapsed
            if progress is not None:
                progress(done, min(1.0, max(done / most, spent / budget if budget > 0 else 1.0)))
        return self.results()

    def results(self) -> dict[str, Measurement]:
        """What has been measured so far, dropped candidates included; a candidate that never finished a run is left out."""
        return {name: _measurement(name, samples) for name, samples in self._samples.items() if samples}

    def _warm_up(self) -> None:
        while self._warmup > 0:
            for name in self._running:
                self._once(name)
            self._warmup -= 1

    def _once(self, name: str) -> float:
        try:
            seconds = self._candidates[name]()
        except (PlaceitError, RuntimeError, OSError, MemoryError, ArithmeticError, ValueError) as error:
            raise ExecutionError(f"A run of '{name}' failed: {error}") from error
        if not (0 < seconds < math.inf):
            raise ExecutionError(f"A run of '{name}' reports that it took {seconds} s, which is no time a run can take.")
        return seconds

    def _drop(self) -> None:
        results = self.results()
        standing = sorted(self._running, key=lambda name: results[name].median)
        limit = results[standing[0]].ci_high * DROP_MARGIN
        losers = {name for name in standing[2:] if results[name].ci_low > limit}
        self._running = [name for name in self._running if name not in losers]


def race(
    candidates: Mapping[str, Candidate],
    *,
    rounds: int | None = None,
    budget_s: float | None = None,
    min_rounds: int = 6,
    seed: int = 0,
    warmup: int = 2,
    drop_losers: bool = True,
    progress: Progress | None = None,
) -> dict[str, Measurement]:
    """Measure candidates against each other; see :class:`Race`, which also keeps the samples of an interrupted race."""
    return Race(candidates, seed=seed, warmup=warmup).run(
        rounds=rounds, budget_s=budget_s, min_rounds=min_rounds, drop_losers=drop_losers, progress=progress
    )


def timed(run: Callable[[], object]) -> Candidate:
    """Turn a callable into a candidate by timing it from outside."""

    def once() -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    return once


def faster(a: Measurement, b: Measurement, *, seed: int = 0) -> Ratio:
    """Compare two candidates of one race: median over rounds of time of ``a`` / time of ``b``, and its interval.

    Pairing by round cancels what both suffered in it: a busy neighbour, a clock that was lowered. ``a`` is faster beyond
    the interval if the whole interval is below 1. From fewer than :data:`FEWEST` common rounds nothing follows, and the
    interval is (0, inf).

    Raises:
        ExecutionError: they have no round in common.
    """
    common, of_a, of_b = np.intersect1d(a.rounds, b.rounds, return_indices=True)
    if len(common) == 0:
        raise ExecutionError(f"'{a.name}' and '{b.name}' were never measured in the same round, so they cannot be compared.")
    ratios = a.samples[of_a] / b.samples[of_b]
    low, high = median_interval(ratios, seed=seed)
    return Ratio(float(np.median(ratios)), low, high)


def median_interval(samples: ArrayLike, *, seed: int = 0) -> tuple[float, float]:
    """95 % confidence interval of the median of positive samples, by the percentile bootstrap.

    Source: B. Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7(1), 1979, section 3. The
    resamples are not drawn in full: the median of a resample of ``n`` values is the sorted sample at position
    ``floor(n * U)``, where ``U`` is the middle order statistic of ``n`` uniform numbers, which has a Beta distribution. That
    gives the same distribution in time that does not depend on ``n``.

    Args:
        samples: ``float[N]``, N >= 1.
        seed: of the random numbers.

    Returns:
        Low and high end; (0, inf) for fewer than :data:`FEWEST` samples, of which nothing follows.
    """
    values = np.sort(np.asarray(samples, np.float64))
    n = len(values)
    if n < FEWEST:
        return 0.0, math.inf
    random = np.random.default_rng(seed)
    k = (n + 1) // 2
    middle = random.beta(k, n + 1 - k, RESAMPLES)
    medians = values[_position(middle, n)]
    if n % 2 == 0:
        # the next order statistic is the smallest of the n - k uniform numbers above this one
        above = 1 - (1 - middle) * random.random(RESAMPLES) ** (1 / (n - k))
        medians = (medians + values[_position(above, n)]) / 2
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return float(low), float(high)


def _position(uniform: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    return np.minimum((uniform * n).astype(np.int64), n - 1)


def _measurement(name: str, samples: list[tuple[int, float]]) -> Measurement:
    rounds = np.array([number for number, _ in samples], np.int64)
    seconds = np.array([value for _, value in samples])
    low, high = median_interval(seconds)
    return Measurement(name, seconds, rounds, float(np.median(seconds)), low, high, float(np.percentile(seconds, 95)))
