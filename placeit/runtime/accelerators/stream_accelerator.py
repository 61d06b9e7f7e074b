"""Devices that a library drives through streams, such as GPUs, together with CPU core sets.

A core set computes in the host's memory, on a thread with the interface of a stream.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Device
from placeit.core.errors import ExecutionError
from placeit.runtime.accelerators.host_stream import HostEvent, HostStream
from placeit.runtime.accelerators.launches import DeviceErrors, LaunchBatch, Queue, is_replayable, prepared_program
from placeit.runtime.accelerators.library import LibraryStream, Place, StreamLibrary
from placeit.runtime.accelerators.recorder import Recording, StreamGraphs
from placeit.runtime.accelerators.reports import ThreadReports
from placeit.runtime.devices.accelerator import HOST, Inbox, LoadedProgram, Memory, Prepared, Step, Token, View

__all__ = ["StreamAccelerator"]

_POOL = 32  # maximum of streams in a library's pool, for each device and priority: it returns them in turn
_CHECK_INTERVAL_S = 1.0  # seconds between two checks that the devices are alive, while the host waits


class StreamAccelerator:
    """Devices of one type, such as ``cuda``, that a library drives, together with CPU core sets.

    Args:
        devices: devices of the cluster: devices of the library (``cuda:0``), and CPU core sets.
        library: the library.

    Raises:
        DeviceError: there is no such device, or this process may not use the cores.

    Attributes:
        library: the library.
    """

    def __init__(self, devices: Sequence[Device], library: StreamLibrary) -> None:
        self.library, self.names = library, tuple(device.name for device in devices)
        self._sets = {number: device for number, device in enumerate(devices) if device.core_set}
        self._places = [library.place(None if device.core_set else device.where.hardware) for device in devices]
        self._parts = [device.where.part for device in devices]
        first = {at: number for number, at in reversed(list(enumerate(self._places)))}  # several devices may be parts of a GPU
        self._memory = [
            HOST if number in self._sets else first[at] if library.hardware == "cuda" else number
            for number, at in enumerate(self._places)
        ]
        self._reports = ThreadReports()
        self._errors = [DeviceErrors(name, library.out_of_memory) for name in self.names]
        self._any_error = DeviceErrors(", ".join(self.names), library.out_of_memory)
        self._lock = threading.Lock()
        self._locks: WeakSet[threading.RLock] = WeakSet()
        self._queues: list[Queue] = []
        self._idle: dict[tuple[int, int], list[Queue]] = {}  # streams that were closed, by device and priority
        self._recordings: dict[tuple[int, int], Recording] = {}  # for graphs, by device and priority
        self._shared: dict[int, Queue] = {}  # by device: streams of core sets, and streams for other libraries
        self._threads: list[HostStream] = []
        self._exact = ExitStack()
        self.view, self.host_view, self.array = library.view, library.host_view, library.array
        self.adopt, self.trim, self.launching = library.adopt, library.trim, library.launching
        self.closed = False
        try:
            for number, core_set in self._sets.items():  # not in a run, where an interrupt could leak a thread
                self._threads.append(HostStream(core_set, library.launching, library.use_threads))
                self._shared[number] = Queue((number, 0), self._threads[-1], library, self._errors[number])
                self._queues.append(self._shared[number])
            for number, (_, parts) in enumerate(self._parts):
                if parts > 1:
                    library.divide(self.names[number], self._places[number], parts)
        except BaseException:
            self.close()
            raise
        self._exact.enter_context(library.exact())

    def usage_lock(self) -> AbstractContextManager[object]:
        """Return a new lock, which :meth:`close` acquires. Raises ExecutionError if closed."""
        with self._lock:
            if self.closed:
                raise ExecutionError(f"{', '.join(self.names)} is closed, and nothing more can run there: open a new session.")
            lock = threading.RLock()
            self._locks.add(lock)
            return lock

    def close(self) -> None:
        """Wait for the holders of locks, stop every thread, and restore the rounding of float32."""
        with self._lock:
            self.closed = True
            locks = list(self._locks)
        with ExitStack() as held:
            for lock in locks:
                held.enter_context(lock)
            self._reports.close()
            for stream in self._threads:
                stream.close()
            with self._lock:
                exact = self._exact.pop_all()
            exact.close()

    def memory(self, device: int) -> int:
        """Return ``HOST`` for a core set, otherwise the number of the first device (or part) that has the same memory."""
        return self._memory[device]

    def place(self, device: int) -> Place:
        """Return the library's place of a device."""
        return self._places[device]

    def can_peer(self, src: int, dst: int) -> bool:
        """Return whether the driver lets one device write the other's memory."""
        return self.library.can_peer(self._places[src], self._places[dst])

    def free_bytes(self, device: int) -> float:
        """Return the free bytes of the driver and of the library's allocator; ``inf`` if they are not known."""
        with self._errors[device]:
            return self.library.free_bytes(self._places[device])

    def allocate(self, device: int, nbytes: int) -> Memory:
        """Allocate with the library's allocators."""
        if device == HOST:
            with DeviceErrors("the host", self.library.out_of_memory):
                return self.library.allocate(None, nbytes)
        with self._errors[device]:
            return self.library.allocate(self._places[device], nbytes)

    def free(self, memory: Memory) -> None:
        """Return memory to the library's allocator, for all views of it.

        This waits until no graph is being recorded: an allocator may query the streams that pinned memory was copied on, and
        must not query a stream that is recording.
        """
        with ExitStack() as held:
            for recording in list(self._recordings.values()):
                held.enter_context(recording.lock)
            self.library.free(memory)

    def write(self, view: View, value: NDArray[np.generic]) -> None:
        """Copy an array into a tensor in host memory."""
        self.library.write(view, value)

    def read(self, view: View) -> NDArray[np.generic]:
        """Copy a tensor in host memory to an array, bfloat16 as float32."""
        return self.library.read(view)

    def blank(self, view: View, sentinel: int) -> None:
        """Fill a tensor, and wait for it."""
        with self._any_error:
            self.library.blank(view, sentinel)

    def is_blank(self, view: View, sentinel: int) -> bool:
        """Return whether a tensor is blank."""
        with self._any_error:
            return self.library.is_blank(view, sentinel)

    def open_stream(self, device: int, priority: int = 0) -> Queue:
        """Return a stream of a device or of a part of it, or the thread of a core set."""
        if device in self._sets:
            return self._shared[device]
        with self._lock, self._errors[device]:
            if idle := self._idle.setdefault((device, priority), []):
                return idle.pop()
            graphs = self._graphs(device, priority)  # first, as they have a stream that no executor may have
            stream = self._new_stream(device, priority)
            self._queues.append(Queue((device, priority), stream, self.library, self._errors[device], graphs))
            return self._queues[-1]

    def close_stream(self, stream: Queue) -> None:
        """Keep the stream for :meth:`open_stream`: pools are finite, and each stream has a thread that reports."""
        if stream.key[0] not in self._sets:
            self._idle[stream.key].append(stream)

    def _graphs(self, device: int, priority: int) -> StreamGraphs | None:
        if self.library.hardware != "cuda":
            return None
        if (device, priority) not in self._recordings:
            self._recordings[device, priority] = Recording(functools.partial(self._new_stream, device, priority))
        return StreamGraphs(self.library, self._places[device], self._recordings[device, priority])

    def _new_stream(self, device: int, priority: int) -> LibraryStream:
        recording = self._recordings.get((device, priority))
        for _ in range(_POOL + 1):
            made = self.library.stream(self._places[device], priority, self._parts[device])
            if recording is None or made != recording.stream:  # a pool returns its streams in turn
                break
        return made

    def shared_stream(self, device: int) -> LibraryStream:
        """Return a stream of a device, the same one in every call, for libraries that use a single stream."""
        if device not in self._shared:
            self._shared[device] = self.open_stream(device)
        stream: LibraryStream = self._shared[device].stream
        return stream

    def event(self, device: int) -> Any:
        """Return an event with timing."""
        if device in self._sets:
            return HostEvent()
        with self._errors[device]:
            return self.library.event(self._places[device])

    def elapsed(self, first: Any, second: Any) -> float:
        """Return the elapsed seconds; drivers count milliseconds."""
        return float(first.elapsed_time(second)) / 1e3

    def record(self, event: Any, stream: Queue) -> None:
        """Record the event on the stream."""
        try:
            event.record(stream.stream)
        except Exception as error:
            stream.errors.raise_for(error)
            raise

    def wait(self, stream: Queue, event: Any) -> None:
        """Make the stream wait for the event, on the device."""
        try:
            stream.stream.wait_event(event)
        except Exception as error:
            stream.errors.raise_for(error)
            raise

    def prepare(self, stream: Queue, program: LoadedProgram, inputs: Sequence[View], outputs: Sequence[View]) -> Prepared:
        """Return a function that launches a program; on CUDA, its first call records a graph if the program can be replayed."""
        if isinstance(stream.stream, HostStream):
            return functools.partial(stream.stream.run, functools.partial(_compute, stream.errors, program, inputs, outputs))
        graphs = stream.graphs if is_replayable(program) else None
        return prepared_program(stream, functools.partial(program.launch, inputs, outputs), graphs)

    def batch(self, stream: Queue, begin: Any, steps: Sequence[Step]) -> LaunchBatch:
        """Return a batch; on CUDA, its first start records one graph if all programs can be replayed."""
        return LaunchBatch(stream, begin, steps)

    def copy(self, stream: Queue, source: View, destination: View, destination_stream: Queue | None = None) -> None:
        """Copy on a stream, with ``destination_stream`` as the current stream of the destination.

        Between GPUs, PyTorch copies on the source's current stream. It makes that stream wait for the destination's current
        stream before the copy, and the destination's wait for the source's after it. So the destination's current stream is
        ``destination_stream`` during the call, on which nothing else is launched.
        """
        launch = functools.partial(self.library.copy, source, destination)
        if destination_stream is None:
            stream.launch(launch)
        else:
            destination_stream.launch(functools.partial(stream.launch, launch))

    def notify(self, stream: Queue, event: Any, inbox: Inbox, token: Token) -> None:
        """Have an event reported; the thread of a core set reports as its next job."""
        if isinstance(stream.stream, HostStream):
            stream.stream.launch(functools.partial(inbox.put, token))
            return
        try:
            self._reports.report(stream.stream, event, inbox, token)
        except Exception as error:
            stream.errors.raise_for(error)
            raise

    def take(self, inbox: Inbox) -> Token | None:
        """Wait for the next token, and check regularly that the devices are alive, since a broken device reports nothing."""
        while True:
            token = inbox.get(_CHECK_INTERVAL_S)
            if token is not None or inbox.over:
                return token
            self._check_devices()

    def _check_devices(self) -> None:
        for queue in list(self._queues):
            with queue.errors:
                if isinstance(queue.stream, HostStream):
                    queue.stream.query()
                else:
                    self.library.query(queue.stream)

    def finish(self, stream: Queue) -> None:
        """Wait for everything launched on the stream, asleep."""
        with stream.errors:
            if isinstance(stream.stream, HostStream):
                stream.stream.synchronize()
            else:
                self.library.finish(stream.stream)


def _compute(errors: DeviceErrors, program: LoadedProgram, inputs: Sequence[View], outputs: Sequence[View]) -> None:
    with errors:
        program.launch(inputs, outputs)
