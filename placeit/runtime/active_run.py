"""The state of a run of an executor, until nothing of it runs any more."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from placeit.core.errors import PlaceitError
from placeit.core.threads import Gate

if TYPE_CHECKING:
    from placeit.runtime.feed import Bell

__all__ = ["ActiveRun"]


class ActiveRun:
    """A call of ``times`` or ``serve``, until nothing of it runs any more.

    Args:
        bell: rung whenever a request ends, for a run that requests are added to; None for a run of a fixed number of requests.

    Attributes:
        thread: identifier of the thread that called.
        begun: whether lanes have begun it.
        error: the first error; None if there was none.
        failed: number of the request with that error among the requests in flight; None if it is unknown.
        ended: numbers of the requests that have ended, if there is a bell.
        failures: errors of these requests, by number; requests that have succeeded have no entry.
        over: gate that opens at the end of the run.
    """

    def __init__(self, bell: Bell | None = None) -> None:
        self.bell = bell
        self.thread = threading.get_ident()
        self.begun = self._stopped = False
        self._stop_lanes: Callable[[], object] | None = None
        self.error: PlaceitError | None = None
        self.failed: int | None = None
        self.ended: deque[int] = deque()
        self.failures: dict[int, PlaceitError] = {}
        self.over = Gate()

    @property
    def stopped(self) -> bool:
        """True if nothing more of it may start."""
        return self._stopped

    def stop(self) -> None:
        """Start nothing more of the run. This takes no lock, so that it may be called after an interrupt at any point."""
        self._stopped = True
        if self._stop_lanes is not None:
            self._stop_lanes()

    def mark_begun(self, stop_lanes: Callable[[], object]) -> None:
        """Mark the run as begun on lanes that do not read ``stopped``: :meth:`stop` calls ``stop_lanes``."""
        self.begun, self._stop_lanes = True, stop_lanes
        if self._stopped:  # stop() was called before it could call the function
            stop_lanes()

    @property
    def idle(self) -> bool:
        """True if nothing of the run runs. For a stopped run, True is final if it was read with the executor's lock."""
        return self.over.is_open or (self.stopped and not self.begun)
