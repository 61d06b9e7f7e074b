"""Forms in which tensors cross the wire: as they are, or float32 in two bytes or one for each element."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Coding", "coded", "coded_type", "decode"]


class Coding(IntEnum):
    """What a tensor is sent as."""

    NONE = 0
    FP16 = 1
    INT8 = 2
    """Steps of the largest absolute value / 127, one scale for each tensor."""


def coded_type(coding: int, dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Element type on the wire; the tensor's own if it is not float32."""
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
    """Return what to send of a contiguous tensor, and its scale. What is beyond the range of a float16 becomes infinite."""
    if coding == Coding.NONE or value.dtype != np.float32:
        return value, 0.0
    if coding == Coding.FP16:
        with np.errstate(over="ignore"):
            return value.astype(np.float16), 0.0
    largest = float(np.max(np.abs(value), initial=0.0))
    scale = largest / 127 if np.isfinite(largest) and largest > 0 else 1.0
    with np.errstate(invalid="ignore"):
        return np.rint(value.astype(np.float32, copy=False) / np.float32(scale)).astype(np.int8), scale


def decode(coding: int, received: NDArray[np.generic], scale: float, into: NDArray[np.generic]) -> None:
    """Write a received tensor where it belongs."""
    into[...] = received if coding == Coding.FP16 else received.astype(np.float32) * np.float32(scale)
