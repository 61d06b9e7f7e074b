"""The part of executors that waits for runs, abandons them at time-outs and interrupts, and closes."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
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
from placeit.runtime.slots import States

__all__ = ["RunEnds", "timeout_error"]


class RunEnds(PlanLanes):
    """The part of an executor that waits for runs, abandons them, and closes. For the arguments see :class:`PlanLanes`."""

    def __init__(self, plan: Plan, in_flight: int, inputs: Mapping[str, BufferSpec]) -> None:
        super().__init__(plan, in_flight, inputs)
        self._process = os.getpid()
        self._turn = threading.RLock()  # held by the thread that calls the executor
        self._waiting = threading.Lock()  # held by the calling thread while it waits for its run
        self._closed = False
        self._broken = False  # whether it is unknown what still runs
        self._request_inputs: dict[int, Mapping[str, NDArray[np.generic]]] = {}  # inputs as the caller passed them, by request
        # states of slots before each request of a sequence, by number of slots and number of the request; None: the initial one
        self._states: dict[int, dict[int, Sequence[States | None]]] = {}

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
                ended = self._release_if_done()
            if ended:
                self._end_lanes()

    def _release_if_done(self) -> bool:
        """Release everything if the executor is closed and nothing runs; return whether it did. Requires the lock."""
        if not self._closed or self._broken or not (self._run is None or self._run.idle):
            return False
        self._release()
        self._request_inputs.clear()
        self._states.clear()
        self._run = None  # to break a cycle: it refers to released objects, which refer to this executor
        return True

    def give_up(self, why: str) -> None:
        """End the current run, of any thread: nothing more of it starts, and its caller gets an ExecutionError with ``why``."""
        run = self._run
        if run is not None and not run.over.is_open:
            run.error = run.error or ExecutionError(why)
            run.stop()

    def drain(self) -> None:
        """Wait for segments and transfers that still run after a run has ended by an exception.

        Raises:
            ExecutionError: something has been closed, or a thread has died.
        """
        with self._turn:
            self._drain()

    def check(self) -> None:
        """Raise the reason, an ExecutionError or a DeviceError, if nothing can run here any more."""
        self._check_open()
        self._check_not_broken()
        if (gone := self.gone) is not None:
            raise gone
        self._check_lanes()

    def _check_open(self) -> None:
        check_process(self._process)
        if self._closed:
            raise ExecutionError("This executor is closed: make a new one.")

    def _check_not_broken(self) -> None:
        if self._broken:
            raise ExecutionError("After an earlier error this executor does not know what still runs: make a new one.")

    def _deadline(self, timeout: float | None) -> float:
        """Wait for a run of another thread, and return the time at which to stop waiting for this one.

        Raises:
            UsageError: ``timeout`` is not positive.
            ExecutionError: the executor is closed, or the other run does not end in time.
        """
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

    def _drain(self, deadline: float = math.inf) -> None:
        """Wait for the rest of a run that its caller has abandoned. Raises ExecutionError if the executor is closed."""
        self._check_open()
        run = self._run
        if run is None:
            return
        if not run.idle and not run.stopped and not self._waiting.locked():
            run.stop()  # an interrupt came before its caller could stop it
        if run.stopped:
            with self._lock:
                idle = run.idle
            if not idle:
                self._wait(run, deadline)

    def _wait(self, run: ActiveRun, deadline: float) -> None:
        """Wait for a run to end. Raises ExecutionError if it does not in time, or if it never will."""
        if not run.idle:
            self._pass_time(run)
        while not run.idle:
            if run.over.wait(max(0.0, min(CHECK_S, deadline - perf_counter()))):
                return
            if perf_counter() >= deadline:
                with self._lock:
                    raise self._timeout_error(run)
            if not run.idle:
                self._check_lanes()

    def _timeout_error(self, run: ActiveRun) -> ExecutionError:
        """Return the error of a run that has not ended in time. Requires the lock."""
        return timeout_error(self._running(run))


def timeout_error(running: Sequence[str]) -> ExecutionError:
    """Return the error of a run that has not ended in time.

    Args:
        running: descriptions of the segments and transfers that still run.
    """
    what = f"still running: {', '.join(running)}" if running else "none of it has started, as its device is busy"
    return ExecutionError(
        f"The time-out is over, and the run is not: {what}. The executor can be used again when that has ended; if a device "
        "hangs, open a new session."
    )
