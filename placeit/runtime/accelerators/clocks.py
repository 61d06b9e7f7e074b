"""Vector clocks, which find the events that a launch has to wait for without redundant waits.

Vector clocks (Mattern 1989) over streams. A launch happens after all earlier launches on its stream, after everything that its
stream has waited for, and after everything that the host knew to have ended; all of this transitively.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Clocks", "Mark"]


class Mark(NamedTuple):
    """A launch, and everything that happens before its end.

    Attributes:
        launch: its number.
        stream: number of its stream.
        time: number of launches on its stream up to this one.
        clock: for each stream, how many of its launches have ended when this one has ended.
    """

    launch: int
    stream: int
    time: int
    clock: tuple[int, ...]


class Clocks:
    """Clocks of a number of streams, and of the host."""

    def __init__(self, streams: int) -> None:
        self._seen = [[0] * streams for _ in range(streams)]  # [stream][other]: launches of ``other`` before the next one
        self._host = [0] * streams
        self._news = [False] * streams  # by stream: whether an end was reported to the host since the last launch there

    def launch(self, number: int, stream: int, after: Iterable[Mark]) -> tuple[Mark, list[Mark]]:
        """Record a launch, and return the launches that its stream must wait for so that it happens after the given ones.

        The list is minimal: it leaves out launches that are implied by others in it, that the stream has waited for before, or
        that the host knows to have ended.
        """
        seen = self._seen[stream]
        if self._news[stream]:
            seen[:] = map(max, seen, self._host)
            self._news[stream] = False
        needed = []
        for mark in after:
            if seen[mark.stream] < mark.time:
                needed.append(mark)  # noqa: PERF401 (a comprehension would be one more call for each launch)
        if len(needed) > 1:
            missing = needed
            needed = [one for one in missing if all(other is one or other.clock[one.stream] < one.time for other in missing)]
        for mark in needed:
            seen[:] = map(max, seen, mark.clock)
        seen[stream] += 1
        return Mark(number, stream, seen[stream], tuple(seen)), needed

    def ended(self, mark: Mark) -> None:
        """Record that the end of a launch has been reported to the host."""
        self._host[:] = map(max, self._host, mark.clock)
        self._news = [True] * len(self._news)
