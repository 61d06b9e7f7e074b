"""Give the threads of devices and links to one plan at a time; plans that share none run side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from placeit.core.threads import Worker

__all__ = ["Turns"]


class Turns:
    """The threads that plans hold which run without Python.

    A plan takes all of its threads at once or none: two plans that each held what the other one waits for would wait for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[Worker] = set()

    def take(self, workers: Iterable[Worker]) -> bool:
        """Take threads, if nobody holds any of them, and return whether."""
        wanted = set(workers)
        with self._lock:
            if not self._held.isdisjoint(wanted):
                return False
            self._held |= wanted
        return True

    def give_back(self, workers: Iterable[Worker]) -> None:
        """Let others take them."""
        with self._lock:
            self._held.difference_update(workers)
