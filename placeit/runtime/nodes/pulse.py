"""Signs of life of a process on a node, and its clock as seen from this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter

from placeit.core.threads import Gate

__all__ = ["PeerClock", "Pulse"]

_KEPT = 40  # round trips
_BEAT_S = 0.5


class PeerClock:
    """Estimates how far the clock of another process is ahead, by the shortest of the last round trips (Cristian 1989)."""

    def __init__(self) -> None:
        self._offset, self._trips = 0.0, list[tuple[float, float]]()

    def hear(self, sent: float, there: float) -> None:
        """Use an answer that has just come.

        Args:
            sent: when it was asked for, by this process's clock.
            there: when it was given, by the other clock.
        """
        now = perf_counter()
        self._trips = [*self._trips[1 - _KEPT :], (now - sent, there - (sent + now) / 2)]
        self._offset = min(self._trips)[1]

    @property
    def round_trip(self) -> float:
        """Seconds of the shortest of the last round trips; ``inf`` before the first."""
        return min(self._trips)[0] if self._trips else float("inf")

    def here(self, moment: float) -> float:
        """Convert a moment of the other clock to this process's clock."""
        return moment - self._offset


class Pulse:
    """A thread that asks a process for signs of life, until it has been silent for too long.

    Args:
        name: name of the device that the process drives.
        ping: asks for a sign of life.
        patience: returns the seconds for which it may be silent.
        lose: called once if it is silent for longer, with the seconds.
        closing: opened to end the thread.

    Attributes:
        heard: when the last sign of life came.
    """

    def __init__(
        self,
        name: str,
        ping: Callable[[], object],
        patience: Callable[[], float],
        lose: Callable[[float], object],
        closing: Gate,
    ) -> None:
        self._ping, self._patience, self._lose, self._closing = ping, patience, lose, closing
        self.heard = perf_counter()
        self._thread = threading.Thread(target=self._beat, name=f"placeit pulse {name}", daemon=True)

    @property
    def silent_s(self) -> float:
        """Seconds since the last sign of life."""
        return perf_counter() - self.heard

    def hear(self) -> None:
        """Record a sign of life."""
        self.heard = perf_counter()

    def start(self) -> None:
        """Ask for the first sign of life, and start the thread."""
        self._ping()
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread, unless it is the calling one."""
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def _beat(self) -> None:
        last = perf_counter()
        while not self._closing.wait(_BEAT_S):
            now, patience = perf_counter(), self._patience()
            if now - last > patience / 2:  # it was this process that was stopped
                self.heard = now
            last = now
            if now - self.heard > patience:
                self._lose(now - self.heard)
                return
            self._ping()
