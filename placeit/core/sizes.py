"""Ranges of sizes: how long a dimension of a model's inputs may be at run time, and for which sizes placements are sought."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

from placeit.core.errors import UsageError

__all__ = ["LARGEST", "Limits", "SizeRange", "fits", "parsed_size", "spelled_shape"]

LARGEST = 2**31 - 1

Limits: TypeAlias = tuple[tuple[int, int], ...]
"""Least and largest size of each dimension of a tensor."""

_SIZE = r"\d{1,20}"
_RANGE = re.compile(
    rf"(?P<least>{_SIZE})\.\.(?P<most>{_SIZE}|(?=@))(?:@(?P<typical>{_SIZE}(x{_SIZE})?(/{_SIZE}(x{_SIZE})?)*))?", re.ASCII
)


@dataclass(frozen=True)
class SizeRange:
    """A range of the sizes that one dimension may have.

    Attributes:
        least: smallest size.
        most: largest size.
        typical: sizes for which placements are sought. If empty, the size of the model's sample inputs is used, or else the
            largest size.
        times: how often each typical size occurs, in proportion; 0 for a size that occurs only before others.

    Raises:
        UsageError: the sizes are not in order, or not positive.
    """

    least: int
    most: int
    typical: tuple[int, ...] = ()
    times: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", self.times or (1,) * len(self.typical))
        ordered = 1 <= self.least <= self.most <= LARGEST and all(self.least <= size <= self.most for size in self.typical)
        if not ordered or len(self.times) != len(self.typical) or not any(self.times or (1,)):
            raise UsageError(
                f"The sizes {self} make no sense; write LEAST..MOST, or LEAST..MOST@TYPICAL with a typical size between them."
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``32..512``, ``32..512@128``, or several typical sizes, ``32..512@128x3/512``: 128 three times as often as 512.

        ``32..@128`` has no bound but :data:`LARGEST`.

        Raises:
            UsageError: the text has another form.
        """
        found = _RANGE.fullmatch(text.strip())
        if found is None:
            raise UsageError(
                f"Cannot read the sizes '{text}'; write LEAST..MOST or LEAST..MOST@TYPICAL, such as 32..512@128, or several "
                "typical sizes as in 32..512@128x3/512, of which the first comes three times as often."
            )
        parts = [part.partition("x") for part in (found["typical"] or "").split("/") if part]
        sizes, times = tuple(int(size) for size, _, _ in parts), tuple(int(often or 1) for _, _, often in parts)
        return cls(int(found["least"]), int(found["most"] or LARGEST), sizes, times)

    def __str__(self) -> str:
        return _spelled(self.least, self.most, self.typical, self.times)


def _spelled(least: int, most: int, typical: Sequence[int], times: Sequence[int]) -> str:
    times = times or [1] * len(typical)
    sizes = [f"{size}x{often}" if often != 1 else f"{size}" for size, often in zip(typical, times, strict=False)]
    return f"{least}..{'' if most == LARGEST and sizes else most}{'@' if sizes else ''}{'/'.join(sizes)}"


def parsed_size(given: int | str | SizeRange) -> int | SizeRange:
    """Return a size or a range of sizes, read from its text if it is one. Raises UsageError for a text that is neither."""
    if isinstance(given, SizeRange):
        return given
    if isinstance(given, str):
        return int(given) if re.fullmatch(_SIZE, given, re.ASCII) else SizeRange.parse(given)
    return int(given)


def fits(shape: Sequence[int], typical: Sequence[int], limits: Limits | None) -> bool:
    """Return whether a shape lies within limits or, without limits, equals the typical shape."""
    if limits is None:
        return tuple(shape) == tuple(typical)
    return len(shape) == len(limits) and all(low <= size <= high for size, (low, high) in zip(shape, limits, strict=True))


def spelled_shape(shapes: Sequence[Sequence[int]], limits: Limits | None, times: Sequence[int] = ()) -> list[int | str]:
    """Spell a shape as :class:`SizeRange` reads it: a number for each fixed size, a range with typical sizes for others.

    A size of an output or a state may have no bound, as in ``0..@128``; a size of an input must have one.

    Args:
        shapes: the typical shapes.
        limits: least and largest sizes; None if all are fixed.
        times: how often each typical shape occurs, in proportion; empty for equally often.
    """
    if limits is None:
        return [*shapes[0]]
    return [
        sizes[0] if low == high else _spelled(low, high, sizes, times)
        for sizes, (low, high) in zip(zip(*shapes, strict=True), limits, strict=True)
    ]
