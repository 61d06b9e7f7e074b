"""Ranges of sizes: how long a dimension of a model's inputs may be at run time, and for which size placements are sought."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

from placeit.core.errors import UsageError

__all__ = ["LARGEST", "Limits", "SizeRange", "fits", "spelled_shape"]

LARGEST = 2**31 - 1

Limits: TypeAlias = tuple[tuple[int, int], ...]
"""Least and largest size of each dimension of a tensor."""

_RANGE = re.compile(r"(?P<least>\d+)\.\.(?P<most>\d+)(?:@(?P<typical>\d+))?")


@dataclass(frozen=True)
class SizeRange:
    """The sizes that one dimension may have.

    Attributes:
        least: size.
        most: size.
        typical: size for which placements are sought; None for that of the model's sample inputs, or else the largest.

    Raises:
        UsageError: they are not in order, or not positive.
    """

    least: int
    most: int
    typical: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.size <= self.most <= LARGEST:
            raise UsageError(
                f"The sizes {self} make no sense; write LEAST..MOST, or LEAST..MOST@TYPICAL with a typical size between them."
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``32..512`` or ``32..512@128``. Raises UsageError."""
        found = _RANGE.fullmatch(text.strip())
        if found is None:
            raise UsageError(f"Cannot read the sizes '{text}'; write LEAST..MOST or LEAST..MOST@TYPICAL, such as 32..512@128.")
        return cls(int(found["least"]), int(found["most"]), int(found["typical"]) if found["typical"] else None)

    @property
    def size(self) -> int:
        """The typical size, or else the largest."""
        return self.most if self.typical is None else self.typical

    def __str__(self) -> str:
        return f"{self.least}..{self.most}" + ("" if self.typical is None else f"@{self.typical}")


def fits(shape: Sequence[int], typical: Sequence[int], limits: Limits | None) -> bool:
    """Return whether a tensor of this shape may be where one of a typical shape, within some limits, is expected."""
    if limits is None:
        return tuple(shape) == tuple(typical)
    return len(shape) == len(limits) and all(low <= size <= high for size, (low, high) in zip(shape, limits, strict=True))


def spelled_shape(typical: Sequence[int], limits: Limits | None) -> list[int | str]:
    """Spell a shape as :class:`SizeRange` reads it: a number for each fixed size, a range with the typical size for others.

    A size of an output or a state may have no bound, as in ``0..@128``, which inputs may not.
    """
    if limits is None:
        return [*typical]
    sizes = zip(typical, limits, strict=True)
    return [size if low == high else f"{low}..{high if high < LARGEST else ''}@{size}" for size, (low, high) in sizes]
