"""Measures of prediction quality: error and correlations. A measure that is undefined is None, never a number."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["mape", "pearson", "spearman"]


def mape(predicted: ArrayLike, measured: ArrayLike) -> float | None:
    """Return the mean absolute percentage error: mean of ``|predicted - measured| / measured``.

    Args:
        predicted: ``float[N]``.
        measured: ``float[N]``.

    Returns:
        A fraction (0.1 is 10 %); None if there are no points, a measured value is zero, or a value is not finite.
    """
    x, y = _pair(predicted, measured)
    if len(y) == 0 or not _finite(x, y) or (y == 0).any():
        return None
    with np.errstate(over="ignore"):  # the error may overflow
        error = float(np.mean(np.abs(x / y - 1)))
    return error if np.isfinite(error) else None


def pearson(x: ArrayLike, y: ArrayLike) -> float | None:
    """Return Pearson's correlation of ``float[N]`` and ``float[N]``.

    Returns:
        A number in [-1, 1]; None if there are fewer than two points, one list is constant, or a value is not finite.
    """
    a, b = _pair(x, y)
    if len(a) < 2 or not _finite(a, b):
        return None
    a, b = _centred(a), _centred(b)
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(np.clip(a @ b / norm, -1, 1)) if norm > 0 else None


def spearman(x: ArrayLike, y: ArrayLike) -> float | None:
    """Return Spearman's rank correlation: Pearson's correlation of the ranks. Equal values share the mean of their ranks.

    Returns:
        A number in [-1, 1]; None where :func:`pearson` of the ranks is not defined, or a value is NaN.
    """
    a, b = _pair(x, y)
    if np.isnan(a).any() or np.isnan(b).any():
        return None
    return pearson(_ranks(a), _ranks(b))


def _pair(x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"expected two lists of the same length, not shapes {a.shape} and {b.shape}")
    return a, b


def _finite(x: NDArray[np.float64], y: NDArray[np.float64]) -> bool:
    return bool(np.isfinite(x).all() and np.isfinite(y).all())


def _centred(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Subtract the mean, exactly zero for a constant, after scaling so that no square vanishes or overflows."""
    if (values == values[0]).all():
        return np.zeros_like(values)
    scaled = values / np.abs(values).max()
    centred = scaled - scaled.mean()
    return np.asarray(centred / np.abs(centred).max(), np.float64)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], np.float64)
