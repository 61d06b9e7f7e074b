"""The interface between devices and the executor.

A device compiles segments, makes an instance of a compiled segment for each request in flight, with its buffers bound in
advance, and runs instances asynchronously. It takes no part in placement or scheduling. Optional abilities of devices,
instances, programs, buffers and links are protocols that callers check with ``isinstance``. They are defined here, in
:mod:`~placeit.runtime.devices.entries` and in :mod:`~placeit.runtime.devices.state`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Format
from placeit.core.sizes import Limits
from placeit.core.threads import Worker

__all__ = [
    "Buffer",
    "BufferSpec",
    "CompilesSlowly",
    "Delivers",
    "DividedIntoStreams",
    "DoneCallback",
    "HostPaced",
    "InHostMemory",
    "Instance",
    "KeepsPrograms",
    "KeptOnDisk",
    "OnThread",
    "OneAtATime",
    "PinsMemory",
    "Program",
    "ReadsInPlace",
    "Rebinds",
    "Runnable",
    "RuntimeDevice",
    "ServesSlots",
    "SharesMemory",
    "Slowed",
    "TakesTime",
    "Transport",
    "WritesTo",
]

T = TypeVar("T")

DoneCallback = Callable[[float, float, BaseException | None], None]
"""``done(start, finish, error)``, in seconds of ``time.perf_counter``, called once from any thread."""


@dataclass(frozen=True)
class BufferSpec:
    """Shape and element type of a tensor, and whether its channels are last in memory.

    Attributes:
        shape: logical shape; the typical one if sizes are open.
        dtype: name of the element type, as NumPy spells it, or ``bfloat16``.
        channels_last: whether the memory of a rank-4 tensor of logical shape ``[N, C, H, W]`` is ordered ``[N, H, W, C]``.
        limits: minimum and maximum size of each dimension, if some sizes are open; None if all are fixed.
    """

    shape: tuple[int, ...]
    dtype: str
    channels_last: bool = False
    limits: Limits | None = None

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """Shape in memory order."""
        return self.in_memory(self.shape)

    def in_memory(self, dimensions: Sequence[T]) -> tuple[T, ...]:
        """Return values, one for each logical dimension, in memory order."""
        return tuple(dimensions[i] for i in (0, 2, 3, 1)) if self.channels_last else tuple(dimensions)

    def to_memory_order(self, value: NDArray[Any]) -> NDArray[Any]:
        """Return a view of a tensor with its dimensions in memory order, given in logical order."""
        return value.transpose(0, 2, 3, 1) if self.channels_last else value

    def to_logical_order(self, value: NDArray[Any]) -> NDArray[Any]:
        """Return a view of a tensor with its dimensions in logical order, given in memory order."""
        return value.transpose(0, 3, 1, 2) if self.channels_last else value

    @property
    def nbytes(self) -> int:
        """Size in bytes, of the typical shape."""
        itemsize = 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize  # NumPy lacks it
        return math.prod(self.shape) * itemsize


class Buffer(Protocol):
    """Memory that holds one tensor. A buffer outside the host's memory may implement :class:`Delivers`."""

    @property
    def spec(self) -> BufferSpec:
        """Shape and element type of the tensor."""

    @property
    def space(self) -> str:
        """Name of its memory; ``host`` for memory that the CPU reads directly."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def array(self) -> NDArray[np.generic]:
        """Return the value in its logical shape: a view if possible, else a copy."""

    def fill(self, value: NDArray[np.generic]) -> None:
        """Copy a value in logical shape into the buffer, and wait for the copy. Nothing that uses the buffer may be running."""

    def blank(self, sentinel: int) -> None:
        """Fill the buffer with NaN, or with the sentinel if its type has no NaN. Nothing that uses it may be running.

        No other tensor may change: if runs replace tensors without a copy, the memory may belong to an input or a weight.

        Args:
            sentinel: 0 or 1.
        """


@runtime_checkable
class Delivers(Protocol):
    """A buffer outside the host's memory whose value can be copied to the host at the end of each run."""

    def deliver(self) -> Buffer:
        """Return a buffer on the host, for an output of the model.

        From now on, every segment that writes this buffer also copies the value there before it reports its end.
        """


@runtime_checkable
class InHostMemory(Protocol):
    """A buffer in the host's memory whose value can be sent to a node, or received from a node, without a copy."""

    def memory(self) -> NDArray[np.generic] | None:
        """Return its memory in memory order; None if the value is not contiguous, or NumPy lacks its type."""


class Program(Protocol):
    """A segment compiled for one device. It may implement :class:`KeptOnDisk`."""

    @property
    def inputs(self) -> tuple[BufferSpec, ...]:
        """Its inputs: tensors from other segments first, then inputs of the model."""

    @property
    def outputs(self) -> tuple[BufferSpec, ...]:
        """Its outputs: tensors for other segments first, then outputs of the model."""


@runtime_checkable
class KeptOnDisk(Protocol):
    """A program that may have been loaded from disk."""

    @property
    def from_disk(self) -> bool:
        """True if an earlier compilation was loaded from disk."""


class Instance(Protocol):
    """A program with its buffers, for one of the requests in flight.

    Every run starts from the initial state of the segment, if it has state. Optional abilities of instances: :class:`WritesTo`,
    :class:`Rebinds`, :class:`placeit.runtime.devices.state.KeepsState`.
    """

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` in every later run, with the value at the start of the run.

        Tensors of other segments are in buffers of the device's memory; inputs of the model are in host memory.

        Raises:
            DeviceError: the buffer does not fit.
        """

    def output(self, index: int) -> Buffer:
        """Return the buffer of output ``index``. It stays the same, except after a call of ``write_to``."""


@runtime_checkable
class WritesTo(Protocol):
    """An instance that can write its outputs to given buffers."""

    def write_to(self, index: int, buffer: Buffer) -> None:
        """Write output ``index`` to ``buffer``, in the device's memory, in every later run. ``output`` then returns it.

        This is called before ``bind``: if an OpenVINO request returns an input as an output, and the output is set after the
        input, the value is not written to the new buffer (2026.4).
        """


@runtime_checkable
class ReadsInPlace(Protocol):
    """A device whose instances may read tensors in the memory that the tensors have when they are bound."""

    @property
    def reads_in_place(self) -> bool:
        """True if they do. The memory of a bound tensor then has to stay the same."""


@runtime_checkable
class Rebinds(WritesTo, Protocol):
    """An instance whose buffers may be replaced between runs."""

    @property
    def rebinds(self) -> bool:
        """True."""


class Runnable(Rebinds, Instance, Protocol):
    """An instance that runs on the calling thread."""

    @property
    def run(self) -> Callable[[], object]:
        """Function that runs the instance."""


class RuntimeDevice(Protocol):
    """A device that compiles and runs segments.

    Optional abilities of devices: :class:`OnThread`, :class:`ServesSlots`, :class:`OneAtATime`, :class:`SharesMemory`,
    :class:`ReadsInPlace`, :class:`PinsMemory`, :class:`HostPaced`, :class:`KeepsPrograms`, :class:`CompilesSlowly`,
    :class:`DividedIntoStreams`, :class:`Slowed`.
    """

    @property
    def name(self) -> str:
        """Name in the cluster."""

    @property
    def space(self) -> str:
        """Name of the memory that its instances read inputs from without a copy."""

    @property
    def program_key(self) -> str:
        """Key of its programs. Devices with equal keys can run each other's programs, so each segment is compiled once."""

    def compile(self, segment: SegmentSource) -> Program:
        """Compile a segment. Raises DeviceError, naming the device, if it cannot. Several threads may compile at once."""

    def instance(self, program: Program) -> Instance:
        """Make an instance of a program of this device, or of a device with the same key. Raises DeviceError."""

    def allocate(self, spec: BufferSpec) -> Buffer:
        """Make a buffer in the memory that instances read from."""

    def start(self, instance: Instance, done: DoneCallback) -> None:
        """Start an instance without waiting. Instances run one at a time, in the order in which they were started.

        ``done`` is called on another thread, or after ``start`` has returned, since the caller may hold a lock that ``done``
        acquires. ``done`` may start instances. An error of the run is passed to ``done``, and is not raised.
        """

    def close(self) -> None:
        """Stop the device's threads after started instances have ended and were reported. A second call has no effect."""


@runtime_checkable
class OnThread(Protocol):
    """A device or a link that runs on a thread of placeit.

    Runs then begin on that thread, where no signal handler can interrupt them, and a caller that waits for a run notices if the
    thread has ended. With other devices, an interrupt at the wrong moment can make an executor unusable.
    """

    @property
    def worker(self) -> Worker | None:
        """The thread; None for a device without a thread."""


@runtime_checkable
class ServesSlots(Protocol):
    """A device that runs the requests of several slots at the same time."""

    def worker_of(self, number: int) -> Worker:
        """Return the thread for the requests in a slot, by its number."""


@runtime_checkable
class DividedIntoStreams(Protocol):
    """A device that its runtime divides among several requests."""

    def streams(self, program: Program) -> int:
        """Return how many requests in flight its runtime finds best for a program."""


@runtime_checkable
class Slowed(Protocol):
    """A device that is slowed down on purpose."""

    @property
    def slowdown(self) -> float:
        """Factor by which runs of native entries are prolonged."""


@runtime_checkable
class OneAtATime(Protocol):
    """A device whose programs may run only one request at a time."""

    @property
    def one_at_a_time(self) -> bool:
        """True if they do. Equal devices then need separate programs of a segment, except for single groups."""


@runtime_checkable
class SharesMemory(Protocol):
    """A device that may use some of the host's memory in place, and copies from and to other host memory."""

    @property
    def shares_memory(self) -> bool:
        """True if it does.

        Its ``allocate`` then returns such memory, and the outputs of its instances are there. Tensors that it reads are stored
        there, too: inputs of the model, and outputs of instances that are :class:`WritesTo`.
        """


@runtime_checkable
class PinsMemory(Protocol):
    """A device with separate memory that copies directly from pinned memory of the host."""

    def pin(self, spec: BufferSpec) -> Buffer:
        """Make a buffer in pinned memory of the host, which instances can read. Raises DeviceError."""


@runtime_checkable
class HostPaced(Protocol):
    """A device whose segments may run on a stream."""

    @property
    def host_paced(self) -> bool:
        """True if the host waits for the end of each segment on the stream before it starts the next segment."""


@runtime_checkable
class KeepsPrograms(Protocol):
    """A device that may keep programs on disk."""

    def keeps(self, segment: SegmentSource) -> bool:
        """Return whether the program of a segment is probably on disk."""


@runtime_checkable
class CompilesSlowly(Protocol):
    """A device whose compiler can be given a time limit, as it may take many seconds."""

    def compile_within(self, segment: SegmentSource, seconds: float) -> Program:
        """Compile a segment; see :meth:`RuntimeDevice.compile`. Raises ExecutionError after ``seconds``."""


class SegmentSource(Protocol):
    """A segment before compilation. Each kind of device requests the format that it compiles."""

    @property
    def inputs(self) -> tuple[BufferSpec, ...]:
        """Tensors from other segments, then inputs of the model."""

    @property
    def outputs(self) -> tuple[BufferSpec, ...]:
        """Tensors for other segments, then outputs of the model."""

    @property
    def identity(self) -> str:
        """Key of programs on disk: equal for segments of the same ops, whatever their weights; may be empty."""

    def in_format(self, form: Format) -> Any:
        """Return the segment in a format that a runtime compiles; see :meth:`placeit.backends.base.Model.segment`.

        Weights may be shared with the model: copy them to a device, and do not change them.

        Raises:
            DeviceError: the model's segments do not exist in this format.
        """


class Transport(Protocol):
    """Moves tensors along one directed link. Transfers run one at a time, in the order in which they were started."""

    def start(self, source: Buffer, destination: Buffer, done: DoneCallback) -> None:
        """Start to copy without waiting. Both are the same buffer if the two devices share its memory."""

    def close(self) -> None:
        """Stop the link's threads."""


@runtime_checkable
class TakesTime(Protocol):
    """A link that copies nothing: a transfer ends after some seconds."""

    def seconds(self, destination: Buffer) -> float:
        """Return the seconds that a transfer takes once the link is free."""
