"""The end of a run: threads wait for it, time-outs and interrupts leave it behind, and closing comes after it."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import ExecutionError, UsageError
from placeit.core.threads import CHECK_S
from placeit.planning.segments import Plan
from placeit.runtime.active_run import ActiveRun
from placeit.runtime.calls import check_process
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.plan_lanes import PlanLanes

__all__ = ["RunEnds"]


class RunEnds(PlanLanes):
    """The part of an executor that waits for runs, gives them up, and closes. For the arguments see :class:`PlanLanes`."""

    def __init__(self, plan: Plan, in_flight: int, inputs: Mapping[str, BufferSpec]) -> None:
        super().__init__(plan, in_flight, inputs)
        self._process = os.getpid()
        self._turn = threading.RLock()  # taken by threads that call
        self._waiting = threading.Lock()  # taken by the calling thread while it waits for its run
        self._closed = False
        self._lost = False  # whether it is unknown what still runs
        self._given: dict[int, Mapping[str, NDArray[np.generic]]] = {}  # the inputs in place, by request, as they were given
        # restore the state before a request; by the number of slots and the number of the request
        self._before: dict[int, dict[int, Callable[[], None]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release buffers and programs. A second call has no effect."""
        if os.getpid() != self._process:
            return
        with self._turn:
            self._closed = True
            if self._run is not None:
                self._run.stop()
            with self._lock:
                ended = self._let_go()
            if ended:
                self._end_lanes()

    def _let_go(self) -> bool:
        """Release everything if the executor is closed and nothing runs any more; return whether it did; with the lock."""
        if not self._closed or self._lost or not (self._run is None or self._run.quiet):
            return False
        self._release()
        self._given.clear()
        self._before.clear()
        self._run = None  # to break a cycle: it refers to released objects, which refer to this executor
        return True

    def give_up(self, why: str) -> None:
        """End a run of any thread, if there is one: nothing more of it starts, and an ExecutionError tells its caller why."""
        run = self._run
        if run is not None and not run.over.is_open:
            run.error = run.error or ExecutionError(why)
            run.stop()

    def settle(self) -> None:
        """Wait for segments and transfers that still run after a run has ended by an exception.

        Raises:
            ExecutionError: something has been closed, or a thread has died.
        """
        with self._turn:
            self._settle()

    def check(self) -> None:
        """Raise the reason, an ExecutionError or a DeviceError, if nothing can run here any more."""
        self._check_open()
        self._check_known()
        if (gone := self.gone) is not None:
            raise gone
        self._check_lanes()

    def _check_open(self) -> None:
        check_process(self._process)
        if self._closed:
            raise ExecutionError("This executor is closed: make a new one.")

    def _check_known(self) -> None:
        if self._lost:
            raise ExecutionError("After an earlier error this executor does not know what still runs: make a new one.")

    def _deadline(self, timeout: float | None) -> float:
        """Return the time at which to stop waiting. Until then, wait for a run of another thread, which may never end."""
        self._check_open()
        if timeout is None:
            return math.inf
        if not timeout > 0:
            raise UsageError(f"'timeout' must be a positive number of seconds; got {timeout}.")
        deadline = perf_counter() + timeout
        self._await_others(deadline)
        return deadline

    def _await_others(self, deadline: float) -> None:
        """Wait for the run of another thread. Raises ExecutionError if it does not end in time."""
        run = self._run
        if run is not None and run.thread != threading.get_ident():
            self._wait(run, deadline)

    def _settle(self, deadline: float = math.inf) -> None:
        """Wait for the rest of a run that its caller does not wait for any longer. Raises ExecutionError if it is closed."""
        self._check_open()
        run = self._run
        if run is None:
            return
        if not run.quiet and not run.stopped and not self._waiting.locked():
            run.stop()  # an interrupt came before its caller could stop it
        if run.stopped:
            with self._lock:
                quiet = run.quiet
            if not quiet:
                self._wait(run, deadline)

    def _wait(self, run: ActiveRun, deadline: float) -> None:
        """Wait for a run to end. Raises ExecutionError if it does not in time, or if it never will."""
        if not run.quiet:
            self._pass_time(run)
        while not run.quiet:
            if run.over.wait(max(0.0, min(CHECK_S, deadline - perf_counter()))):
                return
            if perf_counter() >= deadline:
                with self._lock:
                    raise self._late(run)
            if not run.quiet:
                self._check_lanes()

    def _late(self, run: ActiveRun) -> ExecutionError:
        """Return the error of a run that has not ended in time; with the lock."""
        return self._overdue(self._running(run))

    def _overdue(self, running: Sequence[str]) -> ExecutionError:
        """Return the error of a run that has not ended in time, from what is on devices and links."""
        return ExecutionError(
            f"The time-out is over, and the run is not: {_said(running)}. The executor can be used again when that has ended; "
            "if a device hangs, open a new session."
        )


def _said(running: Sequence[str]) -> str:
    return f"still running: {', '.join(running)}" if running else "none of it has started, as its device is busy"
