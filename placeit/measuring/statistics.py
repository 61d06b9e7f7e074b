"""The statistics of measurements: medians, ratios of candidates in the same rounds, and their confidence intervals.

One candidate is faster than another only if the interval of their ratio, paired by round, says so. ``docs/measuring.md`` has
the reasons.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.core.errors import ExecutionError
from placeit.core.units import milliseconds

__all__ = ["FEWEST", "Measurement", "Ratio", "faster", "faster_in_any_opening", "median_error", "median_interval", "summed_up"]

MEDIAN_TAIL, RATIO_TAIL = 0.025, 0.0175
"""Largest probability that the true value lies beyond a given end of a 95 % interval; lower for ratios, which decide."""
FEWEST = 6
"""Minimum number of samples with an interval: five are all on one side of the true median in 6 % of all cases."""
_MAX_EXACT = 64  # samples whose interval is taken from the exact distribution; for more, from a normal distribution
_MAX_PAIRED = 1000  # values whose pairs are all averaged; more values are averaged in this many blocks first
_OPENING_DEVIATION = (
    0.007  # standard deviation of a ratio's logarithm over openings of both candidates, by `benchmarks.openings`
)


@dataclass(frozen=True, eq=False)
class Measurement:
    """The measurements of one candidate.

    Attributes:
        name: name of the candidate.
        samples: ``float64[N]``, seconds of each round (the median of its runs that count), in the order of measurement.
        rounds: ``int64[N]``, the round of each sample; candidates of one race share round numbers.
        median: median of the samples, seconds.
        ci_low: low end of the 95 % confidence interval of the median, seconds; 0 for fewer than six samples.
        ci_high: high end of this interval, seconds; ``inf`` for fewer than six samples.
        p95: 95th percentile of the runs that count, seconds.
        runs: number of runs that count; 0 if unknown.
    """

    name: str
    samples: NDArray[np.float64]
    rounds: NDArray[np.int64]
    median: float
    ci_low: float
    ci_high: float
    p95: float
    runs: int = 0

    def __repr__(self) -> str:
        bounds = "" if np.isinf(self.ci_high) else f" ({milliseconds(self.ci_low)} .. {milliseconds(self.ci_high)})"
        return f"<Measurement of {self.name}: {milliseconds(self.median)}{bounds}, {self.runs or len(self.samples)} runs>"


@dataclass(frozen=True)
class Ratio:
    """Time of one candidate over the time of another, with its 95 % confidence interval."""

    ratio: float
    ci_low: float
    ci_high: float

    @property
    def faster(self) -> bool:
        """True if the first candidate is faster: the whole interval is below 1."""
        return self.ci_high < 1


def faster(a: Measurement, b: Measurement) -> Ratio:
    """Return the ratio of two candidates of one race: time of ``a`` / time of ``b`` in the same round, with its interval.

    Pairing by round cancels disturbances of both candidates: a busy neighbour, a clock that was lowered. The ratio is the
    Hodges-Lehmann estimate of the logarithms, the median of the means of all pairs of them. The interval comes from Wilcoxon's
    signed-rank test. It assumes only that a round favours either candidate equally often and equally strongly, apart from their
    true ratio. The random order of a race ensures that, however the noise of the machine is distributed and correlated. With
    fewer than :data:`FEWEST` common rounds, the interval is (0, inf).

    Source: M. Hollander, D. A. Wolfe, E. Chicken, "Nonparametric Statistical Methods", 3rd edition, 2014, sections 3.1 to 3.3.

    Raises:
        ExecutionError: they have no round in common.
    """
    common, of_a, of_b = np.intersect1d(a.rounds, b.rounds, return_indices=True)
    if len(common) == 0:
        raise ExecutionError(f"'{a.name}' and '{b.name}' were never measured in the same round, so they cannot be compared.")
    with np.errstate(divide="ignore", invalid="ignore"):  # objectives other than time can be zero
        logs = np.log(a.samples[of_a]) - np.log(b.samples[of_b])
    logs[np.isnan(logs)] = 0.0  # two zeros are equal
    if len(logs) > _MAX_PAIRED:
        logs = np.array([block.mean() for block in np.array_split(logs, _MAX_PAIRED)])
    n = len(logs)
    first, second = np.triu_indices(n)
    means = np.sort((logs[first] + logs[second]) / 2)
    ratio = float(np.exp(np.median(means)))
    if n < FEWEST:
        return Ratio(ratio, 0.0, math.inf)
    low, high = _interval(means, range(1, n + 1), RATIO_TAIL)
    return Ratio(ratio, math.exp(low), math.exp(high))


def faster_in_any_opening(a: Measurement, b: Measurement) -> Ratio:
    """Return the ratio of :func:`faster` with a wider interval, which also holds when the candidates are opened anew.

    The addresses of buffers and weights, which are the same in all rounds of a race, change the time of a plan by about half a
    percent. The rounds do not show this effect, so it is added to the interval, in quadrature.

    Raises:
        ExecutionError: they have no round in common.
    """
    ratio = faster(a, b)
    if a is b or not 0 < ratio.ci_low <= ratio.ratio <= ratio.ci_high < math.inf:
        return ratio
    below, above = (math.hypot(math.log(end / ratio.ratio), 1.96 * _OPENING_DEVIATION) for end in (ratio.ci_low, ratio.ci_high))
    return Ratio(ratio.ratio, ratio.ratio * math.exp(-below), ratio.ratio * math.exp(above))


def median_error(errors: Iterable[float | None]) -> float | None:
    """Return the median of the sizes of relative errors, of which some may be unknown (None); None if all are."""
    known = [abs(error) for error in errors if error is not None]
    return float(np.median(known)) if known else None


def median_interval(samples: ArrayLike) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median of positive samples of any distribution, by the sign test.

    Args:
        samples: ``float[N]``, N >= 1.

    Returns:
        Low and high end; (0, inf) for fewer than :data:`FEWEST` samples.
    """
    values = np.sort(np.asarray(samples, np.float64))
    n = len(values)
    return (0.0, math.inf) if n < FEWEST else _interval(values, (1,) * n, MEDIAN_TAIL)


def _interval(values: NDArray[np.float64], weights: Sequence[int], tail: float) -> tuple[float, float]:
    """Return the confidence interval of a sign test (all weights are 1) or a signed-rank test (the weights are the ranks).

    Args:
        values: ``float64[N]``, ascending; N is the sum of the weights.
        weights: the weights.
        tail: largest probability that the true value lies beyond a given end.
    """
    k = _position(weights, tail)
    return float(values[k - 1]), float(values[-k])


@functools.cache
def _position(weights: Sequence[int], tail: float) -> int:
    """Return the position of the ends of the interval among the values, counted from below and from above, from 1.

    Toss a fair coin for each weight, and add the weights with heads. The position is the number of sums s = 0, 1, ... for which
    a sum of at most s has a probability of ``tail`` at most.
    """
    n, total = len(weights), sum(weights)
    if n > _MAX_EXACT:
        deviation = math.sqrt(sum(weight * weight for weight in weights)) / 2
        return math.floor(total / 2 + 0.5 + NormalDist().inv_cdf(tail) * deviation)
    ways = np.zeros(total + 1)
    ways[0] = 1
    for weight in weights:
        ways[weight:] += ways[:-weight].copy()
    return int(np.searchsorted(np.cumsum(ways), tail * 2.0**n, side="right"))


def summed_up(name: str, samples: ArrayLike, rounds: ArrayLike, runs: ArrayLike | None = None) -> Measurement:
    """Summarise the samples of one candidate, ``float[N]``, from rounds ``int[N]``, N >= 1.

    Args:
        name: name of the candidate.
        samples: seconds, one sample for each round.
        rounds: numbers of the rounds.
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
