"""CuPy as the library of NVIDIA GPUs: its streams, events, memory pools and graphs, and copies by the CUDA runtime.

No kernels of CuPy run, so neither a compiler nor CUDA's headers are needed. Tensors are addresses with a shape.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from placeit.core.arrays import DLPackArray
from placeit.core.errors import DeviceError
from placeit.core.narrowing import narrowed
from placeit.runtime.accelerators.library import Place, array_at
from placeit.runtime.blank import blank_value, is_blank
from placeit.runtime.devices.base import BufferSpec

__all__ = ["CupyLibrary"]

_SUCCESS, _NOT_READY, _PEER_ACCESS_ALREADY_ENABLED = 0, 600, 704  # cudaError_t


class CudaMemory:
    """Bytes on a GPU, or pinned bytes of the host.

    Attributes:
        place: number of the GPU; None for the host.
        pointer: CuPy's pointer. The memory returns to its pool when the pointer is garbage-collected.
    """

    def __init__(self, place: int | None, pointer: Any) -> None:
        self.place, self.pointer = place, pointer


class CudaView:
    """A tensor on a GPU, or in pinned memory of the host.

    Attributes:
        place: number of the GPU; None for the host.
        address: address of its first element.
        nbytes: size in bytes.
        pointer: CuPy's pointer, which keeps the memory alive.
        dtype: element type.
        shape: shape in memory order.
        array: the tensor in its logical shape, on the host; None on a GPU.
    """

    def __init__(self, memory: CudaMemory, spec: BufferSpec) -> None:
        self.pointer = memory.pointer
        try:
            self.dtype = np.dtype(spec.dtype)
        except TypeError as error:
            raise DeviceError(
                f"ONNX Runtime cannot be given tensors of type {spec.dtype} on an NVIDIA GPU: keep the ops that exchange them "
                "on one device, or place them on other devices."
            ) from error
        self.place, self.address, self.shape = memory.place, int(memory.pointer.ptr), spec.memory_shape
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        self.array: NDArray[Any] | None = None
        if memory.place is None:
            self.array = spec.to_logical_order(array_at(self.address, self.shape, self.dtype, memory.pointer))

    @property
    def on_host(self) -> NDArray[Any]:
        """The tensor as an array; it must be on the host."""
        assert self.array is not None  # noqa: S101
        return self.array


class CudaEvent:
    """An event with timing. Threads that wait for it sleep.

    Attributes:
        ptr: the driver's handle.
        record: records the event on a stream.
        synchronize: waits for the event, without the interpreter's lock.
    """

    def __init__(self) -> None:
        self._event = cupy.cuda.Event(block=True)
        self.ptr, self.record, self.synchronize = self._event.ptr, self._event.record, self._event.synchronize

    def elapsed_time(self, end: CudaEvent) -> float:
        """Return the milliseconds to another event."""
        return float(cupy.cuda.get_elapsed_time(self._event, end._event))


class CupyLibrary:
    """CuPy's streams, events, memory pools and graphs. Places are numbers of GPUs, and None for the host.

    Raises:
        DeviceError: there is no driver, or it is too old for this CuPy.
    """

    hardware = "cuda"
    out_of_memory: type[BaseException] = cupy.cuda.memory.OutOfMemoryError
    times_graphs = False  # CuPy cannot record an event with timing as part of a graph

    def __init__(self) -> None:
        try:
            self._count = int(cupy.cuda.runtime.getDeviceCount())
        except cupy.cuda.runtime.CUDARuntimeError as error:
            version = cupy.cuda.runtime.runtimeGetVersion()
            raise DeviceError(
                f"CuPy {cupy.__version__} for CUDA {version // 1000}.{version % 1000 // 10} finds no GPU to use ({error}): "
                "check that `nvidia-smi` lists one, that its driver is recent enough for this CUDA, and that "
                "CUDA_VISIBLE_DEVICES does not hide it."
            ) from error
        self._devices = [cupy.cuda.Device(number) for number in range(self._count)]
        # separate from CuPy's current allocators, which belong to the user
        self._pool, self._pinned = cupy.cuda.MemoryPool(), cupy.cuda.PinnedMemoryPool()
        self._lock = threading.Lock()
        self._peers: dict[tuple[int, int], bool] = {}
        self._adoption_streams: dict[int, Any] = {}  # streams that wait for the work of callers, by GPU

    # -- devices ----------------------------------------------------------------------------------------------------------

    def place(self, hardware: str | None) -> int | None:
        """Return the GPU's number. Raises DeviceError if it does not exist."""
        if hardware is None:
            return None
        number = int(hardware.partition(":")[2] or 0)
        if number >= self._count:
            there = ", ".join(f"cuda:{i}" for i in range(self._count))
            raise DeviceError(f"There is no device {hardware}; CuPy sees {there}. See `placeit devices`.")
        return number

    def number(self, place: Place) -> int | None:
        """Return the place."""
        return None if place is None else narrowed(int, place)

    def divide(self, name: str, place: Place, parts: int) -> None:  # noqa: ARG002
        """Refuse. Raises DeviceError."""
        raise DeviceError(f"{name}: parts of a GPU run PyTorch models only: name the whole GPU, or load the model in PyTorch.")

    def exact(self) -> AbstractContextManager[object]:
        """Return a context that does nothing: no kernel of CuPy runs."""
        return contextlib.nullcontext()

    def launching(self) -> AbstractContextManager[object]:
        """Return a context that does nothing."""
        return contextlib.nullcontext()

    def use_threads(self, count: int) -> None:
        """Do nothing: CuPy computes nothing on the host."""

    def _on(self, place: Place) -> AbstractContextManager[object]:
        """Return a context in which a GPU is the current device."""
        device: AbstractContextManager[object] = self._devices[narrowed(int, place)]
        return device

    # -- memory -----------------------------------------------------------------------------------------------------------

    def can_peer(self, src: Place, dst: Place) -> bool:
        """Ask the driver, and enable the access."""
        pair = narrowed(int, src), narrowed(int, dst)
        runtime = cupy.cuda.runtime
        with self._lock:
            if pair not in self._peers:
                self._peers[pair] = bool(runtime.deviceCanAccessPeer(*pair))
                if self._peers[pair]:
                    with self._on(src):
                        try:
                            runtime.deviceEnablePeerAccess(dst)
                        except runtime.CUDARuntimeError as error:
                            if error.status != _PEER_ACCESS_ALREADY_ENABLED:
                                raise
            return self._peers[pair]

    def free_bytes(self, place: Place) -> float:
        """Return the free bytes of the driver and of the pool."""
        with self._on(place):
            return float(cupy.cuda.runtime.memGetInfo()[0] + self._pool.free_bytes())

    def allocate(self, place: Place | None, nbytes: int) -> CudaMemory:
        """Allocate from a pool."""
        if place is None:
            return CudaMemory(None, self._pinned.malloc(nbytes))
        with self._on(place):
            return CudaMemory(narrowed(int, place), self._pool.malloc(nbytes))

    def free(self, memory: CudaMemory) -> None:
        """Return memory to its pool, as soon as no view of it exists."""
        memory.pointer = None

    def trim(self) -> None:
        """Return unused memory of the pools."""
        for device in self._devices:
            with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError), device:
                self._pool.free_all_blocks()
        self._pinned.free_all_blocks()

    def view(self, memory: CudaMemory, spec: BufferSpec) -> CudaView:
        """Return a tensor in the memory. Raises DeviceError if NumPy lacks its type."""
        return CudaView(memory, spec)

    def address(self, view: CudaView) -> int:
        """Return the address."""
        return view.address

    def write(self, view: CudaView, value: NDArray[np.generic]) -> None:
        """Copy an array."""
        view.on_host[...] = value

    def read(self, view: CudaView) -> NDArray[np.generic]:
        """Copy a tensor."""
        return np.array(view.on_host, order="C")

    def host_view(self, view: CudaView, owner: object) -> NDArray[np.generic]:  # noqa: ARG002
        """Return the tensor's array, which keeps the memory alive itself."""
        return view.on_host

    def adopt(self, array: object) -> tuple[int, CudaView, CudaEvent]:
        """Take an array by DLPack, on a stream that waits for the caller's work. Raises BufferError if it is not contiguous."""
        if not isinstance(array, DLPackArray):
            return self.adopt(cupy.asarray(array))  # waits for the stream that the array's interface names
        place = int(array.__dlpack_device__()[1])
        with self._lock, self._on(place):
            if place not in self._adoption_streams:
                self._adoption_streams[place] = self.stream(place, 0, (1, 1))
            stream, event = self._adoption_streams[place], CudaEvent()
            held = cupy.from_dlpack(array.__dlpack__(stream=self.handle(stream)))
            event.record(stream)
        if not held.flags.c_contiguous:
            raise BufferError("it is not contiguous")
        return place, CudaView(CudaMemory(place, held.data), BufferSpec(held.shape, held.dtype.name)), event

    def array(self, view: CudaView) -> object:
        """Return a ``cupy.ndarray``."""
        return cupy.ndarray(view.shape, view.dtype, view.pointer)

    def blank(self, view: CudaView, sentinel: int) -> None:
        """Fill a tensor, on a GPU by a copy from the host."""
        value = blank_value(view.dtype, sentinel)
        if view.array is not None:
            view.array[...] = value
            return
        filled = np.full(view.shape, value, view.dtype)
        self._copy_now(view.place, filled.ctypes.data, view.address, view.nbytes)

    def is_blank(self, view: CudaView, sentinel: int) -> bool:
        """Compare on the host."""
        if view.array is not None:
            return is_blank(view.array, sentinel)
        found = np.empty(view.shape, view.dtype)
        self._copy_now(view.place, view.address, found.ctypes.data, view.nbytes)
        return is_blank(found, sentinel)

    def _copy_now(self, place: int | None, source: int, destination: int, nbytes: int) -> None:
        with self._on(place):
            stream = cupy.cuda.Stream(non_blocking=True)
            cupy.cuda.runtime.memcpyAsync(destination, source, nbytes, cupy.cuda.runtime.memcpyDefault, stream.ptr)
            stream.synchronize()

    # -- streams, events and graphs -----------------------------------------------------------------------------------------

    def stream(self, place: Place, priority: int, part: tuple[int, int]) -> Any:  # noqa: ARG002
        """Return a new stream."""
        with self._on(place):
            return cupy.cuda.Stream(non_blocking=True, priority=priority)

    def event(self, place: Place) -> CudaEvent:
        """Return a new event."""
        with self._on(place):
            return CudaEvent()

    def current(self, place: Place) -> Any:
        """Return CuPy's current stream."""
        return cupy.cuda.get_current_stream(place)

    def follow(self, stream: Any, other: Any) -> None:
        """Have a stream wait for an event on another one of its device."""
        with self._on(stream.device_id):
            event = cupy.cuda.Event(disable_timing=True)
            event.record(other)
            stream.wait_event(event)

    def query(self, stream: Any) -> None:
        """Ask the driver about the stream, which tells errors of its device."""
        runtime = cupy.cuda.runtime
        status = runtime.streamQuery(stream.ptr)
        if status not in (_SUCCESS, _NOT_READY):
            raise runtime.CUDARuntimeError(status)

    def finish(self, stream: Any) -> None:
        """Wait for an event: CUDA spins while it waits for a stream."""
        with self._on(stream.device_id):
            event = cupy.cuda.Event(block=True, disable_timing=True)
            event.record(stream)
            event.synchronize()

    def handle(self, stream: Any) -> int:
        """Return the ``cudaStream_t``."""
        return int(stream.ptr)

    def launch_on(self, stream: Any, launch: Callable[[], object]) -> None:
        """Launch with a stream as the current one of its device, and that as the current device."""
        with self._on(stream.device_id), stream:
            launch()

    def copy(self, source: CudaView, destination: CudaView) -> None:
        """Copy bytes; unified addresses tell the driver where they are."""
        runtime = cupy.cuda.runtime
        stream = cupy.cuda.get_current_stream()
        runtime.memcpyAsync(destination.address, source.address, source.nbytes, runtime.memcpyDefault, stream.ptr)

    def graph_pool(self) -> None:
        """Return None: graphs of copies and of programs with their own memory allocate nothing."""

    def capture(self, stream: Any, pool: None, launch: Callable[[Any], None]) -> Callable[[], None] | None:  # noqa: ARG002
        """Record a CUDA graph."""
        try:
            with self._on(stream.device_id), stream:
                stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
                try:
                    launch(stream)
                finally:
                    graph = stream.end_capture()
        except (RuntimeError, MemoryError):  # cupy.cuda.runtime.CUDARuntimeError, OutOfMemoryError
            return None
        replay: Callable[[], None] = graph.launch
        return replay
