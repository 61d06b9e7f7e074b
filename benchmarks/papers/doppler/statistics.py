"""Statistics behind claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.measuring.statistics import Ratio, faster, summed_up

__all__ = ["EQUAL", "best_at", "correlations", "episodes_to", "least_of", "met_by", "not_worse", "ratio"]

EQUAL = 1e-3
"""Relative difference up to which two costs count as equal."""


def least_of(costs: ArrayLike) -> float:
    """Return the least of some costs; NaN if none is known."""
    known = np.asarray(costs, np.float64)
    known = known[~np.isnan(known)]
    return float(known.min()) if known.size else float("nan")


def met_by(found: Mapping[str, NDArray[Any]], known: float | None) -> dict[str, float | int | None]:
    """Return the results of a training on a published graph as the columns of a row.

    Args:
        found: the outcome of :class:`benchmarks.papers.doppler.jobs.Training`.
        known: the best known cost of the graph; None if it is not known.
    """
    best = float(found["best"])
    return {
        "best_met": best,
        "best_of_samples": least_of(found["samples"]),
        "greedy": float(found["greedy"]),
        "best_known": known,
        "over_best_known": None if known is None else best / known,
        "episodes": int(found["episodes"]),
        "best_at": best_at(found["curve"]),
        "seconds": float(found["seconds"]),
    }


def not_worse(costs: Mapping[str, float], others: Sequence[Mapping[str, float]]) -> int:
    """Count the graphs on which a cost is at most :data:`EQUAL` above the least of the others.

    Args:
        costs: cost by graph.
        others: costs of the same graphs by other methods.
    """
    return sum(cost <= (1 + EQUAL) * min(other[graph] for other in others) for graph, cost in costs.items())


def episodes_to(level: float, curve: NDArray[np.float64]) -> float:
    """Return the number of episodes until a level was reached; infinite if it never was.

    Args:
        level: a cost.
        curve: ``float64[K, 2]``, episodes and the least cost so far, at each improvement.
    """
    reached = curve[curve[:, 1] <= level]
    return float(reached[0, 0]) if len(reached) else float("inf")


def best_at(curve: NDArray[np.float64]) -> int | None:
    """Return the number of episodes until the best placement was met; None if none was."""
    return int(curve[-1, 0]) if len(curve) else None


def correlations(a: ArrayLike, b: ArrayLike) -> tuple[float, float]:
    """Return Pearson's and Spearman's coefficients of pairs; equal values have the mean of their ranks.

    Both are NaN for fewer than three pairs, or if all values of one side are equal.
    """
    if len(np.asarray(a)) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan"), float("nan")
    pearson = np.corrcoef(a, b)[0, 1]
    spearman = np.corrcoef(_ranks(a), _ranks(b))[0, 1]
    return float(pearson), float(spearman)


def ratio(a: NDArray[np.float64], b: NDArray[np.float64]) -> Ratio:
    """Return the ratio of the seconds ``a`` to the seconds ``b``, by the rounds of a race, with its interval."""
    rounds = np.arange(len(a))
    return faster(summed_up("a", a, rounds), summed_up("b", b, rounds))


def _ranks(values: ArrayLike) -> NDArray[np.float64]:
    _, which, count = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    ranks: NDArray[np.float64] = (last - (count - 1) / 2)[which]
    return ranks
