"""Launches of PyTorch on streams: one program, or several steps at once, recorded as CUDA graphs where that is possible."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch

from placeit.core.errors import DeviceError, NoRoomError, PlaceitError, first_line
from placeit.runtime.accelerators.recorder import Graphs, Recorder
from placeit.runtime.devices.accelerator import Inbox, LoadedProgram, Replayable, Step, Token
from placeit.runtime.devices.pytorch import failing_op

__all__ = ["DeviceErrors", "LaunchBatch", "PreparedProgram", "Queue", "can_time_graphs", "is_replayable", "launch_on"]


class DeviceErrors:
    """A context that turns errors of a device into DeviceError.

    It passes on a TimeoutError, which a signal handler may raise at any time.
    """

    def __init__(self, device: str) -> None:
        self._device = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if error is not None:
            self.told(error)

    def told(self, error: BaseException) -> None:
        """Raise a DeviceError if the error is the device's; return otherwise."""
        if isinstance(error, torch.OutOfMemoryError):
            first = ". ".join(str(error).split(". ")[:2])  # the size asked for; the rest is advice on PyTorch's allocator
            raise NoRoomError(
                f"{self._device} is out of memory ({first}). Place fewer ops there, keep fewer requests in flight, or free "
                "memory that other processes use."
            ) from error
        # such as torch.AcceleratorError, NotImplementedError for a missing kernel, or an index out of range
        if isinstance(error, Exception) and not isinstance(error, PlaceitError | TimeoutError):
            op = failing_op(error)
            raise DeviceError(f"{self._device} refused{f' op {op!r}' if op else ''}: {first_line(error)}") from error


class Queue:
    """A stream, with what is needed to launch on it.

    Attributes:
        of: its device and its priority.
        stream: ``torch.cuda.Stream``, ``torch.Stream`` or HostStream.
        errors: turns errors of its device into DeviceError.
        graphs: makes graphs of launches on it; None if that is not possible.
    """

    def __init__(self, of: tuple[int, int], stream: Any, errors: DeviceErrors, graphs: Graphs | None = None) -> None:
        self.of, self.stream, self.errors, self.graphs = of, stream, errors, graphs


class PreparedProgram:
    """A program that is ready to launch on a stream, with fixed inputs and outputs.

    The stream is the current one while it is launched, so that PyTorch allocates intermediate tensors from the stream's pool.
    """

    def __init__(self, queue: Queue, launch: Callable[[], object], graphs: Graphs | None) -> None:
        self._queue, self._go = queue, functools.partial(Recorder(graphs, queue.stream), functools.partial(_on, launch))

    def __call__(self, _inbox: Inbox, _token: Token) -> None:
        """Launch it. Raises DeviceError."""
        queue = self._queue
        try:
            launch_on(queue.stream, self._go)
        except Exception as error:
            queue.errors.told(error)
            raise


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
        self._steps = [(_launch_of(step), step.end) for step in steps]
        self._whole = queue.graphs is not None and can_time_graphs() and all(map(is_replayable, filter(None, self._programs)))
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
        try:
            if self._whole and self._go.refused:
                self._whole = False
                self._divide()
            launch_on(queue.stream, functools.partial(self._go, self._launch))
            self._end.record(queue.stream)
        except Exception as error:
            queue.errors.told(error)
            raise

    def _launch(self, stream: Any) -> None:
        self._begin.record(stream)
        end = self._end
        for self.at, (launch, event) in enumerate(self._steps):  # noqa: B020
            launch()
            if event is not end:
                event.record(stream)


def _launch_of(step: Step) -> Callable[[], object]:
    if step.program is None:
        return functools.partial(step.writes[0].copy_, step.reads[0], non_blocking=True)
    return functools.partial(step.program.launch, step.reads, step.writes)


def is_replayable(program: LoadedProgram) -> bool:
    """Return whether a program launches the same kernels at the same addresses each time."""
    return isinstance(program, Replayable) and program.replayable


def _on(launch: Callable[[], object], _stream: Any) -> None:
    launch()


def launch_on(stream: Any, launch: Callable[[], object]) -> None:
    """Launch in inference mode, with a stream as the current one of its device, and that as the current device."""
    if torch.is_inference_mode_enabled():
        with stream:
            launch()
    else:
        with stream, torch.inference_mode():
            launch()


@functools.cache
def can_time_graphs() -> bool:
    """Return whether this PyTorch has events that are recorded as parts of graphs (2.9 or newer)."""
    make: Any = torch.cuda.Event
    return "external" in inspect.signature(make.__new__).parameters
