"""Forms in which tensors cross the wire: unchanged, or float32 in two bytes or one byte for each element."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Coding", "coded", "coded_type", "decoded"]


_MIN_SCALE = np.finfo(np.float32).tiny


class Coding(IntEnum):
    """Types that a tensor can be sent as."""

    NONE = 0
    FP16 = 1
    INT8 = 2
    """Steps of the largest absolute value / 127, one scale for each tensor."""


def coded_type(coding: int, dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return the element type on the wire; the tensor's own if it is not float32."""
    if dtype != np.float32:
        return dtype
    match coding:
        case Coding.FP16:
            return np.dtype(np.float16)
        case Coding.INT8:
            return np.dtype(np.int8)
        case _:
            return dtype


def coded(coding: int, value: NDArray[np.generic]) -> tuple[NDArray[np.generic], float]:
    """Return the coded form of a contiguous tensor, and its scale.

    Values beyond the range of float16 become infinite. A tensor is sent unchanged if int8 would keep nothing of it: if it has
    infinities or NaN, or its largest absolute value is too small for a scale.
    """
    if coding == Coding.NONE or value.dtype != np.float32:
        return value, 0.0
    if coding == Coding.FP16:
        with np.errstate(over="ignore"):
            return value.astype(np.float16), 0.0
    scale = np.float32(float(np.max(np.abs(value), initial=0.0)) / 127 or 1.0)
    if not _MIN_SCALE <= scale < np.inf:
        return value, 0.0
    return np.rint(value.astype(np.float32, copy=False) / scale).astype(np.int8), float(scale)


def decoded(coding: int, received: NDArray[np.generic], scale: float) -> NDArray[np.generic]:
    """Return the value of a received tensor."""
    match coding:
        case Coding.INT8:
            return received.astype(np.float32) * np.float32(scale)
        case Coding.FP16:
            return received.astype(np.float32)
        case _:
            return received
