"""A device with streams in a cluster with devices that have none: the host waits for the end of each segment."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placeit.backends.checking import numpy_can_hold
from placeit.core.errors import DeviceError, PlaceitError, first_line, forget_frames
from placeit.core.narrowing import narrowed
from placeit.core.threads import Worker
from placeit.runtime.devices.accelerator import HOST, Accelerator, Inbox, Memory, Prepared, StreamProgram, Streams, View
from placeit.runtime.devices.base import Buffer, BufferSpec, DoneCallback, Instance, Program, SegmentSource
from placeit.runtime.devices.worker import perform

__all__ = ["PinnedBuffer", "StreamDevice"]


class StreamDevice:
    """One device of an accelerator, in a cluster whose devices cannot wait for each other's events.

    Its thread launches a segment, waits for the stream, and reports the end; nothing is launched ahead. Outputs of segments
    stay in the device's memory. Inputs of the model are copied there, and outputs of the model to the host, as parts of the
    segments that read and write them. All other tensors that are sent or received go through pinned memory of the host, on a
    stream for each direction.

    Args:
        streams: the accelerator, which is closed with the device, and the compiler of its programs.
        number: number of the device, which does not compute in the host's memory.

    Attributes:
        worker: the thread that launches and waits.
    """

    host_paced = True

    def __init__(self, streams: Streams, number: int = 0) -> None:
        self.accelerator, self.number, self._compile = streams.accelerator, number, streams.compile
        self.name = self.space = self.accelerator.names[number]
        self.program_key = f"streams of {self.name}"
        self.stream = self.accelerator.open_stream(number)
        self._reading, self._writing = (_CopyLane(self.accelerator, number) for _ in range(2))
        self.worker = Worker(f"placeit {self.name}")

    def compile(self, segment: SegmentSource) -> StreamedProgram:
        """Compile a segment. Raises DeviceError."""
        return StreamedProgram(segment, self._compile(segment))

    def instance(self, program: Program) -> StreamedInstance:
        """Load a program, and allocate its buffers. Raises DeviceError if there is not enough memory."""
        return StreamedInstance(self, narrowed(StreamedProgram, program))

    def allocate(self, spec: BufferSpec) -> StreamBuffer:
        """Allocate memory of the device. Raises DeviceError."""
        return StreamBuffer(self, spec)

    def pin(self, spec: BufferSpec) -> PinnedBuffer:
        """Allocate pinned memory of the host, from which instances copy directly."""
        return PinnedBuffer(self.accelerator, spec)

    def start(self, instance: Instance, done: DoneCallback) -> None:
        """Queue an instance."""
        self.worker.submit(functools.partial(perform, narrowed(StreamedInstance, instance).run, self._explain, done))

    def _explain(self, error: BaseException) -> str:
        return str(error) if isinstance(error, PlaceitError) else f"{self.name} failed: {first_line(error)}"

    def fetch(self, view: View, spec: BufferSpec) -> NDArray[np.generic]:
        """Copy a tensor to the host."""
        return self._reading.fetch(view, spec)

    def store(self, value: NDArray[np.generic], view: View, spec: BufferSpec) -> None:
        """Copy a value from the host into a tensor."""
        self._writing.store(value, view, spec)

    def close(self) -> None:
        """Stop the thread and close the accelerator."""
        self.worker.close()
        self._reading.close()
        self._writing.close()
        self.accelerator.close()


class _CopyLane:
    """A stream that copies one tensor at a time between a device and pinned memory. Any thread may use it."""

    def __init__(self, accelerator: Accelerator, device: int) -> None:
        self._accelerator, self._stream = accelerator, accelerator.open_stream(device)
        self._lock = accelerator.usage_lock()
        self._pinned: tuple[int, Memory] | None = None

    def fetch(self, view: View, spec: BufferSpec) -> NDArray[np.generic]:
        with self._lock:
            pinned = self._room(spec)
            self._accelerator.copy(self._stream, view, pinned)
            self._accelerator.finish(self._stream)
            return self._accelerator.read(pinned)

    def store(self, value: NDArray[np.generic], view: View, spec: BufferSpec) -> None:
        with self._lock:
            pinned = self._room(spec)
            self._accelerator.write(pinned, value)
            self._accelerator.copy(self._stream, pinned, view)
            self._accelerator.finish(self._stream)

    def _room(self, spec: BufferSpec) -> View:
        need = max(1, spec.nbytes)
        if self._pinned is None or self._pinned[0] < need:
            self.close()
            self._pinned = need, self._accelerator.allocate(HOST, need)
        return self._accelerator.view(self._pinned[1], spec)

    def close(self) -> None:
        with self._lock:
            pinned, self._pinned = self._pinned, None
            if pinned is not None:
                self._accelerator.free(pinned[1])


class PinnedBuffer:
    """A tensor in pinned memory of the host. The memory is freed with the last reference to it.

    Args:
        accelerator: allocates the memory.
        spec: shape and type of the tensor.
    """

    space = "host"

    def __init__(self, accelerator: Accelerator, spec: BufferSpec) -> None:
        self.spec, self.nbytes, self._accelerator = spec, spec.nbytes, accelerator
        self.view = _allocate(self, accelerator, HOST, spec)

    def array(self) -> NDArray[np.generic]:
        """Return a view of the value, or a copy if NumPy lacks its type."""
        return self._accelerator.host_view(self.view, self)

    def memory(self) -> NDArray[np.generic] | None:
        """Return the memory in memory order; None if NumPy lacks its type."""
        return self.spec.to_memory_order(self.array()) if numpy_can_hold(self.spec.dtype) else None

    def fill(self, value: NDArray[np.generic]) -> None:
        """Copy a value into the buffer."""
        self._accelerator.write(self.view, value)

    def blank(self, sentinel: int) -> None:
        """Fill the memory."""
        self._accelerator.blank(self.view, sentinel)


class StreamBuffer:
    """A tensor in the memory of a device with streams. The memory is freed with the last reference to it.

    Args:
        device: the device.
        spec: shape and type of the tensor.
    """

    def __init__(self, device: StreamDevice, spec: BufferSpec) -> None:
        self.spec, self.nbytes, self.space, self._device = spec, spec.nbytes, device.space, device
        self.view = _allocate(self, device.accelerator, device.number, spec)
        self.delivered: PinnedBuffer | None = None

    def deliver(self) -> PinnedBuffer:
        """Have every segment that writes the buffer also copy it to the host, and return the host's buffer."""
        self.delivered = self.delivered or PinnedBuffer(self._device.accelerator, self.spec)
        return self.delivered

    def array(self) -> NDArray[np.generic]:
        """Copy the value to the host, and return it."""
        return self._device.fetch(self.view, self.spec)

    def fill(self, value: NDArray[np.generic]) -> None:
        """Copy a value to the device."""
        self._device.store(value, self.view, self.spec)
        if self.delivered is not None:
            self.delivered.fill(value)

    def blank(self, sentinel: int) -> None:
        """Fill the memory on the device."""
        self._device.accelerator.blank(self.view, sentinel)


def _allocate(owner: object, accelerator: Accelerator, place: int, spec: BufferSpec) -> View:
    memory = accelerator.allocate(place, max(1, spec.nbytes))
    weakref.finalize(owner, accelerator.free, memory).atexit = False
    return accelerator.view(memory, spec)


class StreamedProgram:
    """A segment that can be launched on streams."""

    def __init__(self, segment: SegmentSource, program: StreamProgram) -> None:
        self.inputs, self.outputs, self.program = segment.inputs, segment.outputs, program


class StreamedInstance:
    """A program that is loaded on a device, with its buffers."""

    def __init__(self, device: StreamDevice, program: StreamedProgram) -> None:
        accelerator = device.accelerator
        self._device, self._specs = device, program.inputs
        self._loaded = program.program.load(accelerator.place(device.number))
        self._stream, self._prepared = device.stream, list[Prepared]()
        self._inputs: dict[int, Buffer] = {}
        self._staged: dict[int, StreamBuffer] = {}  # copies on the device of inputs in host memory
        self._outputs = [StreamBuffer(device, spec) for spec in program.outputs]

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from a buffer of the device, or of the host. Raises DeviceError if a copy has no room."""
        self._inputs[index] = buffer
        self._staged.pop(index, None)
        self._prepared.clear()
        if not isinstance(buffer, StreamBuffer):
            self._staged[index] = StreamBuffer(self._device, self._specs[index])
            if not isinstance(buffer, PinnedBuffer):
                self._staged[index].deliver()

    def output(self, index: int) -> StreamBuffer:
        """Return the buffer that output ``index`` is written to."""
        return self._outputs[index]

    def run(self) -> None:
        """Launch the segment, and wait for its end. Raises DeviceError."""
        accelerator, stream, inbox = self._device.accelerator, self._stream, Inbox()
        try:
            for index, staged in self._staged.items():
                pinned = source if isinstance(source := self._inputs[index], PinnedBuffer) else staged.deliver()
                if pinned is not source:
                    pinned.fill(source.array())
                accelerator.copy(stream, pinned.view, staged.view)
            if not self._prepared:
                outputs = [made.view for made in self._outputs]
                self._prepared.append(accelerator.prepare(stream, self._loaded, self._reads(), outputs))
            self._prepared[0](inbox, (0, 0))
            for made in self._outputs:
                if made.delivered is not None:
                    accelerator.copy(stream, made.view, made.delivered.view)
        except BaseException as error:
            forget_frames(error)  # they may refer to intermediate tensors of a segment that ran out of memory
            with contextlib.suppress(DeviceError):  # the first error is raised
                accelerator.finish(stream)
            raise
        accelerator.finish(stream)

    def _reads(self) -> Sequence[View]:
        places = range(len(self._specs))
        return [self._staged[i].view if i in self._staged else narrowed(StreamBuffer, self._inputs[i]).view for i in places]
