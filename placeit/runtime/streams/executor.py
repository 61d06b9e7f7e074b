"""Runs plans on the streams of an accelerator: launched ahead, ordered by events, and never waiting inside a request."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Mapping
from time import perf_counter
from types import TracebackType
from typing import Self, get_args

import numpy as np
from numpy.typing import NDArray

from placeit.errors import DeviceError, ExecutionError, UsageError
from placeit.profiler.trace import Span
from placeit.runtime.executor import Order, checked_input
from placeit.runtime.segments import Plan
from placeit.runtime.streams.accelerator import HOST, Accelerator, View
from placeit.runtime.streams.launcher import Launcher
from placeit.runtime.streams.layout import Layout
from placeit.runtime.streams.orders import Dynamic, Graph, LaunchOrder, Static
from placeit.runtime.streams.times import Times
from placeit.runtime.streams.work import Work
from placeit.units import format_quantity

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

    After any error, and an interrupt, what was launched is waited for and everything is released; the executor is closed.

    Args:
        work: what to run.
        accelerator: where.
        requests: how many requests may be in flight at once.
        order: ``dynamic``, ``static`` or ``graph``. The last two are not for plans on accelerators and core sets at once.
        ahead: for ``dynamic``, how many segments may be queued on a device, and tensors on a link, the running one included.
        timed: whether to record what ran when, for :meth:`spans` and :meth:`segment_seconds`: an event more for each launch.

    Raises:
        DeviceError: weights and buffers do not fit into a device's free memory, or the order is not available.
        UsageError: an argument out of its range, or a graph that is to be timed.
    """

    def __init__(
        self,
        work: Work,
        accelerator: Accelerator,
        *,
        requests: int = 1,
        order: Order = "dynamic",
        ahead: int = _AHEAD,
        timed: bool = False,
    ) -> None:
        if requests < 1 or ahead < 1:
            raise UsageError(f"'requests' and 'ahead' must be at least 1; got {requests} and {ahead}.")
        if order not in get_args(Order):
            raise UsageError(f"'order' is '{order}'; it must be one of {', '.join(get_args(Order))}.")
        if order == "graph" and timed:
            raise UsageError("A captured graph tells nothing of its parts: run it without 'timed', or with order='static'.")
        self.work, self._accelerator = work, accelerator
        if order != "dynamic":
            self._check_alike(order)
        self.layout = Layout(work, accelerator, fixed=order != "dynamic")
        self._turn = threading.RLock()  # of the threads that call
        self._launcher = Launcher(self.layout, accelerator, timed=timed)
        self._times = Times(self._launcher) if timed else None
        self._order: LaunchOrder | None = None  # None if closed
        self._check_memory(requests)
        try:
            self._launcher.make(requests)
            self._order = self._make_order(order, ahead)
        except BaseException as error:
            self._abandon(error)
            raise

    @property
    def plan(self) -> Plan:
        """What it runs."""
        return self.work.plan

    def _make_order(self, order: Order, ahead: int) -> LaunchOrder:
        if order == "dynamic":
            return Dynamic(self._launcher, ahead)
        if order == "static" or not self.layout.launches:  # nothing can be captured where nothing runs
            return Static(self._launcher)
        return Graph(self._launcher)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release memory and weights. Closing twice does nothing more."""
        self._order = None  # a captured graph refers to the memory
        self._launcher.release()
        self._accelerator.trim()

    def set_inputs(self, inputs: Mapping[str, NDArray[np.generic]], *, request: int = 0) -> None:
        """Copy the model's inputs into pinned memory, from where each run takes them.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or type than the model wants.
        """
        wanted = self.work.inputs
        if inputs.keys() != wanted.keys():
            wrong = min(inputs.keys() ^ wanted.keys())
            what = "is missing" if wrong in wanted else "is not one of the model's"
            raise UsageError(f"The input '{wrong}' {what}; the model's inputs are {', '.join(wanted)}.")
        for name, given in inputs.items():
            value = checked_input(name, given, self.work.values[wanted[name]])
            self._accelerator.write(self._host(wanted[name], request), value)

    def outputs(self, *, request: int = 0) -> dict[str, NDArray[np.generic]]:
        """Return copies of the outputs of the last run, by name."""
        return {name: self._accelerator.read(self._host(value, request)) for name, value in self.work.outputs.items()}

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Run once and return the outputs by name. Raises UsageError or ExecutionError."""
        with self._turn:
            self.set_inputs(inputs)
            self.times(1)
            return self.outputs()

    def time(self) -> float:
        """Run once on the inputs in place and return the seconds it took. Raises ExecutionError."""
        return self.times(1)

    def times(self, count: int) -> float:
        """Run ``count`` requests, as many in flight as the executor was made for, and return the seconds they took.

        Raises:
            ExecutionError: a segment or a copy failed, or the executor is closed.
            UsageError: no request at all.
        """
        if count < 1:
            raise UsageError(f"There must be at least one request to run; got {count}.")
        with self._turn:
            if self._order is None:
                raise _closed()
            order, launcher = self._order, self._launcher
            try:
                if self._times is not None:
                    self._times.begin()
                begin = perf_counter()
                at_once = min(count, len(launcher.slots))
                for request in range(at_once):
                    order.begin(request)
                waiting, end = count - at_once, perf_counter()
                while launcher.flying:
                    request, n = launcher.next_report()
                    order.ended(request, n)
                    slot = launcher.slots[request]
                    if slot.decided and not slot.flying:
                        end = perf_counter()
                        if self._times is not None:
                            self._times.ended(slot)
                        if waiting:
                            waiting -= 1
                            order.begin(request)
            except BaseException as error:
                self._abandon(error)
                if isinstance(error, DeviceError):
                    raise ExecutionError(f"{error} The run has ended, and all of its memory is released.") from error
                raise
            return end - begin

    def spans(self) -> list[Span]:
        """What ran when in the last run: one span per segment and copy, on a track per device and per pair that copies.

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
            raise UsageError("This executor has not recorded what ran when: make it with timed=True.")
        return self._times

    def _host(self, value: int, request: int) -> View:
        if self._order is None:
            raise _closed()
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
                raise DeviceError(
                    f"The plan does not fit on {name}: it needs {_bytes(weights)} for weights, {_bytes(buffers)} for "
                    f"the tensors of {requests} request(s) in flight and {_bytes(workspace)} to work in, and "
                    f"{_bytes(free)} are free. Place fewer ops there, keep fewer requests in flight, or free memory that "
                    "other processes use."
                )

    def _check_alike(self, order: Order) -> None:
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
        """Wait for what was launched, if the devices still answer, and release everything that it or the error holds."""
        cause: BaseException | None = error
        while cause is not None:  # frames hold intermediate results of the segment that ran out of memory, for example
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__cause__ or cause.__context__
        with contextlib.suppress(DeviceError, ExecutionError):  # the first error tells the story
            self._launcher.finish()
        self.close()


def _bytes(count: float) -> str:
    return format_quantity(count, "memory")


def _closed() -> ExecutionError:
    return ExecutionError("This executor is closed, by hand or by an earlier error: make a new one.")
