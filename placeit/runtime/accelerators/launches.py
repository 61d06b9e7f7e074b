"""Launches on streams of one program or of several steps, which are recorded as CUDA graphs if possible."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from placeit.core.errors import DeviceError, NoRoomError, PlaceitError, first_line
from placeit.runtime.accelerators.library import StreamLibrary
from placeit.runtime.accelerators.recorder import Recorder, StreamGraphs
from placeit.runtime.devices.accelerator import LoadedProgram, Prepared, Replayable, Step
from placeit.runtime.devices.failing import failing_op

__all__ = ["DeviceErrors", "LaunchBatch", "Queue", "is_replayable", "prepared_program"]


class DeviceErrors:
    """A context that converts errors of a device to DeviceError.

    It does not convert a TimeoutError, which a signal handler may raise at any time.

    Args:
        device: name of the device.
        out_of_memory: type of the error that means that the device is out of memory.
    """

    def __init__(self, device: str, out_of_memory: type[BaseException]) -> None:
        self._device, self._out_of_memory = device, out_of_memory

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if error is not None:
            self.raise_for(error)

    def raise_for(self, error: BaseException) -> None:
        """Raise a DeviceError for an error of the device; return for any other error."""
        if isinstance(error, self._out_of_memory):
            first = ". ".join(str(error).split(". ")[:2])  # the requested size; the rest is advice on the allocator
            raise NoRoomError(
                f"{self._device} is out of memory ({first}). Place fewer ops there, keep fewer requests in flight, or free "
                "memory that other processes use."
            ) from error
        # such as torch.AcceleratorError, NotImplementedError for a missing kernel, or an index out of range
        if isinstance(error, Exception) and not isinstance(error, PlaceitError | TimeoutError):
            op = failing_op(error)
            raise DeviceError(f"{self._device} refused{f' op {op}' if op else ''}: {first_line(error)}") from error


@dataclass(eq=False)
class Queue:
    """A stream of a device, with its library and the conversion of its errors.

    Attributes:
        key: numbers of its device and its priority.
        stream: the library's stream, or a HostStream.
        library: the library.
        errors: converts errors of its device to DeviceError.
        graphs: records graphs of launches on it; None if that is not possible.
    """

    key: tuple[int, int]
    stream: Any
    library: StreamLibrary
    errors: DeviceErrors
    graphs: StreamGraphs | None = None

    def launch(self, launch: Callable[[], object]) -> None:
        """Call a function that launches something, with the stream as the current one. Raises DeviceError."""
        try:
            self.library.launch_on(self.stream, launch)
        except Exception as error:
            self.errors.raise_for(error)
            raise


def prepared_program(queue: Queue, launch: Callable[[], object], graphs: StreamGraphs | None) -> Prepared:
    """Return a function that launches a program on a stream, with fixed inputs and outputs.

    The stream is the current stream during the launch, so that intermediate tensors are allocated from its pool.
    """
    recorded = functools.partial(Recorder(graphs, queue.stream), functools.partial(_on, launch))
    return lambda _inbox, _token: queue.launch(recorded)


class LaunchBatch:
    """Steps that are launched in order on a stream.

    Attributes:
        at: number of the step that was launched last.
        recorders: a recorder of the whole batch, or a recorder of each program that can be replayed.
    """

    def __init__(self, queue: Queue, begin: Any, steps: Sequence[Step]) -> None:
        self.at = 0
        self._queue, self._begin, self._end = queue, begin, steps[-1].end
        self._programs = [step.program for step in steps]
        self._steps = [(_launch_of(queue.library, step), step.end) for step in steps]
        replayable = all(map(is_replayable, filter(None, self._programs)))
        self._whole = queue.graphs is not None and queue.library.times_graphs and replayable
        self._go = Recorder(queue.graphs if self._whole else None, queue.stream)
        self.recorders = [self._go]
        if not self._whole:
            self._divide()

    def _divide(self) -> None:
        """Record each program that can be replayed separately."""
        queue = self._queue
        self._go, self.recorders = Recorder(None, queue.stream), []
        for n, (program, (launch, end)) in enumerate(zip(self._programs, self._steps, strict=True)):
            if queue.graphs is not None and program is not None and is_replayable(program):
                self.recorders.append(Recorder(queue.graphs, queue.stream))
                self._steps[n] = functools.partial(self.recorders[-1], functools.partial(_on, launch)), end

    def start(self) -> None:
        """Launch the steps. The last event is not in the graph, so that threads can wait for it as soon as this returns."""
        queue = self._queue
        if self._whole and self._go.refused:
            self._whole = False
            self._divide()
        queue.launch(functools.partial(self._go, self._launch))
        with queue.errors:
            self._end.record(queue.stream)

    def _launch(self, stream: Any) -> None:
        self._begin.record(stream)
        end = self._end
        for self.at, (launch, event) in enumerate(self._steps):  # noqa: B020
            launch()
            if event is not end:
                event.record(stream)


def _launch_of(library: StreamLibrary, step: Step) -> Callable[[], object]:
    if step.program is None:
        return functools.partial(library.copy, step.reads[0], step.writes[0])
    return functools.partial(step.program.launch, step.reads, step.writes)


def is_replayable(program: LoadedProgram) -> bool:
    """Return whether all launches of a program launch the same kernels at the same addresses."""
    return isinstance(program, Replayable) and program.replayable


def _on(launch: Callable[[], object], _stream: Any) -> None:
    launch()
