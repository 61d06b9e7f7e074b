"""Where an executor takes requests from while others are in flight, and what wakes the thread that does so."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import PlaceitError

__all__ = ["Bell", "Feed", "Ran", "Served"]

Ran: TypeAlias = tuple[int, float, float]
"""What ran, by its number in the plan (a segment), and when it began and ended."""
Served: TypeAlias = tuple[int, dict[str, NDArray[np.generic]], Sequence[Ran]]
"""A request that has ended, by its number among those in flight; copies of its outputs; and what segments ran when."""


class Bell:
    """What one thread waits for, and any thread may ring, in Python or out of it: a counter of the kernel (``eventfd``)."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def ring(self) -> None:
        """Wake who waits, or who will next. Nothing happens once it is closed."""
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def wait(self, seconds: float) -> None:
        """Wait until it has been rung since the last wait, for some seconds at most."""
        if self._poll.poll(max(0.0, seconds) * 1e3):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Give the counter back; nobody may wait."""
        with self._lock:
            fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Feed(Protocol):
    """A source of requests, and where their outputs go. Called by the thread that serves; an item is whatever the feed gives.

    Attributes:
        bell: rung by the feed when there may be something to take.
    """

    bell: Bell

    def take(self) -> Any | None:
        """The next request, with its ``inputs`` by name as the model wants them; None if there is none to take now."""
        ...

    def patience(self) -> float:
        """Seconds after which to ask again whether there is something to take, if the bell has not been rung until then."""
        ...

    def ended(self, item: Any, outputs: Mapping[str, NDArray[np.generic]], ran: Sequence[Ran]) -> None:
        """A request has ended: copies of its outputs, and what ran."""
        ...

    def failed(self, item: Any, error: PlaceitError) -> None:
        """A request has failed."""
        ...

    def again(self, items: Sequence[Any]) -> None:
        """These were in flight beside one that failed, and have to begin again: take them first."""
        ...
