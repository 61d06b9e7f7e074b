"""What an accelerator is to the stream executor: in-order streams, events between them, and memory.

Streams, events, memory and views are opaque here; each accelerator has its own. Nothing but :meth:`Accelerator.take`,
:meth:`Accelerator.finish` and what is for output checks, :meth:`Accelerator.blank` and :meth:`Accelerator.is_blank`, waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError, PlaceitError
from placeit.runtime.devices.base import BufferSpec, SegmentSource

__all__ = [
    "HOST",
    "Accelerator",
    "Event",
    "Inbox",
    "LoadedProgram",
    "Memory",
    "Replay",
    "Stream",
    "StreamProgram",
    "Streams",
    "Token",
    "View",
]

HOST = -1
"""The number that stands for pinned host memory where a device is expected."""

Stream: TypeAlias = Any
"""An in-order queue of one device: what is launched on it runs in the order of the launches."""
Event: TypeAlias = Any
"""A mark in a stream that other streams can wait for."""
Memory: TypeAlias = Any
"""Bytes on a device, or pinned bytes on the host."""
View: TypeAlias = Any
"""Memory seen as a tensor."""

Token: TypeAlias = tuple[int, int]
"""A request, and one of its launches."""

Replay: TypeAlias = Callable[[], None]


class Inbox:
    """Where accelerators tell one executor what has happened to what it has launched, from any thread.

    Attributes:
        failure: the first launch of all that failed after it had been launched, and its error.
        over: whether nothing more is wanted: what has not started is left out where that is possible.
    """

    def __init__(self) -> None:
        self.failure: tuple[Token, PlaceitError] | None = None
        self.over = False
        self._tokens: SimpleQueue[Token | None] = SimpleQueue()

    def put(self, token: Token) -> None:
        """Tell that a launch has ended."""
        self._tokens.put(token)

    def fail(self, token: Token, error: BaseException) -> None:
        """Tell that a launch has failed: before anything that follows it is said to have ended."""
        if not isinstance(error, PlaceitError):
            told = DeviceError(f"{type(error).__name__}: {error}")
            told.__cause__ = error
            error = told
        if self.failure is None:
            self.failure = token, error
        self.over = True
        self._tokens.put(None)

    def get(self, timeout: float | None) -> Token | None:
        """Wait for the next token for so many seconds; None if there is none. Raises what a launch has failed with."""
        try:
            token = self._tokens.get(timeout=None if timeout is None else max(0.0, timeout))
        except Empty:
            token = None
        if self.failure is not None:
            raise self.failure[1]
        return token


class LoadedProgram(Protocol):
    """A program with its weights on a device. They are let go with the last reference to it."""

    def launch(self, inputs: Sequence[View], outputs: Sequence[View]) -> None:
        """Queue the computation on the current stream: read the inputs, fill the outputs, wait for nothing."""
        ...


class StreamProgram(Protocol):
    """A segment that can be launched on streams. Places are given as :meth:`Accelerator.place` spells them."""

    def workspace_bytes(self, enough: float) -> int:
        """Bytes of device memory that a launch takes for the time that it runs, beside its inputs and outputs.

        Args:
            enough: an upper bound will do if it is no more than this.
        """
        ...

    def weight_bytes(self, place: object) -> int:
        """Bytes of device memory that :meth:`load` would take now."""
        ...

    def load(self, place: object) -> LoadedProgram:
        """Bring the weights to a device. Raises DeviceError."""
        ...


class Accelerator(Protocol):
    """Devices of one kind, numbered as in the cluster of the plans that they run.

    Whatever goes wrong on a device is a DeviceError that names it. Threads may use an accelerator at the same time.
    """

    @property
    def names(self) -> Sequence[str]:
        """Name of each device."""
        ...

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` has been called, so that nothing more may be begun."""
        ...

    def turn(self) -> AbstractContextManager[object]:
        """Make a lock that is held by whoever runs something, as often as it likes. Raises ExecutionError if closed."""
        ...

    def close(self) -> None:
        """Wait until nobody has a turn, and stop every thread. Closing twice does nothing more."""
        ...

    def memory(self, device: int) -> int:
        """Where a device computes: in memory of its own, which has its number, or in that of the host, ``HOST``.

        What is launched on a device of the host's memory is a job of a thread. It cannot hold up the stream of any other
        device: nothing may be launched there to wait for it.
        """
        ...

    def place(self, device: int) -> object:
        """What programs call a device."""
        ...

    def can_peer(self, src: int, dst: int) -> bool:
        """Whether one device can write another's memory; if not, copies go through pinned host memory."""
        ...

    def free_bytes(self, device: int) -> float:
        """Bytes of a device's memory that can be allocated now."""
        ...

    def allocate(self, device: int, nbytes: int) -> Memory:
        """Take memory of a device, or pinned memory of the host. Raises DeviceError."""
        ...

    def free(self, memory: Memory) -> None:
        """Give memory back. Nothing that uses it may still be running, and no view of it be used again."""
        ...

    def trim(self) -> None:
        """Give unused memory that the accelerator keeps in reserve back to the driver."""
        ...

    def view(self, memory: Memory, spec: BufferSpec) -> View:
        """See the start of memory as a tensor."""
        ...

    def write(self, view: View, value: NDArray[np.generic]) -> None:
        """Fill a tensor in host memory, from the host. Nothing that uses it may be running."""
        ...

    def read(self, view: View) -> NDArray[np.generic]:
        """Copy a tensor in host memory, to the host, in its logical shape. Nothing that writes it may be running."""
        ...

    def blank(self, view: View, sentinel: int) -> None:
        """Fill a tensor in any memory with NaN, or with the sentinel if its type has none, at once. Nothing may be running."""
        ...

    def is_blank(self, view: View, sentinel: int) -> bool:
        """Whether a tensor in any memory holds what :meth:`blank` fills it with. Nothing may be running."""
        ...

    def stream(self, device: int, number: int) -> Stream:
        """One of a device's streams; always the same for the same number, whoever asks. Segments are launched on number 0."""
        ...

    def event(self, device: int, *, timed: bool = False) -> Event:
        """Make an event, to be recorded in streams of one device, that may be asked for its time."""
        ...

    def elapsed(self, first: Event, second: Event) -> float:
        """Seconds between two timed events of one device, both of which have happened."""
        ...

    def record(self, event: Event, stream: Stream) -> None:
        """Let the event mark what has been launched on the stream so far."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what is launched on the stream from now on start only after what the event marks now has ended."""
        ...

    def launch(
        self,
        stream: Stream,
        program: LoadedProgram,
        inputs: Sequence[View],
        outputs: Sequence[View],
        inbox: Inbox,
        token: Token,
    ) -> None:
        """Launch a program on a stream. Raises DeviceError, as when memory runs out.

        A device of the host's memory tells the inbox if the program fails later, and leaves programs of an inbox that is over
        out. What others have launched goes on.
        """
        ...

    def copy(self, stream: Stream, source: View, destination: View) -> None:
        """Launch a copy on a stream; between two devices, on a stream of the source."""
        ...

    def notify(self, stream: Stream, event: Event, inbox: Inbox, token: Token) -> None:
        """Put a token into an inbox once what the event, last recorded in the stream, marks has ended. Delays no stream.

        No Python runs where the driver calls back: a driver's thread that waits for the interpreter may hold up what the
        interpreter waits for, and a garbage collection there could call the driver, which it must not.
        """
        ...

    def take(self, inbox: Inbox, timeout: float | None = None) -> Token | None:
        """Wait for the next token, for so many seconds; None if there is none by then.

        Raises:
            DeviceError: a launch failed, or a device, and the token may never come.
        """
        ...

    def finish(self, stream: Stream) -> None:
        """Wait for everything launched on a stream. Raises DeviceError if its device failed, and runs nothing any more."""
        ...

    def capture(self, streams: Sequence[Stream], launches: Callable[[], None]) -> Replay:
        """Capture launches on streams, the first of which every replay is launched on. Raises DeviceError if unavailable."""
        ...


@dataclass(frozen=True)
class Streams:
    """How the devices of a cluster are driven, if it is through streams.

    Attributes:
        accelerator: the devices, numbered as in the cluster.
        compile: makes a program of a segment, which any of them can load. Raises DeviceError.
    """

    accelerator: Accelerator
    compile: Callable[[SegmentSource], StreamProgram]
