"""Start runs at a fixed rate, like requests that arrive."""

from __future__ import annotations

import time
from collections.abc import Callable

from placeit.simulator.load import check_rate

__all__ = ["Pace"]


class Pace:
    """A schedule of runs at regular intervals; a run that takes longer than an interval is followed by the next at once.

    Args:
        rate: runs per second.
        now: clock, in seconds.
        sleep: waits for some seconds.

    Attributes:
        period: seconds from one start to the next.

    Raises:
        UsageError: the rate is not positive and finite.
    """

    def __init__(
        self, rate: float, *, now: Callable[[], float] = time.perf_counter, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        check_rate(rate)
        self.period = 1.0 / rate
        self._now, self._sleep = now, sleep
        self._due: float | None = None

    def begin(self) -> None:
        """Restart the schedule after something else has run: the next run is due a period from now."""
        self._due = self._now() + self.period

    def wait(self) -> None:
        """Wait until the next run is due. Times are absolute, so that late starts do not add up."""
        if self._due is None:
            self.begin()
        due = self._due or 0.0
        while (early := due - self._now()) > 0:
            self._sleep(early)
        self._due = max(due + self.period, self._now())
