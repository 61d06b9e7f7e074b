"""A stand-in of CUDA below PyTorch and below CuPy, which tells the checker of memory accesses what happens in which order.

It has streams, events, memory, copies and graphs. Work is done at once, when it is launched, so results are right whatever the
order; :class:`~tests.happens_before.HappensBefore` finds what only the host's order makes right. Rules of CUDA and of the two
libraries that the code has to keep are faults, too: an event belongs to the device of its streams, and CuPy makes a stream
current only where its device is.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import numpy as np
import torch
import torch.utils.dlpack
from torch.utils._python_dispatch import TorchDispatchMode

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.runtime.accelerators import torch_library
from placeit.runtime.accelerators.library import array_at
from placeit.runtime.accelerators.stream_accelerator import StreamAccelerator
from tests.fake_streams import Turn
from tests.happens_before import Access, HappensBefore

__all__ = ["CallersArray", "OnCuda", "RecordedAccelerator", "RecordedCuda", "open_recorded"]

_host = threading.get_ident  # identifies the calling thread


class RecordedCuda:
    """CUDA with some devices.

    Attributes:
        order: the checker.
        waits: how many times a stream was told to wait for an event.
        replays: how many graphs were launched.
        enabled: pairs of devices of which the first may write the second's memory.
        copies: devices that copies were launched from and to; None for the host.
        hosts: threads of the host that have launched something.
    """

    def __init__(self, devices: int, *, peers: frozenset[tuple[int, int]] | None = None, skip_wait: int | None = None) -> None:
        self.devices, self.order, self.waits, self.replays = devices, HappensBefore(), 0, 0
        self.enabled: set[tuple[int, int]] = set()
        self.copies: list[tuple[int | None, int | None]] = []
        self.hosts: set[int] = set()
        self.lock = threading.RLock()
        self.events: dict[int, RecordedEvent] = {}
        self.streams: dict[int, RecordedStream] = {}
        self._peers, self._skip_wait = peers, skip_wait
        self._memory: dict[int, tuple[int, int, int | None]] = {}  # by number: address, bytes, device
        self._numbers = itertools.count(1)
        self._local = threading.local()

    def number(self) -> int:
        return next(self._numbers)

    def can_peer(self, src: int, dst: int) -> bool:
        return self._peers is None or (src, dst) in self._peers

    # -- memory -------------------------------------------------------------------------------------------------------

    def allocated(self, address: int, nbytes: int, device: int | None) -> int:
        with self.lock:
            number = self.number()
            self._memory[number] = address, nbytes, device
            return number

    def freed(self, number: int) -> None:
        with self.lock:
            self.told()  # the last reference may end on any thread, after all others
            self.order.free(number, host=_host())
            del self._memory[number]

    def find(self, address: int) -> tuple[int, int | None] | None:
        """Number and device of the memory at an address; None for memory that is not CUDA's."""
        for number, (start, nbytes, device) in self._memory.items():
            if start <= address < start + max(1, nbytes):
                return number, device
        return None

    def accesses(self, *addresses: int) -> list[Access]:
        found = [(self.find(address), address) for address in addresses]
        return [Access(memory[0], f"address {address}") for memory, address in found if memory is not None]

    def by_host(self, reads: tuple[int, ...] = (), writes: tuple[int, ...] = ()) -> None:
        with self.lock:
            self.order.use(_host(), "the host", self.accesses(*reads), self.accesses(*writes), host=_host())

    # -- work -----------------------------------------------------------------------------------------------------------

    @property
    def current(self) -> list[RecordedStream]:
        if not hasattr(self._local, "streams"):
            self._local.streams, self._local.device = [], [0]
        return self._local.streams

    @property
    def device(self) -> list[int]:
        """Current devices of the thread, the last one counts."""
        _ = self.current
        return self._local.device

    def launch(self, stream: RecordedStream, what: str, reads: tuple[int, ...], writes: tuple[int, ...], work: Any) -> None:
        if stream.capture is not None:
            stream.capture.append(lambda on: self.launch(on, what, reads, writes, work))
            return
        with self.lock:
            self.hosts.add(_host())
            self.order.use(stream, what, self.accesses(*reads), self.accesses(*writes), host=_host())
            work()

    def copy(self, stream: RecordedStream, source: int, destination: int, nbytes: int) -> None:
        ends = [self.find(address) for address in (source, destination)]
        self.copies.append(tuple(None if end is None else end[1] for end in ends))  # type: ignore[arg-type]
        move = functools.partial(ctypes.memmove, destination, source, nbytes)
        self.launch(stream, f"the copy from {source}", (source,), (destination,), move)

    def told(self) -> None:
        """The calling thread learns what all others know, as when it gets the result of a run."""
        with self.lock:
            for host in self.hosts:
                self.order.after(_host(), dict(self.order.mark(host)))

    def wait(self, stream: RecordedStream, event: RecordedEvent) -> None:
        with self.lock:
            self.waits += 1
            if self.waits - 1 != self._skip_wait and event.mark is not None:
                self.order.after(stream, event.mark)

    def replay(self, stream: RecordedStream, graph: list[Any]) -> None:
        self.replays += 1
        for step in graph:
            step(stream)


class RecordedStream:
    """A stream, with the methods of both libraries."""

    def __init__(self, cuda: RecordedCuda, device: int, priority: int = 0) -> None:
        self.cuda, self.device_id, self.priority, self.ptr = cuda, device, priority, cuda.number()
        self.cuda_stream = self.ptr
        self.capture: list[Any] | None = None
        self._modes: list[Any] = []
        cuda.streams[self.ptr] = self

    def __enter__(self) -> Self:
        self.cuda.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.cuda.current.pop()

    def wait_event(self, event: Any) -> None:
        self.cuda.wait(self, self.cuda.events[event.ptr])

    def synchronize(self) -> None:
        with self.cuda.lock:
            self.cuda.order.after(_host(), self.cuda.order.mark(self))


class RecordedEvent:
    """An event, with the methods of both libraries."""

    def __init__(self, cuda: RecordedCuda, device: int | None) -> None:
        self.cuda, self.device, self.ptr, self.mark, self.at = cuda, device, cuda.number(), None, 0.0
        cuda.events[self.ptr] = self

    def record(self, stream: Any) -> None:
        if stream.capture is not None:
            stream.capture.append(self.record)
            return
        with self.cuda.lock:
            self.device = stream.device_id if self.device is None else self.device
            if self.device != stream.device_id:
                self.cuda.order.faults.append(f"an event of device {self.device} is recorded on device {stream.device_id}")
            self.mark, self.at = self.cuda.order.mark(stream), time.perf_counter()

    def synchronize(self) -> None:
        with self.cuda.lock:
            assert self.mark is not None
            self.cuda.order.after(_host(), self.mark)

    def elapsed_time(self, end: RecordedEvent) -> float:
        return (end.at - self.at) * 1e3


# -- CuPy ---------------------------------------------------------------------------------------------------------------


class CudaError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class Pointer:
    """Memory of a pool, which is freed with the last reference to it."""

    def __init__(self, cuda: RecordedCuda, nbytes: int, device: int | None) -> None:
        self._bytes, self._cuda = np.full(max(1, nbytes), 0xFF, np.uint8), cuda
        self.ptr = self._bytes.ctypes.data
        self._number = cuda.allocated(self.ptr, nbytes, device)

    def __del__(self) -> None:
        self._cuda.freed(self._number)


def fake_cupy(cuda: RecordedCuda) -> ModuleType:
    """What of CuPy the library uses, by its documented names and arguments."""

    class Current:
        def __init__(self, device: int) -> None:
            self.id = device

        def __enter__(self) -> None:
            cuda.device.append(self.id)

        def __exit__(self, *_: object) -> None:
            cuda.device.pop()

    class Stream(RecordedStream):
        def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int = 0) -> None:
            assert non_blocking, "a stream that waits for the default stream"
            super().__init__(cuda, cuda.device[-1], priority)

        def __enter__(self) -> Self:
            if self.device_id != cuda.device[-1]:
                raise RuntimeError("The device that the stream is created on does not match with the current device")
            return super().__enter__()

        def begin_capture(self, mode: int) -> None:
            assert mode == 1
            self.capture = []

        def end_capture(self) -> Any:
            graph, self.capture = self.capture or [], None
            return SimpleNamespace(launch=lambda stream=None: cuda.replay(stream or cuda.current[-1], graph))

    class Event(RecordedEvent):
        def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
            super().__init__(cuda, cuda.device[-1])
            self.timed = not disable_timing

    def elapsed(start: Event, end: Event) -> float:
        assert start.timed
        assert end.timed
        return start.elapsed_time(end)

    def copy(dst: int, src: int, size: int, kind: int, stream: int) -> None:
        assert kind == 4
        cuda.copy(cuda.streams[stream], src, dst, size)

    def enable(peer: int) -> None:
        if (cuda.device[-1], peer) in cuda.enabled:
            raise CudaError(704)
        cuda.enabled.add((cuda.device[-1], peer))

    runtime = SimpleNamespace(
        CUDARuntimeError=CudaError,
        memcpyDefault=4,
        streamCaptureModeThreadLocal=1,
        getDeviceCount=lambda: cuda.devices,
        runtimeGetVersion=lambda: 12090,
        memGetInfo=lambda: (1 << 40, 1 << 41),
        memcpyAsync=copy,
        deviceCanAccessPeer=lambda device, peer: int(cuda.can_peer(device, peer)),
        deviceEnablePeerAccess=enable,
        streamQuery=lambda stream: 600,
    )
    pool = SimpleNamespace(
        malloc=lambda size: Pointer(cuda, size, cuda.device[-1]), free_bytes=lambda: 0, free_all_blocks=lambda: None
    )
    pinned = SimpleNamespace(malloc=lambda size: Pointer(cuda, size, None), free_all_blocks=lambda: None)

    def from_dlpack(capsule: Any) -> Any:
        tensor = torch.utils.dlpack.from_dlpack(capsule)
        data, flags = (
            SimpleNamespace(ptr=tensor.data_ptr(), tensor=tensor),
            SimpleNamespace(c_contiguous=tensor.is_contiguous()),
        )
        return SimpleNamespace(data=data, shape=tuple(tensor.shape), dtype=_dtype(tensor), flags=flags)

    class Array:
        def __init__(self, shape: Any, dtype: Any, memptr: Any) -> None:
            self.shape, self.dtype, self.data = shape, dtype, memptr

        def get(self) -> Any:
            return array_at(self.data.ptr, self.shape, self.dtype, self.data)

    module: Any = ModuleType("cupy")
    module.from_dlpack, module.ndarray = from_dlpack, Array
    module.__version__ = "0"
    module.cuda = SimpleNamespace(
        Device=Current,
        Stream=Stream,
        Event=Event,
        MemoryPool=lambda: pool,
        PinnedMemoryPool=lambda: pinned,
        get_current_stream=lambda device=-1: cuda.current[-1],
        get_elapsed_time=elapsed,
        memory=SimpleNamespace(OutOfMemoryError=type("OutOfMemoryError", (MemoryError,), {})),
        runtime=runtime,
    )
    return module


def recorded_cupy(cuda: RecordedCuda, monkeypatch: Any) -> Any:
    """The library on the stand-in of CuPy."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(cuda))
    monkeypatch.delitem(sys.modules, "placeit.runtime.accelerators.cupy_library", raising=False)
    from placeit.runtime.accelerators.cupy_library import CupyLibrary

    monkeypatch.delitem(sys.modules, "placeit.runtime.accelerators.cupy_library")
    return CupyLibrary()


# -- PyTorch ------------------------------------------------------------------------------------------------------------


class Copies(TorchDispatchMode):
    """Has PyTorch's copies be CUDA's: between devices, they are ordered with the destination's current stream."""

    def __init__(self, cuda: RecordedCuda) -> None:
        super().__init__()
        self._cuda = cuda

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cuda = self._cuda
        if func is not torch.ops.aten.copy_.default:
            return func(*args, **(kwargs or {}))
        destination, source = args[0], args[1]
        ends = [cuda.find(tensor.data_ptr()) for tensor in (source, destination)]
        src, dst = (None if end is None else end[1] for end in ends)
        if src is None and dst is None:  # the host's own work
            return func(*args, **(kwargs or {}))
        stream = next(stream for stream in reversed(cuda.current) if stream.device_id == (dst if src is None else src))
        beside = None
        if None not in (src, dst) and src != dst:
            beside = next(stream for stream in reversed(cuda.current) if stream.device_id == dst)
            cuda.order.after(stream, cuda.order.mark(beside))
        cuda.copy(stream, source.data_ptr(), destination.data_ptr(), source.nbytes)
        if beside is not None:
            cuda.order.after(beside, cuda.order.mark(stream))
        return destination


def recorded_torch(cuda: RecordedCuda, monkeypatch: Any) -> Any:
    """The library on the stand-in of ``torch.cuda``."""

    class Stream(RecordedStream):
        def __init__(self, device: torch.device, priority: int = 0) -> None:
            super().__init__(cuda, device.index, priority)

        def __enter__(self) -> Self:
            mode = Copies(cuda)
            mode.__enter__()
            self._modes.append(mode)
            return super().__enter__()

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            self._modes.pop().__exit__(*error)

        def wait_stream(self, other: RecordedStream) -> None:
            cuda.order.after(self, cuda.order.mark(other))

        def query(self) -> bool:
            return False

    class Event(RecordedEvent):
        def __new__(cls, enable_timing: bool = False, blocking: bool = False, external: bool = False) -> Self:
            return super().__new__(cls)

        def __init__(self, enable_timing: bool = False, blocking: bool = False, external: bool = False) -> None:
            super().__init__(cuda, None)

    class Graph:
        def capture_begin(self, *, pool: int, capture_error_mode: str) -> None:
            cuda.current[-1].capture = []

        def capture_end(self) -> None:
            self.steps, cuda.current[-1].capture = cuda.current[-1].capture, None

        def replay(self) -> None:
            cuda.replay(cuda.current[-1], self.steps or [])

    empty, numbers = torch.empty, dict[int, int]()

    def allocate(self: Any, place: Any, nbytes: int) -> torch.Tensor:
        made = empty(max(1, nbytes), dtype=torch.uint8)
        numbers[made.data_ptr()] = cuda.allocated(made.data_ptr(), nbytes, None if place is None else place.index)
        return made

    def free(self: Any, memory: torch.Tensor) -> None:
        cuda.freed(numbers.pop(memory.data_ptr()))

    module = SimpleNamespace(
        device_count=lambda: cuda.devices,
        can_device_access_peer=lambda src, dst: cuda.can_peer(src.index, dst.index),
        current_stream=lambda place: next(s for s in reversed(cuda.current) if s.device_id == place.index),
    )
    monkeypatch.setattr(torch_library, "_module", lambda kind: module)
    monkeypatch.setattr(torch_library.TorchLibrary, "allocate", allocate)  # PyTorch's allocators need a driver
    monkeypatch.setattr(torch_library.TorchLibrary, "free", free)
    for name, made in {"Stream": Stream, "Event": Event, "CUDAGraph": Graph, "graph_pool_handle": cuda.number}.items():
        monkeypatch.setattr(torch.cuda, name, made)
    return torch_library.TorchLibrary("cuda")


# -- the accelerator ------------------------------------------------------------------------------------------------------


class RecordedAccelerator(StreamAccelerator):
    """An accelerator that also tells the checker what the host does, and what its threads learn from each other."""

    def __init__(self, cuda: RecordedCuda, library: Any) -> None:
        self.cuda = cuda
        self._told: dict[tuple[int, Any], Any] = {}
        names = [f"cuda:{number}" for number in range(cuda.devices)]
        super().__init__([Device(name, kind="cuda", address=Address(name)) for name in names], library)

    def turn(self) -> Any:
        turn, order = super().turn(), self.cuda.order
        known = Turn(lambda mark: order.after(_host(), mark), lambda: dict(order.mark(_host())))

        class Both:
            def __enter__(self) -> None:
                turn.__enter__()
                known.__enter__()

            def __exit__(self, *error: object) -> None:
                known.__exit__(*error)
                turn.__exit__(*error)

        return Both()

    def write(self, view: Any, value: Any) -> None:
        self.cuda.by_host(writes=(self.library.address(view),))
        super().write(view, value)

    def read(self, view: Any) -> Any:
        self.cuda.by_host(reads=(self.library.address(view),))
        return super().read(view)

    def blank(self, view: Any, sentinel: int) -> None:
        self.cuda.by_host(writes=(self.library.address(view),))
        super().blank(view, sentinel)

    def is_blank(self, view: Any, sentinel: int) -> bool:
        self.cuda.by_host(reads=(self.library.address(view),))
        return super().is_blank(view, sentinel)

    def notify(self, stream: Any, event: Any, inbox: Any, token: Any) -> None:
        def put(token: Any) -> None:
            with self.cuda.lock:
                self._told[id(inbox), token] = dict(self.cuda.order.mark(_host()))
            inbox.put(token)

        super().notify(stream, event, SimpleNamespace(put=put, fail=inbox.fail), token)

    def take(self, inbox: Any) -> Any:
        token = super().take(inbox)
        if token is not None:
            with self.cuda.lock:
                self.cuda.order.after(_host(), self._told.pop((id(inbox), token)))
        return token


def open_recorded(which: str, cuda: RecordedCuda, monkeypatch: Any) -> RecordedAccelerator:
    """Open the devices of a stand-in by ``torch`` or ``cupy``."""
    return RecordedAccelerator(cuda, {"torch": recorded_torch, "cupy": recorded_cupy}[which](cuda, monkeypatch))


class OnCuda:
    """A program of the fake accelerator's tests, as a kernel on the current stream."""

    def __init__(self, cuda: RecordedCuda, library: Any, program: Any, *, replayable: bool = False) -> None:
        self._cuda, self._library, self._program, self.replayable = cuda, library, program, replayable

    def workspace_bytes(self, enough: float) -> int:
        return 0

    def weight_bytes(self, place: object) -> int:
        return 0

    def load(self, place: object) -> OnCuda:
        return OnCuda(self._cuda, self._library, self._program.load(place), replayable=self.replayable)

    def launch(self, inputs: Any, outputs: Any) -> None:
        ends = [tuple(self._library.address(view) for view in views) for views in (inputs, outputs)]
        arrays = [[_array(self._library.address(view), view) for view in views] for views in (inputs, outputs)]
        self._cuda.launch(self._cuda.current[-1], f"a kernel of {self._program}", *ends, lambda: self._program.launch(*arrays))


def _array(address: int, view: Any) -> Any:
    return array_at(address, tuple(view.shape), _dtype(view), view)


def _dtype(view: Any) -> np.dtype[Any]:
    return np.dtype(str(view.dtype).removeprefix("torch."))


class CallersArray:
    """An array on a GPU that a stream of the caller has written, with DLPack.

    Args:
        cuda: CUDA.
        device: the GPU.
        value: what is written there.
        careless: whether it lets others read it before it was written.
    """

    def __init__(self, cuda: RecordedCuda, device: int, value: Any, *, careless: bool = False) -> None:
        self.value, self.shape, self.dtype = np.zeros_like(value), value.shape, value.dtype
        self._cuda, self._device, self._careless = cuda, device, careless
        self._stream, address = RecordedStream(cuda, device), self.value.ctypes.data
        cuda.allocated(address, value.nbytes, device)
        cuda.launch(self._stream, "the caller", (), (address,), lambda: np.copyto(self.value, value))

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._device

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        with self._cuda.lock:
            if stream is not None and not self._careless:
                self._cuda.order.after(self._cuda.streams[stream], self._cuda.order.mark(self._stream))
        return self.value.__dlpack__()
