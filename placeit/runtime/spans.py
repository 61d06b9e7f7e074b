"""Records of what ran where and when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Span"]

_ARROW = " -> "


@dataclass(frozen=True)
class Span:
    """A segment or transfer with its start and end.

    Attributes:
        track: where: the name of a device, or ``A -> B`` for a link.
        name: what is shown on it: op names.
        start: seconds, of any clock that all spans share.
        finish: seconds; not before ``start``.
        args: what is shown when the span is selected; anything that JSON can hold.
    """

    track: str
    name: str
    start: float
    finish: float
    args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start) and math.isfinite(self.finish) and self.start <= self.finish):
            raise ValueError(f"'{self.name}' on {self.track} runs from {self.start} s to {self.finish} s")

    @property
    def category(self) -> str:
        """``copy`` on a link, ``compute`` on a device."""
        return "copy" if _ARROW in self.track else "compute"
