"""Runs plans on streams of an accelerator: launches ahead, orders by events, never waits inside a request."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from time import perf_counter
from types import TracebackType
from typing import Self, get_args

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import checked_inputs
from placeit.core.errors import DeviceError, ExecutionError, NoRoomError, UsageError, forget_frames
from placeit.core.units import format_quantity
from placeit.planning.segments import Plan
from placeit.runtime.accelerators.accelerator import HOST, Accelerator, View
from placeit.runtime.accelerators.launcher import Launcher
from placeit.runtime.accelerators.layout import RequestLayout
from placeit.runtime.accelerators.orders import Dynamic, Graph, LaunchOrder, Static
from placeit.runtime.accelerators.times import Times
from placeit.runtime.accelerators.work import PlanTasks
from placeit.runtime.plan_executor import DispatchOrder, check_timeout
from placeit.runtime.spans import Span

__all__ = ["StreamExecutor"]

_AHEAD = 2


class StreamExecutor:
    """One plan, ready to run on an accelerator. Use it as a context manager, or call :meth:`close`.

    ``dynamic``: the scheduler decides what comes next whenever something has ended, by the same rule as everywhere: the
    longest path first. So that no stream runs dry while the host thinks, the scheduler is told that a segment has ended as
    soon as fewer than ``ahead`` segments are queued on its device: what follows it there is launched behind it, and copies of
    what it makes are launched to wait for its event. What reads those copies is launched only when they have arrived: launched
    before, it would keep its device from what becomes ready earlier.

    ``static``: everything is launched at once in the order of the plan's simulated schedule, which costs the host least.
    ``graph``: that order is captured once and replayed with one call, where the accelerator can.

    After any error, and an interrupt, what was launched is waited for and everything is released; the executor is closed. If
    that is interrupted as well, :meth:`close`, or any other call, goes on with it. After a time-out nobody waits: a thread does
    the same once what still runs has ended.

    Threads that share an executor take turns; executors of one accelerator may run at the same time.

    Args:
        work: what to run.
        accelerator: where.
        requests: how many requests may be in flight at once.
        order: ``dynamic``, ``static`` or ``graph``. The last two are not for plans on accelerators and core sets at once.
        ahead: for ``dynamic``, how many segments may be queued on a device, and tensors on a link, the running one included.
        timed: whether to record what ran when, for :meth:`spans` and :meth:`segment_seconds`: an event more for each launch.

    Raises:
        DeviceError: weights and buffers do not fit into a device's free memory, or the order is not available.
        ExecutionError: the accelerator is closed.
        UsageError: an argument out of its range, or a graph that is to be timed.
    """

    def __init__(
        self,
        work: PlanTasks,
        accelerator: Accelerator,
        *,
        requests: int = 1,
        order: DispatchOrder = "dynamic",
        ahead: int = _AHEAD,
        timed: bool = False,
    ) -> None:
        if requests < 1 or ahead < 1:
            raise UsageError(f"'requests' and 'ahead' must be at least 1; got {requests} and {ahead}.")
        if order not in get_args(DispatchOrder):
            raise UsageError(f"'order' is '{order}'; it must be one of {', '.join(get_args(DispatchOrder))}.")
        if order == "graph" and timed:
            raise UsageError("A captured graph has no times of its parts: run it without 'timed', or with order='static'.")
        self.work, self._accelerator = work, accelerator
        if order != "dynamic":
            self._check_alike(order)
        self.layout = RequestLayout(work, accelerator, fixed=order != "dynamic")
        self._turn = accelerator.turn()
        self._launcher = Launcher(self.layout, accelerator, timed=timed)
        self._times = Times(self._launcher) if timed else None
        self._order: LaunchOrder | None = None  # None if closed
        self._blanked: int | None = None
        self._running = False  # whether something may run
        self._given_up = False  # whether a thread waits for that, and releases everything
        with self._turn:
            self._check_memory(requests)
            try:
                self._launcher.make(requests)
                self._running = True  # captures run something
                self._order = self._make_order(order, ahead)
                self._running = False
            except BaseException as error:
                self._abandon(error)
                raise

    @property
    def plan(self) -> Plan:
        """The plan that this executor runs."""
        return self.work.plan

    def _make_order(self, order: DispatchOrder, ahead: int) -> LaunchOrder:
        if order == "dynamic":
            return Dynamic(self._launcher, ahead)
        if order == "static" or not self.layout.launches:  # nothing can be captured where nothing runs
            return Static(self._launcher)
        return Graph(self._launcher)

    @property
    def native(self) -> bool:
        """False: Python launches what streams run."""
        return False

    @property
    def host_paced(self) -> tuple[str, ...]:
        """None: everything is launched ahead."""
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Wait for a run in another thread to end, and release memory and weights. A second call has no effect."""
        self._order = None  # no further run begins; a captured graph refers to the memory
        if not self._given_up:
            with self._turn:
                self._release()

    def set_inputs(self, inputs: Mapping[str, NDArray[np.generic]], *, request: int = 0) -> None:
        """Copy the model's inputs into pinned memory, from which each run reads them.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or type than the model wants.
        """
        wanted = self.work.inputs
        values = checked_inputs(inputs, {name: self.work.values[v] for name, v in wanted.items()})
        with self._turn:
            self._check_open()
            for name, value in values.items():
                self._accelerator.write(self._host(wanted[name], request), value)

    def outputs(self, *, request: int = 0) -> dict[str, NDArray[np.generic]]:
        """Return copies of the outputs of the last run, by name."""
        with self._turn:
            self._check_open()
            return self._outputs(request)

    def run(self, inputs: Mapping[str, NDArray[np.generic]], *, timeout: float | None = None) -> dict[str, NDArray[np.generic]]:
        """Run once and return the outputs by name. Raises UsageError or ExecutionError.

        Args:
            inputs: the model's inputs.
            timeout: seconds after which the run is given up.
        """
        with self._turn:
            self.set_inputs(inputs)
            self.times(1, timeout=timeout)
            return self._outputs(0)

    def time(self, *, timeout: float | None = None) -> float:
        """Run once on the inputs in place and return the seconds it took. Raises ExecutionError.

        Args:
            timeout: seconds after which the run is given up.
        """
        return self.times(1, timeout=timeout)

    def times(self, count: int, *, timeout: float | None = None) -> float:
        """Run ``count`` requests, as many in flight as the executor was made for, and return their seconds.

        Args:
            count: how many requests.
            timeout: seconds after which the run is given up.

        Raises:
            ExecutionError: a segment or a copy failed, the executor or its accelerator is closed, or time is up; then says what
                still runs.
            UsageError: no request at all, or no time.
        """
        if count < 1:
            raise UsageError(f"There must be at least one request to run; got {count}.")
        check_timeout(timeout)
        with self._turn:
            order = self._check_open()
            self._blanked = None
            try:
                self._running = True
                seconds = self._run(order, count, timeout)
                self._running = False
            except BaseException as error:
                if not isinstance(error, _TimeUpError):
                    self._abandon(error)
                if isinstance(error, DeviceError):
                    raise ExecutionError(f"{error} The run has ended, and all of its memory is released.") from error
                raise
            return seconds

    def _run(self, order: LaunchOrder, count: int, timeout: float | None) -> float:
        launcher = self._launcher
        if self._times is not None:
            self._times.begin()
        begin = perf_counter()
        at_once = min(count, len(launcher.slots))
        for request in range(at_once):
            order.begin(request)
        waiting, end = count - at_once, perf_counter()
        while launcher.flying:
            token = launcher.next_report(None if timeout is None else begin + timeout - perf_counter())
            if token is None:
                raise self._time_is_up(timeout)
            request, n = token
            order.ended(request, n)
            slot = launcher.slots[request]
            if slot.decided and not slot.flying:
                end = perf_counter()
                if self._times is not None:
                    self._times.ended(request, slot)
                if waiting:
                    waiting -= 1
                    order.begin(request)
        return end - begin

    def _time_is_up(self, timeout: float | None) -> ExecutionError:
        """Have what still runs waited for, and everything released, by a thread."""
        awaited = self._launcher.awaited()
        self._order, self._given_up = None, True
        threading.Thread(target=self._release, name="placeit release", daemon=True).start()
        return _TimeUpError(
            f"The run has taken more than {timeout:g} s and is given up. What has not ended: {', '.join(awaited)}. This "
            "executor is closed: make a new one."
        )

    def blank(self, sentinel: int) -> str | None:
        """Fill all that a run writes with NaN or the sentinel; see :class:`placeit.runtime.plan_executor.PlanExecutor`.

        Buffers that share memory are blank as the first of them in a run; those after it find what that one has left. What the
        run itself has written too late is not known here; its readers have missed it.
        """
        with self._turn:
            self._check_open()
            found = None
            written = [b for launch in self.layout.launches for b in launch.writes]
            first = {self.layout.slot_of[b]: b for b in reversed(written)}
            for slot in self._launcher.slots:
                for b in first.values():
                    if self._blanked is not None and not self._accelerator.is_blank(slot.views[b], self._blanked):
                        found = self.layout.places[b]
                for b in reversed(written):
                    self._accelerator.blank(slot.views[b], sentinel)
            self._blanked = sentinel
        if found is None:
            return None
        name = "the host" if found == HOST else self._accelerator.names[found]
        return f"memory of {name} was still written after everything had been reported to have ended"

    def spans(self) -> list[Span]:
        """Spans of the last run: one per segment and copy, on a track per device and per pair of devices that copy.

        Copies between the host and a device, which a simulation knows nothing of, are on tracks of their own.

        Raises:
            UsageError: the executor was not made with ``timed``.
        """
        return self._timed().spans()

    def segment_seconds(self, *, last: bool = False) -> NDArray[np.float64]:
        """``float64[S]``, median seconds of each segment over many runs, or of the last one; zero if it runs nothing.

        Raises:
            UsageError: the executor was not made with ``timed``.
        """
        return self._timed().segment_seconds(last=last)

    def _timed(self) -> Times:
        if self._times is None:
            raise UsageError("This executor has recorded no times: make it with timed=True.")
        return self._times

    def _check_open(self) -> LaunchOrder:
        """Return the order, for a new run. Raises ExecutionError if the executor is closed, or its accelerator."""
        order = self._order
        if order is None or self._running:
            if not self._given_up:
                self._release()
            raise ExecutionError("This executor is closed, by hand or by an earlier error: make a new one.")
        if self._accelerator.closed:
            self._release()
            raise ExecutionError(
                f"{', '.join(self._accelerator.names)} is closed, and nothing more can run there: open a new session."
            )
        return order

    def _outputs(self, request: int) -> dict[str, NDArray[np.generic]]:
        return {name: self._accelerator.read(self._host(value, request)) for name, value in self.work.outputs.items()}

    def _host(self, value: int, request: int) -> View:
        return self._launcher.slots[request].views[self.layout.buffer_of[value, HOST]]

    def _check_memory(self, requests: int) -> None:
        for device, name in enumerate(self._accelerator.names):
            if self._accelerator.memory(device) == HOST:
                continue  # weights stay where they are
            place = self._accelerator.place(device)
            programs = [task.program for task in self.work.tasks if task.device == device and task.program is not None]
            weights = sum(program.weight_bytes(place) for program in programs)
            buffers = requests * self.layout.bytes_on(device)
            free = self._accelerator.free_bytes(device)
            workspace = max((program.workspace_bytes(free - weights - buffers) for program in programs), default=0)
            if weights + buffers + workspace > free:
                raise NoRoomError(
                    f"The plan does not fit on {name}: it needs {_bytes(weights)} for weights, {_bytes(buffers)} for "
                    f"the tensors of {requests} request(s) in flight and {_bytes(workspace)} to work in, and "
                    f"{_bytes(free)} are free. Place fewer ops there, keep fewer requests in flight, or free memory that "
                    "other processes use."
                )

    def _check_alike(self, order: DispatchOrder) -> None:
        used = sorted({task.device for task in self.work.tasks if task.program is not None})
        own = [device for device in used if self._accelerator.memory(device) != HOST]
        if own and len(own) < len(used):
            names = self._accelerator.names
            host = next(device for device in used if device not in own)
            raise DeviceError(
                f"With order='{order}' everything is launched ahead, and {names[own[0]]} cannot be made to wait for "
                f"{names[host]}, which computes on threads of the host: run the plan with order='dynamic'."
            )

    def _abandon(self, error: BaseException) -> None:
        """Wait for what was launched, and release everything that it or the error holds."""
        forget_frames(error)  # which hold intermediate results of the segment that ran out of memory, for example
        self._release()

    def _release(self) -> None:
        """Wait for what may still run, and release everything. An interrupt leaves the rest to the next call."""
        self._order = None
        if self._running:
            self._launcher.cancel()
            with contextlib.suppress(DeviceError, ExecutionError):  # the first error tells the story
                self._launcher.finish()
            self._running = False
        self._launcher.release()
        self._accelerator.trim()


class _TimeUpError(ExecutionError):
    """A run that is given up while something still runs."""


def _bytes(count: float) -> str:
    return format_quantity(count, "memory")
