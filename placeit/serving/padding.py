"""Padding, by which requests of different lengths are joined, for models with a mask of valid positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from placeit.backends.base import Arrays, TensorSpec

__all__ = ["Padding"]


@dataclass(frozen=True)
class Padding:
    """Zeros that extend the inputs of a request to the longest length in its batch, and that the mask hides.

    Shapes and names allow it; a check against single runs has to confirm it.

    Attributes:
        outputs: names of the outputs whose second size is the length.
        least: least length.
    """

    outputs: frozenset[str]
    least: int

    @classmethod
    def of(cls, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Self | None:
        """Return the padding of a model; None if its shapes allow none.

        All inputs are ``[batch, length]`` with one range of lengths, a mask is among them, as its name says, and no other size
        of an output is open.
        """
        ranges = {one.limits[1] if one.limits is not None and len(one.limits) == 2 else None for one in inputs}
        length = ranges.pop() if len(ranges) == 1 else None
        if length is None or length[0] == length[1] or not any("mask" in one.name for one in inputs):
            return None
        by_length = set[str]()
        for one in outputs:
            limits = one.limits or ()
            if len(limits) > 1 and limits[1] == length:
                by_length.add(one.name)
            if any(low != high for low, high in limits[2 if one.name in by_length else 1 :]):
                return None
        return cls(frozenset(by_length), length[0])

    def like(self, inputs: Arrays) -> tuple[Any, ...] | None:
        """Return a value that is equal for requests that are joined: their lengths differ by a quarter at most.

        It is None if the inputs of the request have different lengths.
        """
        lengths = {value.shape[1:] for value in inputs.values()}
        if len(lengths) != 1:
            return None
        ((length,),) = lengths
        shift = max(0, length.bit_length() - 3)
        return "about", -(-length >> shift) << shift

    def padded(self, inputs: Arrays, length: int) -> Arrays:
        """Return inputs that are extended to a length with zeros."""
        return {name: np.pad(value, ((0, 0), (0, length - value.shape[1]))) for name, value in inputs.items()}
