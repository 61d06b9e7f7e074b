"""Runs plans on the streams of an accelerator: launched ahead, ordered by events, and never waiting inside a request."""

from __future__ import annotations

import contextlib
import functools
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from time import perf_counter
from types import TracebackType
from typing import Literal, Self, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from placeit.errors import DeviceError, ExecutionError, UsageError
from placeit.runtime.scheduler import Done, Instruction, Scheduler, Start
from placeit.runtime.streams.accelerator import HOST, Accelerator, Event, Inbox, Memory, Replay, Stream, StreamProgram, View
from placeit.runtime.streams.clocks import Clocks, Mark
from placeit.runtime.streams.layout import Layout
from placeit.runtime.streams.work import Work
from placeit.units import format_quantity

__all__ = ["Order", "StreamExecutor"]

Order: TypeAlias = Literal["dynamic", "static", "graph"]

_AHEAD = 2


class _Slot:
    """One request in flight: its memory, its events, and how far it has got."""

    def __init__(self, layout: Layout, accelerator: Accelerator, memory: list[Memory]) -> None:
        for place, nbytes in layout.slots:
            memory.append(accelerator.allocate(place, nbytes))
        mine = memory[len(memory) - len(layout.slots) :]
        self.views: list[View] = [
            accelerator.view(mine[slot], spec) for slot, spec in zip(layout.slot_of, layout.specs, strict=True)
        ]
        self.events: list[Event] = [accelerator.event(layout.streams[launch.stream]) for launch in layout.launches]
        self.marks: dict[int, Mark] = {}  # what this request has launched
        self.flying = 0  # how much of that has to be reported and has not been
        self.decided = True  # whether nothing is left to launch


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
        order: ``dynamic``, ``static`` or ``graph``.
        ahead: for ``dynamic``, how many segments may be queued on a device, and tensors on a link, the running one included.

    Raises:
        DeviceError: weights and buffers do not fit into a device's free memory, or ``graph`` is not available.
        UsageError: an argument out of its range.
    """

    def __init__(
        self, work: Work, accelerator: Accelerator, *, requests: int = 1, order: Order = "dynamic", ahead: int = _AHEAD
    ) -> None:
        if requests < 1 or ahead < 1:
            raise UsageError(f"'requests' and 'ahead' must be at least 1; got {requests} and {ahead}.")
        if order not in get_args(Order):
            raise UsageError(f"'order' is '{order}'; it must be one of {', '.join(get_args(Order))}.")
        self.work, self._accelerator, self._ahead = work, accelerator, ahead
        self.layout = layout = Layout(work, accelerator.can_peer, fixed=order != "dynamic")
        self._order: Order = order if layout.launches else "static"  # nothing can be captured where nothing runs
        self._check_memory(requests)
        self._turn = threading.RLock()  # of the threads that call
        self._memory: list[Memory] = []
        self._loaded: list[StreamProgram] = []
        self._inbox: Inbox = SimpleQueue()
        self._graphs: list[Replay] = []
        self._slots: list[_Slot] = []
        self._streams: list[Stream] = []
        self._flying = 0  # reports that are still to come
        self._closed = False
        try:
            self._load()
            self._slots = [_Slot(layout, accelerator, self._memory) for _ in range(requests)]
            for slot in self._slots:
                for value in work.inputs.values():
                    spec = work.values[value]
                    accelerator.write(slot.views[layout.buffer_of[value, HOST]], np.zeros(spec.shape, spec.dtype))
            self._streams = [
                accelerator.stream(device, layout.streams[:i].count(device)) for i, device in enumerate(layout.streams)
            ]
            self._clocks = Clocks(len(layout.streams))
            if self._order == "dynamic":
                self._prepare_dynamic()
            else:
                self._prepare_static()
            if self._order == "graph":
                self._capture()
        except BaseException:
            self._abandon()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release memory and weights. Closing twice does nothing more."""
        if self._closed:
            return
        self._closed = True
        self._graphs.clear()
        self._slots = []
        for memory in self._memory:
            self._accelerator.free(memory)
        self._memory.clear()
        while self._loaded:
            self._loaded.pop().unload()
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
            value, spec = np.asarray(given), self.work.values[wanted[name]]
            if value.shape != spec.shape or not np.can_cast(value.dtype, spec.dtype, "same_kind"):
                raise UsageError(
                    f"The input '{name}' is {value.dtype} {list(value.shape)}; the model wants {spec.dtype} {list(spec.shape)}."
                )
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
            if self._closed:
                raise ExecutionError("This executor is closed, by hand or by an earlier error: make a new one.")
            begin = perf_counter()
            try:
                self._waiting = count - min(count, len(self._slots))
                for request in range(count - self._waiting):
                    self._begin(request)
                while self._flying:
                    self._notice(*self._accelerator.take(self._inbox))
            except BaseException as error:
                self._abandon()
                _let_go(error)
                if isinstance(error, DeviceError):
                    raise ExecutionError(f"{error} The run has ended, and all of its memory is released.") from error
                raise
            return perf_counter() - begin

    def _host(self, value: int, request: int) -> View:
        if self._closed:
            raise ExecutionError("This executor is closed, by hand or by an earlier error: make a new one.")
        return self._slots[request].views[self.layout.buffer_of[value, HOST]]

    # -- requests ------------------------------------------------------------------------------------------------------

    def _begin(self, request: int) -> None:
        slot = self._slots[request]
        slot.marks.clear()
        if self._order == "dynamic":
            slot.decided = False
            for n in self.layout.brings:
                self._launch(request, n)
            self._follow(self._scheduler.begin(request))
        elif self._order == "static":
            self._launch_all(request)
            self._expect(request, self.layout.ends)
        else:
            self._graphs[request]()
            last = self.layout.ends[0]
            stream = self._streams[0]
            self._accelerator.record(slot.events[last], stream)
            self._accelerator.notify(stream, slot.events[last], self._inbox, (request, last))
            slot.flying, self._flying = 1, self._flying + 1

    def _notice(self, request: int, n: int) -> None:
        """Take the report that a launch has ended, and launch what that allows."""
        slot = self._slots[request]
        slot.flying -= 1
        self._flying -= 1
        if self._order == "dynamic":
            stream = self.layout.launches[n].stream
            self._clocks.ended(slot.marks[n])
            self._queued[stream] -= 1
            held = self._held[stream]
            if (request, n) in held:
                self._follow(held.pop((request, n))())
            if n in self._arrives:
                self._follow(self._scheduler.transfer_finished(request, *self._arrives[n]))
            while held and self._queued[stream] < self._ahead:
                self._follow(held.pop(next(iter(held)))())
        if slot.decided and not slot.flying and self._waiting:
            self._waiting -= 1
            self._begin(request)

    def _follow(self, instructions: list[Instruction]) -> None:
        scheduler, layout = self._scheduler, self.layout
        todo = deque(instructions)
        while todo:
            step = todo.popleft()
            if isinstance(step, Start):
                run = layout.runs[step.op]
                if run is None:
                    todo.extend(scheduler.op_finished(step.request, step.op))
                    continue
                self._launch(step.request, run)
                for n in layout.takes[step.op]:
                    self._launch(step.request, n)
                ended = functools.partial(scheduler.op_finished, step.request, step.op)
                todo.extend(self._release(step.request, run, ended))
            elif isinstance(step, Done):
                self._slots[step.request].decided = True
            else:
                legs = layout.moves.get((step.tensor, step.dst))
                if legs is None:
                    todo.extend(scheduler.transfer_finished(step.request, step.tensor, step.dst))
                    continue
                for n in legs:
                    self._launch(step.request, n)
                sent = functools.partial(scheduler.transfer_sent, step.request, step.tensor, step.dst)
                todo.extend(self._release(step.request, legs[-1], sent))

    def _release(self, request: int, n: int, event: Callable[[], list[Instruction]]) -> list[Instruction]:
        """Tell the scheduler that a stream can take more than this launch: now, or when less is queued there."""
        stream = self.layout.launches[n].stream
        if self._queued[stream] < self._ahead:
            return event()
        self._held[stream][request, n] = event
        return []

    # -- launches ------------------------------------------------------------------------------------------------------

    def _launch(self, request: int, n: int) -> None:
        """Launch one thing behind what it depends on."""
        slot, launch, accelerator = self._slots[request], self.layout.launches[n], self._accelerator
        mark, waits = self._clocks.launch(n, launch.stream, [slot.marks[m] for m in launch.after])
        slot.marks[n] = mark
        stream, event = self._streams[launch.stream], slot.events[n]
        for wait in waits:
            accelerator.wait(stream, slot.events[wait.launch])
        self._start(slot, n)
        accelerator.record(event, stream)
        if n in self._reported:
            self._queued[launch.stream] += 1
            self._expect(request, [n])

    def _launch_all(self, request: int) -> None:
        """Launch a whole request in the fixed order."""
        slot, accelerator = self._slots[request], self._accelerator
        for n, (launch, waits) in enumerate(zip(self.layout.launches, self._waits, strict=True)):
            stream = self._streams[launch.stream]
            for wait in waits:
                accelerator.wait(stream, slot.events[wait])
            self._start(slot, n)
            if n in self._recorded:
                accelerator.record(slot.events[n], stream)

    def _start(self, slot: _Slot, n: int) -> None:
        launch, views = self.layout.launches[n], slot.views
        stream = self._streams[launch.stream]
        inputs, outputs = [views[b] for b in launch.reads], [views[b] for b in launch.writes]
        try:
            if launch.program is None:
                self._accelerator.copy(stream, inputs[0], outputs[0])
            else:
                self._accelerator.launch(stream, launch.program, inputs, outputs)
        except DeviceError as error:
            device = self._accelerator.names[self.layout.streams[launch.stream]]
            what = "Copying what is made by" if launch.program is None else "The segment that starts with"
            raise DeviceError(f"{what} '{launch.name}' failed on {device}: {error}") from error

    def _expect(self, request: int, launches: list[int]) -> None:
        slot = self._slots[request]
        for n in launches:
            stream = self._streams[self.layout.launches[n].stream]
            self._accelerator.notify(stream, slot.events[n], self._inbox, (request, n))
            slot.flying, self._flying = slot.flying + 1, self._flying + 1

    def _prepare_dynamic(self) -> None:
        work, layout = self.work, self.layout
        self._scheduler = Scheduler(work.plan.problem, work.plan.placement, links="channel", queue="priority")
        self._clocks = Clocks(len(layout.streams))
        self._arrives = {legs[-1]: move for move, legs in layout.moves.items()}
        self._reported = {n for n in (*layout.runs, *sum(layout.takes, ())) if n is not None} | self._arrives.keys()
        self._queued = [0] * len(layout.streams)  # launches that have not been reported, by stream
        self._held: list[dict[tuple[int, int], Callable[[], list[Instruction]]]] = [{} for _ in layout.streams]

    def _prepare_static(self) -> None:
        layout, marks = self.layout, list[Mark]()
        clocks = Clocks(len(layout.streams))
        self._waits: list[list[int]] = []
        for n, launch in enumerate(layout.launches):
            mark, waits = clocks.launch(n, launch.stream, [marks[m] for m in launch.after])
            marks.append(mark)
            self._waits.append([wait.launch for wait in waits])
        self._recorded = {n for waits in self._waits for n in waits} | set(layout.ends)

    def _capture(self) -> None:
        """Run each request once, so that libraries have set themselves up, then capture it."""
        for request in range(len(self._slots)):
            launches = functools.partial(self._launch_all, request)
            launches()
            self._accelerator.finish(self._streams)
            self._graphs.append(self._accelerator.capture(self._streams, launches))

    # -- memory --------------------------------------------------------------------------------------------------------

    def _check_memory(self, requests: int) -> None:
        for device, name in enumerate(self._accelerator.names):
            programs = [task.program for task in self.work.tasks if task.device == device and task.program is not None]
            weights = sum(program.weight_bytes for program in programs)
            buffers = requests * self.layout.bytes_on(device)
            workspace = max((program.workspace_bytes for program in programs), default=0)
            free, need = self._accelerator.free_bytes(device), weights + buffers + workspace
            if need > free:
                raise DeviceError(
                    f"The plan does not fit on {name}: it needs {_bytes(weights)} for weights, {_bytes(buffers)} for "
                    f"the tensors of {requests} request(s) in flight and {_bytes(workspace)} to work in, and "
                    f"{_bytes(free)} are free. Place fewer ops there, keep fewer requests in flight, or free memory that "
                    "other processes use."
                )

    def _load(self) -> None:
        for task in self.work.tasks:
            if task.program is not None:
                try:
                    task.program.load(self._accelerator.place(task.device))
                except DeviceError as error:
                    name = self._accelerator.names[task.device]
                    raise DeviceError(
                        f"The weights of the segment that starts with '{task.name}' cannot be brought to {name}: {error}"
                    ) from error
                self._loaded.append(task.program)

    def _abandon(self) -> None:
        """Wait for what was launched, if the devices still answer, and release everything."""
        with contextlib.suppress(DeviceError):  # the first error tells the story
            self._accelerator.finish(self._streams)
        self._flying = 0
        self.close()


def _bytes(count: float) -> str:
    return format_quantity(count, "memory")


def _let_go(error: BaseException | None) -> None:
    """Clear what the frames of an error hold: intermediate results of the segment that ran out of memory, for example."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
