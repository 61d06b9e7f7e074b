"""Fits of linear models whose coefficients cannot be negative."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["nonnegative_fit"]


def nonnegative_fit(rows: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fit ``rows @ c = values`` by least squares, dropping columns until no coefficient is negative.

    Args:
        rows: ``float64[N, K]``.
        values: ``float64[N]``.

    Returns:
        ``float64[K]``; zero for dropped columns. If several columns are alike, this need not be the best non-negative fit.
    """
    scale = np.abs(rows).max(axis=0, initial=0.0)
    kept = scale > 0
    while True:
        found = np.zeros(rows.shape[1])
        if kept.any():
            found[kept] = np.linalg.lstsq(rows[:, kept] / scale[kept], values, rcond=None)[0] / scale[kept]
        if (found >= 0).all():
            return found
        kept &= found > 0
