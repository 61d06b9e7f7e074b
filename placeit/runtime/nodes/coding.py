"""Forms in which tensors are sent: unchanged, or float32 as float16 or int8."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Coding", "coded", "coded_type", "decoded"]


_MIN_SCALE = np.finfo(np.float32).tiny


class Coding(IntEnum):
    """Forms in which a float32 tensor can be sent."""

    NONE = 0
    FP16 = 1
    INT8 = 2
    """Multiples of a scale: the largest absolute value of the tensor, divided by 127."""


_WIRE_TYPES: dict[int, np.dtype[np.generic]] = {Coding.FP16: np.dtype(np.float16), Coding.INT8: np.dtype(np.int8)}


def coded_type(coding: int, dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return the element type in which tensors of a type are sent: their own, except for float32."""
    return _WIRE_TYPES.get(coding, dtype) if dtype == np.float32 else dtype


def coded(coding: int, value: NDArray[np.generic]) -> tuple[NDArray[np.generic], float]:
    """Return the coded form of a contiguous tensor, and its scale.

    Values beyond the range of float16 become infinite. For int8, a tensor is returned unchanged if it has infinities or NaN, or
    if its largest absolute value is too small for a scale.
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
    if coding == Coding.NONE:
        return received
    value = received.astype(np.float32)
    return value * np.float32(scale) if coding == Coding.INT8 else value
