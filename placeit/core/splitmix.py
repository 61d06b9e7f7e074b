"""Random numbers in compiled code, from a state that its caller keeps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit

__all__ = ["uniform"]


@jit
def uniform(state: NDArray[np.uint64]) -> float:
    """Return the next number in [0, 1) of SplitMix64 (Steele, Lea and Flood 2014), and change its state, ``uint64[1]``."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    x = state[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.float64((x ^ (x >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0
