"""Heartbeats of a process on a node, and an estimate of its clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter

from placeit.core.threads import Gate

__all__ = ["Heartbeat", "PeerClock"]

_MAX_ROUND_TRIPS = 40  # the last ones, of which the clock is estimated
_BEAT_S = 0.5  # between two pings


class PeerClock:
    """Estimates the offset of another process's clock by the shortest of the last round trips (Cristian 1989)."""

    def __init__(self) -> None:
        self._offset, self._round_trips = 0.0, list[tuple[float, float]]()  # seconds of each, and the offset by it

    def add_round_trip(self, sent: float, answered: float) -> None:
        """Use an answer that has just arrived.

        Args:
            sent: when the request was sent, by this process's clock.
            answered: when the answer was sent, by the other clock.
        """
        now = perf_counter()
        self._round_trips = [*self._round_trips[1 - _MAX_ROUND_TRIPS :], (now - sent, answered - (sent + now) / 2)]
        self._offset = min(self._round_trips)[1]

    def here(self, moment: float) -> float:
        """Convert a moment of the other clock to this process's clock."""
        return moment - self._offset


class Heartbeat:
    """A thread that pings a process until the process has been silent for too long.

    Args:
        name: name of the device that the process drives.
        ping: sends a ping.
        patience: returns the seconds for which the process may be silent.
        on_silence: called once if it is silent for longer, with the seconds.
        closing: opened to end the thread.

    Attributes:
        last_contact: when something last came from the process.
    """

    def __init__(
        self,
        name: str,
        ping: Callable[[], object],
        patience: Callable[[], float],
        on_silence: Callable[[float], object],
        closing: Gate,
    ) -> None:
        self._ping, self._patience, self._on_silence, self._closing = ping, patience, on_silence, closing
        self.last_contact = perf_counter()
        self._thread = threading.Thread(target=self._beat, name=f"placeit heartbeat {name}", daemon=True)

    @property
    def silent_s(self) -> float:
        """Seconds since something last came from the process."""
        return perf_counter() - self.last_contact

    def record_contact(self) -> None:
        """Record that something has come from the process."""
        self.last_contact = perf_counter()

    def start(self) -> None:
        """Send the first ping, and start the thread."""
        self._ping()
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread, unless it is the calling thread."""
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def _beat(self) -> None:
        last = perf_counter()
        while not self._closing.wait(_BEAT_S):
            now, patience = perf_counter(), self._patience()
            if now - last > patience / 2:  # this process itself was suspended
                self.last_contact = now
            last = now
            if now - self.last_contact > patience:
                self._on_silence(now - self.last_contact)
                return
            self._ping()
