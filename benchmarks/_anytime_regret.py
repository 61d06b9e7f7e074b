"""Regret to the best known value, its mean with an interval, the placers on the front, and whether learning pays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Interval", "Pays", "best_known", "front", "learning_pays", "mean_interval", "regrets"]

_RESAMPLES = 10_000
_EQUAL = 1e-9  # regrets that differ by less are equal: rounding


@dataclass(frozen=True)
class Interval:
    """A mean over problems with its 95 % bootstrap interval. A single problem has no interval.

    Attributes:
        mean: of the values.
        low: lower end; None if there is no interval.
        high: upper end.
        count: number of problems.
    """

    mean: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True)
class Pays:
    """The best placer that learns compared with a search that does not, on the problems that both answered.

    Attributes:
        learned: the placer.
        difference: mean regret of the placer minus the mean regret of the search.
        pays: whether it is lower beyond the interval; None if there is no interval.
    """

    learned: str
    difference: Interval
    pays: bool | None


def best_known(values: Mapping[str, Iterable[float | None]]) -> dict[str, float]:
    """Return the least value of each problem. Problems without a value are left out."""
    found = {problem: [value for value in some if value is not None] for problem, some in values.items()}
    return {problem: min(some) for problem, some in found.items() if some}


def regrets(values: Mapping[str, float | None], best: Mapping[str, float]) -> dict[str, float]:
    """Return the relative excess of each value over the best known value of its problem. Missing values are left out."""
    return {problem: value / best[problem] - 1 for problem, value in values.items() if value is not None}


def mean_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """Return the mean with its 95 % percentile bootstrap interval (Efron 1979), drawn from a seed; of at least one value."""
    array = np.array(values, float)
    if len(array) < 2:
        return Interval(float(array.mean()), None, None, len(array))
    drawn: NDArray[np.float64] = np.random.default_rng(seed).choice(array, (_RESAMPLES, len(array))).mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    return Interval(float(array.mean()), low, high, len(array))


def front(placers: Mapping[str, Mapping[str, float]], seed: int = 0) -> list[str]:
    """Return the placer of least mean regret, and the placers that are not worse beyond the interval of paired differences.

    Only placers that answered every problem that any placer answered are compared. A single problem has no interval: only
    placers with the same value as the best one are then returned beside it.

    Args:
        placers: regrets by problem, by placer.
        seed: of the bootstrap.
    """
    problems = sorted({problem for found in placers.values() for problem in found})
    able = {name: np.array([found[p] for p in problems]) for name, found in placers.items() if len(found) == len(problems)}
    if not problems or not able:
        return []
    order = sorted(able, key=lambda name: float(able[name].mean()))
    best = able[order[0]]

    def beside(name: str) -> bool:
        difference = mean_interval((able[name] - best).tolist(), seed)
        return (difference.mean if difference.low is None else difference.low) <= _EQUAL

    return [name for name in order if beside(name)]


def learning_pays(
    placers: Mapping[str, Mapping[str, float]], learned: Iterable[str], search: str, seed: int = 0
) -> Pays | None:
    """Compare the best placer that learns with a search; None if they have no problem in common.

    The best is the placer of least mean difference to the search, among the placers that answered at least as many of its
    problems as any other placer that learns. Selecting the best of several favours it a little.
    """
    beside = placers.get(search, {})
    differences = {
        name: [placers[name][p] - beside[p] for p in sorted(beside.keys() & placers[name].keys())]
        for name in learned
        if name in placers and name != search
    }
    most = max(map(len, differences.values()), default=0)
    if not most:
        return None
    best = min((name for name, some in differences.items() if len(some) == most), key=lambda n: float(np.mean(differences[n])))
    found = mean_interval(differences[best], seed)
    return Pays(best, found, None if found.high is None else found.high < 0)
