"""The interface between devices and the executor.

A device compiles segments, gives each request its own instance of a compiled segment with buffers wired up ahead of time,
and runs instances asynchronously. Nothing here knows about placement or scheduling, and nothing in the scheduler knows
what a device is, so a new kind of device is one file in this folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Format
from placeit.core.sizes import Limits

__all__ = ["Buffer", "BufferSpec", "DoneCallback", "Instance", "KeepsState", "Program", "RuntimeDevice", "Transport"]

T = TypeVar("T")

DoneCallback = Callable[[float, float, BaseException | None], None]
"""``done(start, finish, error)``, in seconds of ``time.perf_counter``, called once from any thread."""


@dataclass(frozen=True)
class BufferSpec:
    """Shape and element type of a tensor, and whether its channels are last in memory.

    Attributes:
        shape: logical shape, the typical one where sizes are open.
        dtype: NumPy spelling.
        channels_last: a rank-4 tensor whose memory is ordered ``[N, H, W, C]`` though its logical shape is ``[N, C, H, W]``.
        limits: least and largest sizes, if some are open; None if all are fixed.
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
        """Return what is said of each dimension, in memory order."""
        return tuple(dimensions[i] for i in (0, 2, 3, 1)) if self.channels_last else tuple(dimensions)

    @property
    def nbytes(self) -> int:
        """Size in bytes, of the typical shape."""
        itemsize = 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize  # NumPy lacks it
        return math.prod(self.shape) * itemsize


class Buffer(Protocol):
    """Memory that holds one tensor.

    One outside the host's memory may have a method ``deliver``, which is called of outputs of the model: from then on, what
    writes the buffer also brings the value to the host before it reports its end, into the buffer that ``deliver`` returns.
    """

    @property
    def space(self) -> str:
        """Name of the memory it lies in; ``host`` for memory that the CPU reads directly."""
        ...

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...

    def array(self) -> NDArray[np.generic]:
        """The value in its logical shape, a view where possible, else a copy."""
        ...

    def fill(self, value: NDArray[np.generic]) -> None:
        """Copy a value of its logical shape there, and wait until it is. Nothing that uses it is running."""
        ...

    def blank(self, sentinel: int) -> None:
        """Fill it with NaN, or with the sentinel if its type has no NaN. Nothing that uses it is running.

        It changes nothing else: where runs leave results without copying them, the memory may be that of an input or a weight.

        Args:
            sentinel: 0 or 1.
        """
        ...


class Program(Protocol):
    """A segment compiled for one device."""

    @property
    def inputs(self) -> tuple[BufferSpec, ...]:
        """Its inputs: tensors from other segments first, then inputs of the model."""
        ...

    @property
    def outputs(self) -> tuple[BufferSpec, ...]:
        """Its outputs: tensors for other segments first, then outputs of the model."""
        ...


class Instance(Protocol):
    """A program with buffers of its own: one for every request that may be in flight.

    It may have ``native``: the address of a C function ``int32 f(void *argument)`` that runs it on the calling thread and
    returns 0, or another number if that failed, and the address of its argument; or None. If some instances of a plan have one,
    the devices of all others have ``call``, and all devices a ``worker``, then runs call these functions from the workers'
    threads, and not ``RuntimeDevice.start``: without Python between two of the former.

    If its outputs can be written elsewhere, a method ``write_to`` with the arguments of ``bind`` has it write output ``index``
    to ``buffer``, of its device's space, in every later run. ``output`` then returns that buffer. It is called before ``bind``:
    what an OpenVINO request hands on of its inputs stays where it was, if the output is set after the input (2026.4).

    Every run starts from the segment's initial state, if it has any. One that can keep state is a :class:`KeepsState`.
    """

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` in every later run, with the value at the start of the run.

        Tensors come in buffers of the device's memory, inputs of the model in host memory.

        Raises:
            DeviceError: the buffer does not fit.
        """
        ...

    def output(self, index: int) -> Buffer:
        """Return the buffer of output ``index``: the same for the life of the instance, except after ``write_to``."""
        ...


@runtime_checkable
class KeepsState(Protocol):
    """An instance whose runs can go on from the state in which the last one has left it. Nothing of it runs meanwhile."""

    def keep_state(self, *, keep: bool) -> None:
        """Have every later run go on from the state as it is, initial at first, or begin with the initial one, as at first."""
        ...

    def reset_state(self) -> None:
        """Return to the initial state."""
        ...

    def states(self) -> Mapping[str, Any]:
        """Copies of the values of its variables, by name, for other instances of segments of the same model.

        They are ``openvino.Tensor``, or, where they are not in this process, have a method ``fetch`` that returns one.
        """
        ...

    def set_states(self, states: Mapping[str, Any]) -> None:
        """Take over the values of its own variables from those of all segments of a model. Raises DeviceError."""
        ...

    def state_bytes(self) -> int:
        """Size of its state. It may take as long as copying the state."""
        ...


class RuntimeDevice(Protocol):
    """A device that compiles and runs segments.

    One that runs them on a thread of placeit's (:class:`placeit.core.threads.Worker`) has it as ``worker``, as a
    :class:`Transport` may: runs then begin on that thread, where no signal handler can interrupt them, and whoever waits for a
    run notices if the thread is gone. After an interrupt at the wrong moment an executor of other devices has to be made anew.

    One whose work is queued on a stream of its own, while the host waits for each end before it decides what follows, has
    ``host_paced``, which is true.

    One that uses some of the host's memory directly, and would copy from and to any other, has ``shares_memory``, which is
    true. Its ``allocate`` returns such memory, and the outputs of its instances are there. What it reads is put there, too:
    inputs of the model, and outputs of instances that have ``write_to``.

    If its instances run on its ``worker`` by a function of Python, a method ``call`` returns that function for an instance. It
    raises ExecutionError.

    If its instances have native entries, a method ``explain`` returns the error message of the entry that failed last, on the
    thread where it failed. ``slowdown``, 1 if there is none, is the factor by which runs of native entries are prolonged.
    """

    @property
    def name(self) -> str:
        """Name in the cluster."""
        ...

    @property
    def space(self) -> str:
        """Memory that its instances read inputs from without a copy."""
        ...

    @property
    def program_key(self) -> str:
        """Devices with equal keys can run each other's programs, so that a segment is compiled once for all of them.

        Where a program runs one request at a time, the device says so by an attribute ``one_at_a_time``; it then has its own
        programs, but for those of single groups.
        """
        ...

    def compile(self, segment: SegmentSource) -> Program:
        """Compile a segment. Raises DeviceError, naming the device, if it cannot. Several threads may compile at once."""
        ...

    def instance(self, program: Program) -> Instance:
        """Make an instance of a program that this device, or one of the same key, has compiled. Raises DeviceError."""
        ...

    def allocate(self, spec: BufferSpec) -> Buffer:
        """Make a buffer in the memory that instances read from."""
        ...

    def start(self, instance: Instance, done: DoneCallback) -> None:
        """Run an instance and return at once. Instances run one at a time, in the order in which they were started.

        ``done`` is called after ``start`` has returned, or on another thread: the caller may hold a lock that ``done`` takes.
        It may itself start instances. Whatever goes wrong in a run is its third argument, and is not raised.
        """
        ...

    def close(self) -> None:
        """Stop the device's threads after started instances have ended and were reported. A second call has no effect."""
        ...


class SegmentSource(Protocol):
    """A segment before compilation; each kind of device requests the form that it can compile."""

    @property
    def inputs(self) -> tuple[BufferSpec, ...]:
        """Tensors from other segments, then inputs of the model."""
        ...

    @property
    def outputs(self) -> tuple[BufferSpec, ...]:
        """Tensors for other segments, then outputs of the model."""
        ...

    @property
    def identity(self) -> str:
        """Key of programs on disk: equal for segments of the same ops, whatever their weights; may be empty."""
        ...

    def in_format(self, form: Format) -> Any:
        """The segment as what a runtime compiles, made by :meth:`placeit.backends.base.Model.segment`.

        Weights may be shared with the model: move a copy of them to a device, never change them.

        Raises:
            DeviceError: the model's segments cannot be had in this format.
        """
        ...


class Transport(Protocol):
    """Moves tensors along one directed link. Transfers run one at a time, in the order in which they were started."""

    def start(self, source: Buffer, destination: Buffer, done: DoneCallback) -> None:
        """Copy and return at once. Both are the same where a tensor lies in memory that the two ends share."""
        ...

    def close(self) -> None:
        """Stop the link's threads."""
        ...
