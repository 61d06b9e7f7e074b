"""The interface between accelerators and the libraries that drive them: PyTorch and CuPy.

A library has streams, events, memory, copies and graphs of devices of one type. Everything else, such as which executor uses
which stream and what happens after a failure, is in :mod:`~placeit.runtime.accelerators.stream_accelerator`, for all libraries.

*Places* are the library's names of devices; they are hashable. Memory and views are objects of the library, as in
:mod:`placeit.runtime.devices.accelerator`. Each thread has a current stream on each device; programs and copies are launched on
the current stream.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.runtime.devices.accelerator import Memory, View
from placeit.runtime.devices.base import BufferSpec

__all__ = ["GraphPool", "LibraryEvent", "LibraryStream", "Place", "StreamLibrary", "array_at"]

Place: TypeAlias = Hashable
"""The library's name of a device, or of the host's memory."""

GraphPool: TypeAlias = Any
"""Memory for intermediate tensors of graphs that never run at the same time."""


class LibraryStream(Protocol):
    """A stream: its launches run in order."""

    def wait_event(self, event: Any, /) -> object:
        """Delay later launches until the work before an event, as last recorded, has ended."""


class LibraryEvent(Protocol):
    """An event with timing. A thread that waits for it sleeps, rather than spins."""

    def record(self, stream: Any, /) -> object:
        """Mark everything that has been launched on a stream so far."""

    def synchronize(self) -> object:
        """Wait, without the interpreter's lock, until the event has happened."""

    def elapsed_time(self, end: Any, /) -> float:
        """Return the milliseconds from this event to another event of the device."""


class StreamLibrary(Protocol):
    """Streams, events, memory, copies and graphs of devices of one type.

    Methods raise the library's errors, except where a DeviceError is mentioned.
    """

    @property
    def hardware(self) -> str:
        """Type of the devices, such as ``cuda``."""

    @property
    def out_of_memory(self) -> type[BaseException]:
        """The error that means that a device has no more memory."""

    @property
    def times_graphs(self) -> bool:
        """Whether graphs may record events with timing."""

    # -- devices ----------------------------------------------------------------------------------------------------------

    def place(self, hardware: str | None) -> Place:
        """Return the place of a device such as ``cuda:0``, or of the host if None. Raises DeviceError if it does not exist."""

    def number(self, place: Place) -> int | None:
        """Return a GPU's number; None for the host."""

    def divide(self, name: str, place: Place, parts: int) -> None:
        """Divide a device into equal parts. Raises DeviceError, naming the device, if that is not possible."""

    def exact(self) -> AbstractContextManager[object]:
        """Return a context in which kernels of this process do not round float32 to TF32."""

    def launching(self) -> AbstractContextManager[object]:
        """Return a context that makes launches faster. Each thread that launches enters it once."""

    def use_threads(self, count: int) -> None:
        """Set the number of threads that compute ops on the host for the calling thread."""

    # -- memory -----------------------------------------------------------------------------------------------------------

    def can_peer(self, src: Place, dst: Place) -> bool:
        """Return whether one device can write the memory of another device, and enable that."""

    def free_bytes(self, place: Place) -> float:
        """Return the bytes of a device that can be allocated now; ``inf`` if that is not known."""

    def allocate(self, place: Place | None, nbytes: int) -> Memory:
        """Allocate memory of a device, or pinned memory of the host if None."""

    def free(self, memory: Memory) -> None:
        """Free memory, for all views of it."""

    def trim(self) -> None:
        """Return cached memory to the driver. Raises nothing: the memory of a failed device is lost."""

    def view(self, memory: Memory, spec: BufferSpec) -> View:
        """Return the start of a memory block as a tensor."""

    def address(self, view: View) -> int:
        """Return the address of a tensor's first element."""

    def write(self, view: View, value: NDArray[np.generic]) -> None:
        """Fill a tensor in host memory."""

    def read(self, view: View) -> NDArray[np.generic]:
        """Copy a tensor in host memory, in its logical shape; bfloat16 as float32."""

    def host_view(self, view: View, owner: object) -> NDArray[np.generic]:
        """Return a tensor in host memory as an array that keeps ``owner`` alive; a copy if NumPy lacks its type."""

    def adopt(self, array: object) -> tuple[Place, View, LibraryEvent]:
        """Use an array on a GPU; see :meth:`placeit.runtime.devices.accelerator.Accelerator.adopt`."""

    def array(self, view: View) -> object:
        """Return a tensor on a device as an array for callers, which keeps the memory alive."""

    def blank(self, view: View, sentinel: int) -> None:
        """Fill a tensor in any memory with NaN, or the sentinel if its type has no NaN, and wait for that."""

    def is_blank(self, view: View, sentinel: int) -> bool:
        """Return whether a tensor in any memory holds what :meth:`blank` fills it with."""

    # -- streams, events and graphs -----------------------------------------------------------------------------------------

    def stream(self, place: Place, priority: int, part: tuple[int, int]) -> LibraryStream:
        """Return a new stream of a device, or of a part of it. A library with a pool of streams may return an older stream."""

    def event(self, place: Place) -> LibraryEvent:
        """Return a new event of a device."""

    def current(self, place: Place) -> LibraryStream:
        """Return the calling thread's current stream of a device."""

    def follow(self, stream: LibraryStream, other: LibraryStream) -> None:
        """Delay later launches on a stream until everything launched on another stream so far has ended."""

    def query(self, stream: LibraryStream) -> None:
        """Raise an error if the stream's device has failed."""

    def finish(self, stream: LibraryStream) -> None:
        """Wait, asleep, for everything launched on a stream."""

    def handle(self, stream: LibraryStream) -> int:
        """Return the driver's handle of a stream, for other libraries."""

    def launch_on(self, stream: LibraryStream, launch: Callable[[], object]) -> None:
        """Call a function with a stream as the current one, and its device as the current device."""

    def copy(self, source: View, destination: View) -> None:
        """Launch a copy on the current stream of the source's device, or of the destination's if the source is on the host."""

    def graph_pool(self) -> GraphPool:
        """Return a new pool for graphs that are replayed on one stream."""

    def capture(
        self, stream: LibraryStream, pool: GraphPool, launch: Callable[[LibraryStream], None]
    ) -> Callable[[], None] | None:
        """Record what a function launches on a stream, without running it.

        Launches of other threads at that time are not recorded.

        Returns:
            A function that launches all of it on the current stream; None if it cannot be recorded.
        """


class _OwnedMemory:
    """Memory with NumPy's array interface, which keeps its owner alive."""

    def __init__(self, owner: object, interface: dict[str, object]) -> None:
        self.owner, self.__array_interface__ = owner, interface


def array_at(
    address: int, shape: Sequence[int], dtype: np.dtype[Any], owner: object, strides: Sequence[int] | None = None
) -> NDArray[Any]:
    """Return memory of the host as an array.

    Args:
        address: address of the first element.
        shape: shape of the array.
        dtype: element type.
        owner: the object that owns the memory; the array keeps it alive.
        strides: in bytes; None for a contiguous array.
    """
    interface: dict[str, object] = {"version": 3, "shape": tuple(shape), "typestr": dtype.str, "data": (address, False)}
    if strides is not None:
        interface["strides"] = tuple(strides)
    return np.asarray(_OwnedMemory(owner, interface))
