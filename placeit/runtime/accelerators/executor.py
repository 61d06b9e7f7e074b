"""Run plans on streams of an accelerator: launch ahead, order launches by events, and never wait inside a request."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays
from placeit.core.arrays import GpuArray
from placeit.core.errors import DeviceError, ExecutionError, forget_frames
from placeit.core.narrowing import narrowed
from placeit.core.threads import Job, Worker
from placeit.runtime.accelerators.dispatcher import Dispatcher
from placeit.runtime.accelerators.launcher import Launcher
from placeit.runtime.accelerators.layout import RequestLayout
from placeit.runtime.accelerators.request_io import RequestIO
from placeit.runtime.accelerators.room import check_room
from placeit.runtime.accelerators.times import Times
from placeit.runtime.accelerators.work import PlanTasks
from placeit.runtime.active_run import ActiveRun
from placeit.runtime.calls import failure_of
from placeit.runtime.devices.accelerator import HOST, Accelerator
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.feed import Bell
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.spans import Labels, Moved, Ran

__all__ = ["StreamExecutor"]

_AHEAD = 2

T = TypeVar("T")


class StreamExecutor(PlanExecutor):
    """Runs a plan on the streams of an accelerator; one thread of the executor launches all of its work.

    Only this thread uses the accelerator while the executor is open. It also copies inputs and outputs, so that no signal
    handler interrupts a copy.

    Whenever a launch has ended, the scheduler decides which one is next, by its usual rule: the longest path first. The
    scheduler is told that a segment has ended as soon as fewer than ``ahead`` segments are queued on its device. So no stream
    becomes idle while the host decides: the next segment there is launched after it, and copies of its outputs are launched to
    wait for its event. A segment that reads such a copy is launched only when the copy has arrived. If it were launched
    before, its device could not run segments that become ready earlier.

    If all segments are on one device, there is nothing to decide: they are launched together when a request begins, as one
    graph if the accelerator can record them.

    Events around every launch record the times of segments and copies.

    Executors of one accelerator may run at the same time, each on its own streams.

    Args:
        work: tasks of the plan.
        accelerator: the devices to run it on.
        in_flight: maximum number of requests in flight at once.
        ahead: number of segments that may be queued on a device, and of tensors on a link, including the running one. If all
            segments are on one device, there is no limit for 2 and more.
        priority: priority of its streams: where work of several executors is ready, lower numbers start first; 0 for background
            work.

    Raises:
        DeviceError: weights and buffers do not fit into a device's free memory.
        ExecutionError: the accelerator is closed.
        UsageError: ``in_flight`` is below 1, or above 1024.
    """

    native = False  # Python launches the work of streams
    host_paced = ()  # everything is launched ahead

    def __init__(
        self, work: PlanTasks, accelerator: Accelerator, *, in_flight: int = 1, ahead: int = _AHEAD, priority: int = 0
    ) -> None:
        super().__init__(work.plan, in_flight, {name: work.values[v] for name, v in work.inputs.items()}, priority)
        self.work, self._accelerator = work, accelerator
        self.layout = RequestLayout(work, accelerator)
        self._usage_lock = accelerator.usage_lock()  # held while this executor uses the accelerator
        self._launcher = Launcher(self.layout, accelerator, priority)
        self._times, self._request_io = Times(self._launcher), RequestIO(self._launcher, self.inputs)
        self._ahead = ahead
        self._dispatcher: Dispatcher | None = None  # None after a run that failed: the next run makes one
        self._blanked: int | None = None  # the sentinel, if the buffers are blank
        self._inputs: dict[int, Mapping[str, Any]] = {}  # copied when the next run begins, by request
        self._out: Mapping[str, GpuArray] = {}  # arrays for outputs of the first request of the next run
        self._outputs: dict[int, dict[str, Any]] = {}  # of the last run, by request, until they are read
        with self._usage_lock:
            check_room(self.layout, accelerator, in_flight)
            try:
                self._launcher.make(in_flight, batched=ahead > 1)
                self._dispatcher = Dispatcher(self._launcher, ahead)
            except BaseException as error:
                self._drain_streams(error)
                self._launcher.release()
                self._accelerator.trim()
                raise
        self._worker = Worker("placeit launches", around=accelerator.launching)

    def checked(self, inputs: Arrays) -> dict[str, Any]:
        """Check inputs; see :meth:`RequestIO.checked`."""
        return self._request_io.checked(inputs)

    def adopted(self, name: str, array: GpuArray) -> GpuArray:
        """Prepare an array on a GPU for an output; see :meth:`RequestIO.adopted`."""
        return self._request_io.adopted(name, array)

    def on_device(self) -> dict[str, GpuArray]:
        """Allocate arrays for outputs on GPUs. Raises NoRoomError."""
        return self._request_io.on_device()

    def _execute(self, count: int, deadline: float) -> None:
        self._check_not_broken()
        self._drain(deadline)
        if self._waiting.locked():
            raise ExecutionError("A run was started inside another run of the same executor, perhaps by a signal handler.")
        run = self._prepare(count=count)
        try:
            with self._waiting:
                self._run = run
                self._start(run)
                self._wait(run, deadline)
        except BaseException:
            run.stop()
            raise
        if run.error is not None:
            raise run.error
        if run.stopped:
            raise ExecutionError("This executor was closed in the middle of a run: make a new one.")
        self.inner = run.end - run.begin

    @property
    def window(self) -> tuple[float, float]:
        """Begin and end of the last run on its streams, in seconds of ``time.perf_counter``."""
        return (self._run.begin, self._run.end) if isinstance(self._run, _Requests) else (0.0, 0.0)

    def _prepare(self, bell: Bell | None = None, count: int = 0) -> _Requests:
        self._blanked = None
        self._outputs.clear()
        return _Requests(count, bell)

    def _admit(self, run: ActiveRun, request: int, inputs: Mapping[str, Any], out: Mapping[str, GpuArray]) -> None:
        narrowed(_Requests, run).admitted.put((request, inputs, out))

    def _admit_no_more(self, run: ActiveRun) -> None:
        narrowed(_Requests, run).admitted.put(None)

    def _outcome(self, run: ActiveRun, request: int) -> tuple[dict[str, Any], Sequence[Ran], Sequence[Moved]]:
        return narrowed(_Requests, run).outcomes.pop(request)

    def _start(self, run: ActiveRun) -> None:
        self._worker.submit(functools.partial(self._launch, narrowed(_Requests, run)))

    def _launch(self, run: _Requests) -> None:
        """Run requests from begin to end. The launching thread calls this."""
        with self._lock:
            if run.stopped:
                return
            self._launcher.begin()
            run.mark_begun(self._launcher.cancel)
        try:
            with self._usage_lock:
                try:
                    self._run_all(run)
                except BaseException as error:
                    run.stop()
                    self._drain_streams(error)
                    raise
        except BaseException as error:  # noqa: BLE001 (it is raised in the thread that waits)
            failed = self._launcher.failed_request
            run.failed = failed if failed is not None else run.copying
            if run.error is None and not isinstance(error, _StoppedError):
                run.error = _failure(error)
        with self._lock:
            run.over.open()
            if run.bell is not None:
                run.bell.ring()
            ended = self._release_if_done()
        if ended:
            self._end_lanes()

    def _run_all(self, run: _Requests) -> None:
        self._check_accelerator()
        launcher = self._launcher
        dispatcher = self._dispatcher or Dispatcher(launcher, self._ahead)
        self._dispatcher = None  # until the run has ended without an error
        while self._inputs:
            request, inputs = self._inputs.popitem()
            self._request_io.put(request, inputs)
        out, self._out = self._out, {}
        for request in range(self.in_flight):
            self._request_io.write_to(request, {} if request else out)
        self._times.begin()
        run.begin = run.end = perf_counter()
        slots = min(run.waiting, len(launcher.slots))
        for request in range(slots):
            run.waiting -= 1
            run.in_flight.append(request)
            dispatcher.begin(request)
        while self._begin_admitted(run, dispatcher) or launcher.pending:
            token = launcher.next_report()
            if token is None or run.stopped:
                raise _StoppedError
            dispatcher.ended(*token)
            for request in self._take_ended(run):
                if run.waiting:
                    run.waiting -= 1
                    run.in_flight.append(request)
                    dispatcher.begin(request)
        self._outputs.update((request, self._request_io.get(request)) for request in range(slots))
        self._dispatcher = dispatcher

    def _take_ended(self, run: _Requests) -> list[int]:
        """Record the times and outcomes of requests that have ended since the last call, and return their numbers.

        A request may end at the report of another request that was ahead of it on a link.
        """
        slots = self._launcher.slots
        ended = [request for request in run.in_flight if slots[request].all_launched and not slots[request].pending]
        for request in ended:
            run.in_flight.remove(request)
            run.end = perf_counter()
            self._times.ended(request, slots[request], only=run.bell is not None)
            self._check_accelerator()
            if run.bell is not None:
                run.copying = request
                run.outcomes[request] = self._request_io.get(request), *self._times.last()
                run.copying = None
                run.ended.append(request)
                run.bell.ring()
        return ended

    def _begin_admitted(self, run: _Requests, dispatcher: Dispatcher) -> bool:
        """Begin the requests that were admitted, and return whether there were any. If nothing is in flight, wait for one.

        While requests are in flight, the caller asks again after the next report.
        """
        begun = False
        while run.admitting:
            try:
                what = run.admitted.get(block=not (begun or self._launcher.pending))
            except Empty:
                break
            if what is None:
                run.admitting = False
            else:
                run.copying, inputs, out = what
                self._request_io.put(run.copying, inputs)
                self._request_io.write_to(run.copying, out)
                request, run.copying = run.copying, None
                run.in_flight.append(request)
                self._times.refresh()
                dispatcher.begin(request)
                self._take_ended(run)  # if it launches nothing
                begun = True
        return begun

    def _check_accelerator(self) -> None:
        if self._accelerator.closed:
            raise ExecutionError(
                f"{', '.join(self._accelerator.names)} is closed, and nothing more can run there: open a new session."
            )

    def _drain_streams(self, error: BaseException) -> None:
        """Wait for all launches after an error, and discard their reports."""
        forget_frames(error)  # they may refer to intermediate tensors of a segment that ran out of memory
        self._launcher.cancel()
        with contextlib.suppress(DeviceError, ExecutionError):  # the first error is raised
            self._launcher.finish()
        self._launcher.renew()
        self._accelerator.trim()

    def _running(self, run: ActiveRun) -> list[str]:
        return self._launcher.describe_pending() if run.begun else []

    def _check_lanes(self) -> None:
        self._worker.check()

    def _release(self) -> None:
        with self._usage_lock:
            self._launcher.release()
            self._accelerator.trim()
        self._inputs.clear()
        self._outputs.clear()

    def _end_lanes(self) -> None:
        self._worker.close()

    def _write(self, inputs: Mapping[str, Any], request: int) -> None:
        self._inputs[request] = inputs

    def _write_to(self, out: Mapping[str, NDArray[Any] | GpuArray]) -> Collection[str]:
        self._out = {name: array for name, array in out.items() if isinstance(array, GpuArray)}
        return self._out

    @property
    def output_specs(self) -> Mapping[str, BufferSpec]:
        """Shape and type of each output of the model, by name."""
        return {name: self.work.values[value] for name, value in self.work.outputs.items()}

    def _read(self, request: int, given: Mapping[str, NDArray[Any]] = {}) -> dict[str, Any]:  # noqa: ARG002
        outputs = self._outputs.pop(request, None)
        return self._on_launching_thread(functools.partial(self._request_io.get, request)) if outputs is None else outputs

    def _on_launching_thread(self, what: Callable[[], T]) -> T:
        """Call a function on the launching thread while nothing runs, and return its result."""

        def alone() -> T:
            with self._usage_lock:
                return what()

        job = Job(alone)
        self._worker.submit(job)
        job.wait(self._check_lanes)
        return job.result()

    def _blank(self, sentinel: int) -> str | None:
        self._outputs.clear()
        found = self._on_launching_thread(functools.partial(self._fill, sentinel))
        if found is None:
            return None
        name = "the host" if found == HOST else self._accelerator.names[found]
        return f"memory of {name} was still written after everything had been reported to have ended"

    def _fill(self, sentinel: int) -> int | None:
        """Blank all buffers that a run writes; return a place whose memory was written since the last fill, or None.

        Buffers may share memory. It is blank for the first buffer that a run writes. Late writes within a run are not detected
        here, but by wrong outputs of the segments that read them.
        """
        layout, found = self.layout, None
        written = [b for launch in layout.launches for b in launch.writes]
        first = {layout.slot_of[b]: b for b in reversed(written)}
        for slot in self._launcher.slots:
            for b in first.values():
                if self._blanked is not None and not self._accelerator.is_blank(slot.views[b], self._blanked):
                    found = layout.places[b]
            for b in reversed(written):
                self._accelerator.blank(slot.views[b], sentinel)
        self._blanked = sentinel
        return found

    def last_run(self) -> list[tuple[int, Sequence[Ran], Sequence[Moved]]]:
        """Return the segments and transfers of each request of the last call, with its number among those in flight.

        Copies between the host and a device are on separate links. A simulation does not have them.
        """
        return self._times.all()

    @functools.cached_property
    def labels(self) -> Labels:
        """Names of its segments, tensors and devices."""
        work = self.work
        made = [work.tasks[s].name for s in work.plan.makers]
        segments = tuple((task.device, task.ops) for task in work.tasks)
        return Labels(work.plan.problem.device_names, segments, (*made, *work.inputs, *work.outputs))

    def segment_seconds(self, *, last: bool = False) -> NDArray[np.float64]:
        """Return each segment's median seconds over many runs, or its last ones, ``float64[S]``; zero if it runs nothing."""
        return self._times.segment_seconds(last=last)


class _Requests(ActiveRun):
    """A run of a given number of requests, or of requests that are admitted one by one.

    Attributes:
        begin: time of the call, then of the begin on its streams, in seconds of ``time.perf_counter``.
        end: time at which the last request ended, in seconds of ``time.perf_counter``.
    """

    def __init__(self, count: int, bell: Bell | None) -> None:
        super().__init__(bell)
        self.begin, self.end = perf_counter(), 0.0
        self.waiting, self.admitting = count, bell is not None
        self.in_flight: list[int] = []
        self.admitted: SimpleQueue[tuple[int, Mapping[str, Any], Mapping[str, GpuArray]] | None] = SimpleQueue()
        # outputs, segments and transfers of requests that have ended
        self.outcomes: dict[int, tuple[dict[str, Any], Sequence[Ran], Sequence[Moved]]] = {}
        self.copying: int | None = None  # the request whose inputs or outputs are being copied


def _failure(error: BaseException) -> ExecutionError:
    """Return the error of a run for its caller."""
    if isinstance(error, DeviceError):  # its message names the segment or the device
        failure = ExecutionError(str(error))
        failure.__cause__ = error
        failure.device = error.device
        return failure
    return error if isinstance(error, ExecutionError) else failure_of("The run failed", error)


class _StoppedError(Exception):
    """The run was stopped, and its caller no longer waits for it."""
