"""The run of an executor that is under way."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from placeit.core.errors import PlaceitError
from placeit.core.threads import Gate

if TYPE_CHECKING:
    from placeit.runtime.feed import Bell

__all__ = ["ActiveRun"]


class ActiveRun:
    """A call of ``times`` or ``serve``, until nothing of it runs any more.

    Args:
        bell: rung whenever a request has ended, for a run that requests are added to; else None.

    Attributes:
        thread: identifier of the thread that called.
        deadline: seconds, by ``time.perf_counter``, until which that thread waits; infinite if it waits without limit.
        begun: whether lanes have begun it.
        error: the first error.
        failed: the request with that error, by its number among those in flight, if that is known.
        ended: numbers of the requests that have ended, if there is a bell.
        failures: errors of these requests, by number; requests that have succeeded have no entry.
        begin: seconds of the call, or of the begin on its lanes.
        end: seconds at which all of it had ended.
        over: opened at the end.
    """

    def __init__(self, bell: Bell | None = None) -> None:
        self.bell = bell
        self.thread = threading.get_ident()
        self.deadline = math.inf
        self.begun = self._stopped = False
        self._tell: Callable[[], object] | None = None
        self.error: PlaceitError | None = None
        self.failed: int | None = None
        self.ended: deque[int] = deque()
        self.failures: dict[int, PlaceitError] = {}
        self.begin = perf_counter()
        self.end = 0.0
        self.over = Gate()

    @property
    def stopped(self) -> bool:
        """True if nothing more of it may start."""
        return self._stopped

    def stop(self) -> None:
        """Have nothing more of it start. This takes no lock, so that it may be called after an interrupt at any point."""
        self._stopped = True
        if self._tell is not None:
            self._tell()

    def go(self, stop: Callable[[], object]) -> None:
        """Mark the run as begun on lanes that do not read ``stopped``; :meth:`stop` calls ``stop`` to tell them."""
        self.begun, self._tell = True, stop
        if self._stopped:  # just before there was a function to call
            stop()

    @property
    def quiet(self) -> bool:
        """True if nothing of it runs; if it has been stopped, this stays true when it was read with the executor's lock."""
        return self.over.is_open or (self.stopped and not self.begun)
