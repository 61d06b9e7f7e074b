"""The stand-in of CUDA as PyTorch and CuPy have it: their names, and their rules."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import numpy as np
import torch
import torch.utils.dlpack
from torch.utils._python_dispatch import TorchDispatchMode

from placeit.runtime.accelerators import torch_library
from placeit.runtime.accelerators.library import array_at
from tests.recorded_cuda import RecordedCuda, RecordedEvent, RecordedStream, dtype_of

__all__ = ["fake_cupy", "open_library", "recorded_cupy", "recorded_torch"]


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
        return SimpleNamespace(data=data, shape=tuple(tensor.shape), dtype=dtype_of(tensor), flags=flags)

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


def open_library(which: str, cuda: RecordedCuda, monkeypatch: Any) -> Any:
    """Open ``torch`` or ``cupy`` on a stand-in."""
    return {"torch": recorded_torch, "cupy": recorded_cupy}[which](cuda, monkeypatch)
