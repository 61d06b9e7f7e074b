"""A run of an executor under way."""

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
        bell: of a run that requests are added to: rung whenever one has ended.

    Attributes:
        thread: which asked for it.
        deadline: seconds, by ``time.perf_counter``, until which that thread waits; infinite if it waits as long as it takes.
        begun: whether lanes know of it.
        error: what failed first.
        failed: the request that it was of, by its number among those in flight, if that is known.
        ended: the numbers of those that have ended, if there is a bell.
        failures: what failed of these, by their numbers; there is none of those that have ended well.
        begin: when it was asked for, or when its lanes began.
        end: when all of it had ended.
        over: open from then on.
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
        """Have nothing more of it start. Whoever says so need not hold a lock, so that an interrupt takes no more than that."""
        self._stopped = True
        if self._tell is not None:
            self._tell()

    def go(self, stop: Callable[[], object]) -> None:
        """Begin on lanes that do not look at ``stopped``, and have to be told, by ``stop``."""
        self.begun, self._tell = True, stop
        if self._stopped:  # just before it was known whom to tell
            stop()

    @property
    def quiet(self) -> bool:
        """True if nothing of it runs; of one that has been stopped, for good if seen while nobody decides anything."""
        return self.over.is_open or (self.stopped and not self.begun)
