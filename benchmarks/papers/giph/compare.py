"""Comparison of the costs of two policies on the same problems."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["better_equal_worse", "over_heft", "ratio_interval"]

_RESAMPLES = 4000


def better_equal_worse(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the shares of problems on which ``a`` is less than, equal to and more than ``b``."""
    equal = np.isclose(a, b, rtol=1e-9, atol=0.0)
    return float(((a < b) & ~equal).mean()), float(equal.mean()), float(((a > b) & ~equal).mean())


def over_heft(slr: float, run: float, planned: float) -> dict[str, float]:
    """Return a mean SLR over HEFT's mean SLR, as columns: HEFT run first in, first out, and HEFT as planned."""
    return {"over_heft": slr / run, "over_heft_planned": slr / planned}


def ratio_interval(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of mean ``a`` over mean ``b``: percentiles of a bootstrap over problems, from a fixed seed."""
    drawn = np.random.default_rng(0).integers(len(a), size=(_RESAMPLES, len(a)))
    low, high = np.percentile(a[drawn].mean(axis=1) / b[drawn].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)
