"""A run of an executor under way."""

from __future__ import annotations

from time import perf_counter

from placeit.core.errors import PlaceitError
from placeit.runtime.devices.worker import Gate
from placeit.runtime.native.plan import NativePlan
from placeit.runtime.slots import Slot

__all__ = ["ActiveRun"]


class ActiveRun:
    """A call of ``times``, until nothing of it runs any more.

    Attributes:
        slots: its requests in flight.
        waiting: how many requests have not begun.
        left: how many of the slots have not ended.
        begun: whether the scheduler knows of it.
        native: the plan that lanes run without Python; None while, or if, they do not.
        dropped: whether the scheduler knows that nothing more may start, as something failed or nobody waits any more.
        error: what failed first.
        begin: when it was asked for, or when its lanes began.
        end: when all of it had ended.
        over: open from then on.
        caller: the thread that waits, if runs begin there, as no device has a worker; None if no decision is made there.
    """

    def __init__(self, slots: list[Slot], waiting: int, caller: int | None) -> None:
        self.slots, self.waiting, self.caller = slots, waiting, caller
        self.left = len(slots)
        self.native: NativePlan | None = None
        self.begun = self.dropped = self._stopped = False
        self.error: PlaceitError | None = None
        self.begin = perf_counter()
        self.end = 0.0
        self.over = Gate()

    @property
    def stopped(self) -> bool:
        """Whether nothing more of it may start."""
        return self._stopped

    def stop(self) -> None:
        """Have nothing more of it start. Whoever says so need not hold a lock, so that an interrupt takes no more than that."""
        self._stopped = True
        if self.native is not None:
            self.native.stop()

    def go_native(self, native: NativePlan) -> None:
        """Have a plan ready to run it without Python."""
        native.prepare(len(self.slots), self.waiting)
        self.begun, self.native = True, native
        if self._stopped:  # just before the plan was known, so that only its lanes can be told
            native.stop()

    @property
    def quiet(self) -> bool:
        """Whether nothing of it runs; of one that has been stopped, for good if seen while nobody decides anything."""
        return self.over.is_open or (self.stopped and not self.begun)
