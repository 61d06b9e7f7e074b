"""The share of late requests at a device, if each may wait for a limited time, by a formula in place of a simulation."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["late_share", "most_busy"]

_GRID = np.geomspace(1e-3, 1e6, 200)  # waits, in mean remaining times, for which `most_busy` is computed


def late_share(busy: ArrayLike, wait: ArrayLike) -> NDArray[np.float64]:
    """Return the share of requests that are refused because they would wait longer than allowed.

    Requests arrive at random times (a Poisson process), are served in the order of arrival, and are refused at once if they
    would wait longer than ``wait``. With ``x = (1 - busy) * wait``, the share is ``(1 - busy) * busy * exp(-x) / (1 - busy**2 *
    exp(-x))``. This is exact for exponential times of service (D. Y. Barrer, "Queuing with impatient customers and ordered
    service", Operations Research 5(5), 1957). For other times, it is an approximation by their mean remaining time.

    Args:
        busy: requests per second times seconds per request, any shape; may be above 1.
        wait: the longest wait, divided by the mean remaining time of the request in service, ``E[S**2] / (2 E[S])``; negative
            if even a request that does not wait is late.
    """
    busy, wait = np.broadcast_arrays(np.asarray(busy, np.float64), np.asarray(wait, np.float64))
    free = 1.0 - busy
    free = np.where(np.abs(free) < 1e-6, 1e-6, free)
    # multiplied by exp(x) where x is negative, so that nothing overflows
    x = free * np.clip(wait, 0.0, 1e9)
    decay, grown = np.exp(-np.maximum(x, 0.0)), np.exp(np.minimum(x, 0.0))
    late = free * (1.0 - free) * decay / (grown - (1.0 - free) ** 2 * decay)
    return np.where(wait < 0.0, 1.0, np.clip(late, 0.0, 1.0))


def most_busy(wait: ArrayLike, late: float) -> NDArray[np.float64]:
    """Return the largest ``busy``, up to 1, at which `late_share` is at most ``late``; 0 for negative waits.

    Args:
        wait: as for `late_share`, any shape.
        late: share of requests that may be late, above 0.
    """
    wait = np.asarray(wait, np.float64)
    return np.where(wait < 0.0, 0.0, np.interp(np.maximum(wait, _GRID[0]), _GRID, _most_busy(late)))


@functools.lru_cache
def _most_busy(late: float) -> NDArray[np.float64]:
    low, high = np.zeros(len(_GRID)), np.full(len(_GRID), 1.0)
    for _ in range(50):
        middle = (low + high) / 2
        within = late_share(middle, _GRID) <= late
        low, high = np.where(within, middle, low), np.where(within, high, middle)
    return low
