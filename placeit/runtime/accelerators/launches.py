"""Launches on streams: one program, or several steps at once, recorded as CUDA graphs where that is possible."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from placeit.core.errors import DeviceError, NoRoomError, PlaceitError, first_line
from placeit.runtime.accelerators.library import StreamLibrary
from placeit.runtime.accelerators.recorder import Graphs, Recorder
from placeit.runtime.devices.accelerator import Inbox, LoadedProgram, Replayable, Step, Token
from placeit.runtime.devices.failing import failing_op

__all__ = ["DeviceErrors", "LaunchBatch", "PreparedProgram", "Queue", "is_replayable"]


class DeviceErrors:
    """A context that turns errors of a device into DeviceError.

    It passes on a TimeoutError, which a signal handler may raise at any time.

    Args:
        device: the name of the device.
        out_of_memory: the error that means that it has no more memory.
    """

    def __init__(self, device: str, out_of_memory: type[BaseException]) -> None:
        self._device, self._out_of_memory = device, out_of_memory

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if error is not None:
            self.told(error)

    def told(self, error: BaseException) -> None:
        """Raise a DeviceError if the error is the device's; return otherwise."""
        if isinstance(error, self._out_of_memory):
            first = ". ".join(str(error).split(". ")[:2])  # the size asked for; the rest is advice on the allocator
            raise NoRoomError(
                f"{self._device} is out of memory ({first}). Place fewer ops there, keep fewer requests in flight, or free "
                "memory that other processes use."
            ) from error
        # such as torch.AcceleratorError, NotImplementedError for a missing kernel, or an index out of range
        if isinstance(error, Exception) and not isinstance(error, PlaceitError | TimeoutError):
            op = failing_op(error)
            raise DeviceError(f"{self._device} refused{f' op {op}' if op else ''}: {first_line(error)}") from error


class Queue:
    """A stream, with what is needed to launch on it.

    Attributes:
        of: its device and its priority.
        stream: the library's stream, or a HostStream.
        library: the library.
        errors: turns errors of its device into DeviceError.
        graphs: makes graphs of launches on it; None if that is not possible.
    """

    def __init__(
        self, of: tuple[int, int], stream: Any, library: StreamLibrary, errors: DeviceErrors, graphs: Graphs | None = None
    ) -> None:
        self.of, self.stream, self.library, self.errors, self.graphs = of, stream, library, errors, graphs

    def launch(self, launch: Callable[[], object]) -> None:
        """Call a function that launches something, with the stream as the current one. Raises DeviceError."""
        try:
            self.library.launch_on(self.stream, launch)
        except Exception as error:
            self.errors.told(error)
            raise


class PreparedProgram:
    """A program that is ready to launch on a stream, with fixed inputs and outputs.

    The stream is the current one while it is launched, so that intermediate tensors are allocated from the stream's pool.
    """

    def __init__(self, queue: Queue, launch: Callable[[], object], graphs: Graphs | None) -> None:
        self._queue, self._go = queue, functools.partial(Recorder(graphs, queue.stream), functools.partial(_on, launch))

    def __call__(self, _inbox: Inbox, _token: Token) -> None:
        """Launch it. Raises DeviceError."""
        self._queue.launch(self._go)


class LaunchBatch:
    """Steps on a stream, launched one behind the other.

    Attributes:
        at: the step that was launched last.
        recorders: one for the whole batch, or one for each program that can be replayed.
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
        """Launch the steps. The last event is outside the graph, so that threads can wait for it as soon as this returns."""
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
    """Return whether a program launches the same kernels at the same addresses each time."""
    return isinstance(program, Replayable) and program.replayable


def _on(launch: Callable[[], object], _stream: Any) -> None:
    launch()
