"""The interface between accelerators and the stream executor: in-order streams, events between them, and memory.

A stream belongs to the executor that opened it, so that work of an executor never queues behind the work of another executor.
Streams, events, memory and views are opaque here: each accelerator has types for them. Only four calls wait:
:meth:`Accelerator.take` and :meth:`Accelerator.finish`; :meth:`Accelerator.blank` and :meth:`Accelerator.is_blank`, which are
for output checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError, PlaceitError
from placeit.runtime.devices.base import BufferSpec, SegmentSource
from placeit.runtime.spans import HOST

__all__ = [
    "HOST",
    "Accelerator",
    "Batch",
    "Event",
    "Inbox",
    "LoadedProgram",
    "Memory",
    "Prepared",
    "Replayable",
    "Step",
    "Stream",
    "StreamProgram",
    "Streams",
    "Token",
    "View",
]

Stream: TypeAlias = Any
"""An in-order queue of one device: its launches run in order."""
Event: TypeAlias = Any
"""A point in a stream that other streams can wait for."""
Memory: TypeAlias = Any
"""Bytes on a device, or pinned bytes on the host."""
View: TypeAlias = Any
"""A tensor in memory."""

Token: TypeAlias = tuple[int, int]
"""Number of a request, and number of one of its launches."""

Prepared: TypeAlias = Callable[["Inbox", Token], None]
"""A program that is ready to be launched on a stream, with fixed inputs and outputs.

A call raises DeviceError, for example if memory runs out. A device that computes in the host's memory reports later failures to
the inbox, and skips the program if the inbox is over. Launches with other inboxes continue.
"""


class Inbox:
    """Queue to which accelerators report the ends and failures of one executor's launches. Any thread may use it.

    Attributes:
        failure: the first launch that failed on its stream, and its error; None if none failed.
        over: whether the run is over. Work that has not started is then skipped if possible.
    """

    def __init__(self) -> None:
        self.failure: tuple[Token, PlaceitError] | None = None
        self.over = False
        self._tokens: SimpleQueue[Token | None] = SimpleQueue()

    def put(self, token: Token) -> None:
        """Report that a launch has ended."""
        self._tokens.put(token)

    def fail(self, token: Token, error: BaseException) -> None:
        """Report that a launch has failed, before the end of anything that depends on it is reported."""
        if not isinstance(error, PlaceitError):
            failure = DeviceError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            error = failure
        if self.failure is None:
            self.failure = token, error
        self.over = True
        self._tokens.put(None)

    def cancel(self) -> None:
        """Skip work that has not started, and end the wait for the next token."""
        self.over = True
        self._tokens.put(None)

    def get(self, timeout: float | None) -> Token | None:
        """Return the next token; None after ``timeout`` seconds or :meth:`cancel`. Raises the error of a failed launch."""
        try:
            token = self._tokens.get(timeout=None if timeout is None else max(0.0, timeout))
        except Empty:
            token = None
        if self.failure is not None:
            raise self.failure[1]
        return token


class LoadedProgram(Protocol):
    """A program with its weights on a device, which are freed when it is garbage-collected."""

    def launch(self, inputs: Sequence[View], outputs: Sequence[View]) -> None:
        """Queue the computation on the current stream, without waiting: read the inputs, and fill the outputs."""


@runtime_checkable
class Replayable(Protocol):
    """A program or a module whose launches may be recorded once and replayed."""

    @property
    def replayable(self) -> bool:
        """True if every launch at the same addresses launches the same kernels."""


class Step(NamedTuple):
    """A launch of a batch.

    Attributes:
        program: what to launch; None for a copy.
        reads: tensors that it reads.
        writes: tensors that it fills.
        end: event to record after it.
    """

    program: LoadedProgram | None
    reads: Sequence[View]
    writes: Sequence[View]
    end: Event


class Batch(Protocol):
    """Launches that follow each other on one stream, without a decision of the host between them."""

    @property
    def at(self) -> int:
        """Number of the step that was launched last; after an error, the step that failed."""

    def start(self) -> None:
        """Launch all steps, and record the event of each step after it. Raises DeviceError."""


class StreamProgram(Protocol):
    """A segment that can be launched on streams. Methods take devices as :meth:`Accelerator.place` returns them."""

    def workspace_bytes(self, enough: float) -> int:
        """Return the bytes of device memory that a launch needs while it runs, besides its inputs and outputs.

        Args:
            enough: bytes up to which an upper bound may be returned instead.
        """

    def weight_bytes(self, place: object) -> int:
        """Return the bytes of device memory that :meth:`load` would take now."""

    def load(self, place: object) -> LoadedProgram:
        """Load the weights onto a device. Raises DeviceError."""


class Accelerator(Protocol):
    """Devices of one kind, numbered as in the cluster of the plans that they run.

    Every error of a device is a DeviceError that names it. Threads may use an accelerator at the same time.
    """

    @property
    def names(self) -> Sequence[str]:
        """Name of each device."""

    @property
    def closed(self) -> bool:
        """True if :meth:`close` has been called, after which nothing new may begin."""

    def usage_lock(self) -> AbstractContextManager[object]:
        """Return a new re-entrant lock to hold while the accelerator is used. Raises ExecutionError if closed."""

    def launching(self) -> AbstractContextManager[object]:
        """Return a context that makes launches faster. Each thread that launches enters it once."""

    def close(self) -> None:
        """Wait until no lock of :meth:`usage_lock` is held, and stop every thread. A second call has no effect."""

    def memory(self, device: int) -> int:
        """Return the memory in which a device computes: ``HOST``, or the number of the first device that computes in it.

        Nothing is copied between devices with one memory, such as parts of a GPU; their streams wait for each other's events.

        On a device that computes in the host's memory, a launch is a job of a thread. Streams of other devices cannot wait for
        the job, so work that depends on it may be launched there only when it has ended.
        """

    def place(self, device: int) -> object:
        """Return the key of a device's memory for programs: weights that are loaded there serve all devices with this key."""

    def can_peer(self, src: int, dst: int) -> bool:
        """Return whether one device can write the memory of another; if not, copies go through pinned host memory."""

    def free_bytes(self, device: int) -> float:
        """Return the bytes of a device's memory that can be allocated now."""

    def allocate(self, device: int, nbytes: int) -> Memory:
        """Allocate memory of a device, or pinned memory of the host. Raises DeviceError."""

    def free(self, memory: Memory) -> None:
        """Free memory. Nothing that uses it may still be running, and no view of it may be used again."""

    def trim(self) -> None:
        """Return unused memory that the accelerator caches to the driver."""

    def view(self, memory: Memory, spec: BufferSpec) -> View:
        """Return the start of a memory block as a tensor."""

    def write(self, view: View, value: NDArray[np.generic]) -> None:
        """Fill a tensor in host memory, from the host. Nothing that uses it may be running."""

    def read(self, view: View) -> NDArray[np.generic]:
        """Copy a tensor in host memory, to the host, in its logical shape. Nothing that writes it may be running."""

    def host_view(self, view: View, owner: object) -> NDArray[np.generic]:
        """Return a tensor in host memory as an array, without a copy where NumPy has its type. Nothing may be writing it.

        Args:
            view: the tensor.
            owner: the object that owns the memory; the array keeps it alive.
        """

    def adopt(self, array: object) -> tuple[object, View, Event]:
        """Use an array of any library that is on a GPU, as long as the result exists.

        Returns:
            The GPU as :meth:`place` returns it, the array as a tensor, and an event that happens when all work has ended that
            the calling thread has launched on the array so far.

        Raises:
            RuntimeError, TypeError, ValueError, BufferError: the array cannot be used without a copy.
        """

    def array(self, view: View) -> object:
        """Return a tensor in the memory of a device as an array for callers, which keeps the memory alive."""

    def blank(self, view: View, sentinel: int) -> None:
        """Fill a tensor in any memory with NaN, or with the sentinel if its type has no NaN, immediately. Nothing may run."""

    def is_blank(self, view: View, sentinel: int) -> bool:
        """Return whether a tensor in any memory holds what :meth:`blank` fills it with. Nothing may be running."""

    def open_stream(self, device: int, priority: int = 0) -> Stream:
        """Open a stream of a device for one executor. A device of the host's memory has one stream, for all.

        Args:
            device: its number.
            priority: of two launches that are ready, the one on the stream with the lower number starts first; 0 for background
                work.

        Raises:
            DeviceError: the device refuses.
        """

    def close_stream(self, stream: Stream) -> None:
        """Return a stream on which nothing runs any more."""

    def event(self, device: int) -> Event:
        """Make an event, with timing, for the streams of one device."""

    def elapsed(self, first: Event, second: Event) -> float:
        """Return the seconds between two events of one device, both of which have happened."""

    def record(self, event: Event, stream: Stream) -> None:
        """Record the event after everything launched on the stream so far."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Delay later launches on the stream until the work before the event, as last recorded, has ended."""

    def prepare(self, stream: Stream, program: LoadedProgram, inputs: Sequence[View], outputs: Sequence[View]) -> Prepared:
        """Make a program ready to be launched on a stream, any number of times, with the same inputs and outputs."""

    def batch(self, stream: Stream, begin: Event, steps: Sequence[Step]) -> Batch:
        """Make steps ready to be launched in order, any number of times, on a stream of a device with separate memory.

        Args:
            stream: the stream.
            begin: event to record before the first step.
            steps: at least one; copies are between the device and the host.
        """

    def copy(self, stream: Stream, source: View, destination: View, destination_stream: Stream | None = None) -> None:
        """Launch a copy on a stream; between two memories of devices, on a stream of the source.

        Args:
            stream: the stream to copy on.
            source: the tensor to copy.
            destination: the tensor to fill.
            destination_stream: a stream of the destination device that is used only for copies from this source, as copies that
                share it wait for each other. None for a copy from or to the host.
        """

    def notify(self, stream: Stream, event: Event, inbox: Inbox, token: Token) -> None:
        """Put a token into an inbox when the event, last recorded in the stream, has happened. This delays no stream.

        No Python may run in a callback of the driver: a driver's thread that waits for the interpreter may hold up what the
        interpreter waits for, and a garbage collection there could call the driver, which is not allowed in a callback.
        """

    def take(self, inbox: Inbox) -> Token | None:
        """Wait for the next token; None if the inbox is over.

        Raises:
            DeviceError: a launch or a device failed, so that the token may never come.
        """

    def finish(self, stream: Stream) -> None:
        """Wait for everything launched on a stream. Raises DeviceError if its device has failed and runs nothing any more."""


@dataclass(frozen=True)
class Streams:
    """The accelerator of a cluster whose devices are driven through streams, and the compiler of its programs.

    Attributes:
        accelerator: the devices, numbered as in the cluster.
        compile: compiles a segment to a program that every device can load. Raises DeviceError.
    """

    accelerator: Accelerator
    compile: Callable[[SegmentSource], StreamProgram]
