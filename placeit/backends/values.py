"""Ranges of integers that ops allow as input, and random values from these ranges or from any."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ValueRange", "common", "draw", "draw_any"]


@dataclass(frozen=True)
class ValueRange:
    """Integers that an op allows.

    Attributes:
        low: smallest allowed integer.
        end: largest allowed integer plus 1.
        distinct_axis: axis along which no two integers should be equal, since the result of a scatter would depend on the
            order; None if they may be equal.
    """

    low: int
    end: int
    distinct_axis: int | None = None


def common(ranges: Iterable[ValueRange]) -> ValueRange | None:
    """Return the intersection of ranges; None without ranges. A range that is disjoint from the ones before it is ignored."""
    found: ValueRange | None = None
    for other in ranges:
        if found is None:
            found = other
        elif (low := max(found.low, other.low)) < (end := min(found.end, other.end)):
            found = ValueRange(low, end, other.distinct_axis if found.distinct_axis is None else found.distinct_axis)
    return found


def draw(rng: np.random.Generator, allowed: ValueRange, shape: tuple[int, ...], dtype: str) -> NDArray[np.generic]:
    """Draw integers of a type uniformly, without duplicates along ``distinct_axis`` if the range is large enough."""
    end = min(allowed.end, np.iinfo(dtype).max + 1) if np.dtype(dtype).kind in "iu" else allowed.end
    axis, low = allowed.distinct_axis, min(allowed.low, end - 1)
    if axis is not None and axis < len(shape) and shape[axis] <= end - low:
        wide = np.broadcast_to(np.arange(low, end), (*shape[:axis], *shape[axis + 1 :], end - low))
        return np.moveaxis(rng.permuted(wide, axis=-1)[..., : shape[axis]], -1, axis).astype(dtype)
    return rng.integers(low, end, shape).astype(dtype)


def draw_any(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> NDArray[np.generic]:
    """Draw values for any op: standard normal floats, uniform 8-bit integers, and ones for all other types."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return rng.standard_normal(shape).astype(kind)
    if kind in (np.dtype(np.uint8), np.dtype(np.int8)):  # pixels, or other numbers that were quantised
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, shape, kind.type, endpoint=True)
    return np.ones(shape, kind)
