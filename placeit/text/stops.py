"""Stop sequences, before which a generated text ends."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Stops"]


class Stops:
    """Filter that ends a text before the first stop sequence, and holds back text that may be the start of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held = stops, ""

    def pass_on(self, text: str) -> tuple[str, bool]:
        """Take the next part of a text; return the part that can be passed on, and whether the text ends there."""
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            return self._held[: min(found)], True
        kept = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        text, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return text, False

    def rest(self) -> str:
        """Return the text that is held back, for a text that ended without a stop sequence."""
        return self._held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of a text that is a proper prefix of a stop sequence."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
