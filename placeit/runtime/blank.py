"""Values that fill buffers before a checked run, so that missing writes are noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["blank_value", "is_blank"]

_ALL_ONES = 0xFF  # if all bytes are this, it is NaN in every floating-point type, also in types that NumPy lacks


def blank_value(dtype: np.dtype[Any], sentinel: int) -> Any:
    """Return NaN, or the sentinel for a type without NaN.

    Args:
        dtype: type of the elements.
        sentinel: 0 or 1. Every type has these values, and an op that reads them as an index, because the tensor was not
            written, stays within its table.
    """
    if dtype.kind in "fcV":
        return np.full(dtype.itemsize, _ALL_ONES, np.uint8).view(dtype)[0]
    return dtype.type(sentinel)


def is_blank(array: NDArray[Any], sentinel: int) -> bool:
    """Return whether every element is :func:`blank_value`."""
    if array.dtype.kind in "fc":
        return bool(np.isnan(array).all())
    return bool((array == blank_value(array.dtype, sentinel)).all())
