"""Values that fill buffers before a checked run, so that missing writes are noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["blank_value", "is_blank"]

_ALL_ONES = 0xFF  # in every byte it is NaN in every floating-point type, those included that NumPy lacks and shows as others


def blank_value(dtype: np.dtype[Any], sentinel: int) -> Any:
    """NaN, or the sentinel for a type without NaN.

    Args:
        dtype: of the elements.
        sentinel: 0 or 1: any type has them, and what uses them as an index, if nobody writes the tensor, stays in its table.
    """
    if dtype.kind in "fcV":
        return np.full(dtype.itemsize, _ALL_ONES, np.uint8).view(dtype)[0]
    return dtype.type(sentinel)


def is_blank(array: NDArray[Any], sentinel: int) -> bool:
    """Return whether every element is :func:`blank_value`."""
    if array.dtype.kind in "fc":
        return bool(np.isnan(array).all())
    return bool((array == blank_value(array.dtype, sentinel)).all())
