"""PyTorch as the library of accelerators, by its device-generic interface: torch.Stream, torch.Event, torch.get_device_module.

Three things are only for CUDA: events that graphs can record and that threads wait for asleep, parts of a GPU, and the setting
that prevents cuDNN's convolutions and recurrent layers from rounding float32 to TF32.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from numpy.typing import NDArray

from placeit.core.arrays import CudaArray, DLPackArray
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.narrowing import narrowed
from placeit.runtime.accelerators.gpu_parts import check_parts, part_stream
from placeit.runtime.accelerators.library import Place, array_at
from placeit.runtime.accelerators.module_program import ModuleProgram, wait_for_default_stream
from placeit.runtime.accelerators.stream_accelerator import StreamAccelerator
from placeit.runtime.accelerators.torch_rounding import without_tf32
from placeit.runtime.devices.accelerator import Streams
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.devices.pytorch import module_of, use_threads

__all__ = ["TorchLibrary", "open_accelerator", "open_torch", "torch_streams"]


def open_accelerator(devices: Sequence[Device], precision: str) -> Streams:
    """Open devices that PyTorch drives, at least one of which is not a CPU core set. Raises DeviceError."""
    return torch_streams(open_torch(devices), precision)


def open_torch(devices: Sequence[Device]) -> StreamAccelerator:
    """Open devices of one type, and CPU core sets, with PyTorch; see :class:`StreamAccelerator`.

    Raises:
        DeviceError: PyTorch has no support for the devices, there is no driver or no such device, or this process may not use
            the cores.
    """
    own = [device.where.hardware for device in devices if not device.core_set]
    return StreamAccelerator(devices, TorchLibrary(torch.device(own[0]).type if own else "cpu"))


def torch_streams(accelerator: StreamAccelerator, precision: str = "f32") -> Streams:
    """Drive an accelerator of PyTorch with segments as PyTorch modules."""
    names = ", ".join(accelerator.names)
    return Streams(accelerator, lambda segment: ModuleProgram(module_of(segment, names, precision)))


class TorchLibrary:
    """PyTorch's streams, events, memory and graphs of devices of one type. Places are ``torch.device``.

    Args:
        hardware: PyTorch's name of the type, such as ``cuda``.

    Raises:
        DeviceError: PyTorch has no support for such devices, or there is no driver.
    """

    out_of_memory = torch.OutOfMemoryError

    def __init__(self, hardware: str) -> None:
        self.hardware, self._module = hardware, _module(hardware)
        self.times_graphs = _can_time_graphs()
        self._lock = threading.Lock()
        self._adoption_streams: dict[torch.device, Any] = {}  # streams that wait for the work of callers

    def place(self, hardware: str | None) -> torch.device:
        """Return the device. Raises DeviceError if it does not exist, or is of another type."""
        if hardware is None:
            return torch.device("cpu")
        place, count = torch.device(hardware), int(self._module.device_count())
        if place.type != self.hardware:
            raise DeviceError(f"{place} and {self.hardware} are of different types, and share no streams: choose one.")
        if (place.index or 0) >= count:
            there = ", ".join(f"{self.hardware}:{i}" for i in range(count))
            raise DeviceError(f"There is no device {place}; PyTorch sees {there}. See `placeit devices`.")
        return place

    def number(self, place: Place) -> int | None:
        """Return the device's index; None for the CPU."""
        device = narrowed(torch.device, place)
        return None if device.type == "cpu" else device.index or 0

    def divide(self, name: str, place: Place, parts: int) -> None:
        """Divide a GPU into green contexts; see :func:`placeit.runtime.accelerators.gpu_parts.check_parts`."""
        check_parts(name, self.number(place) or 0, parts)

    def exact(self) -> AbstractContextManager[object]:
        """Return a context that forbids TF32 on CUDA."""
        return without_tf32() if self.hardware == "cuda" else contextlib.nullcontext()

    def launching(self) -> AbstractContextManager[object]:
        """Return a context of inference mode."""
        return torch.inference_mode()

    def use_threads(self, count: int) -> None:
        """Set PyTorch's number of threads for calls from this thread."""
        use_threads(count)

    def can_peer(self, src: Place, dst: Place) -> bool:
        """Ask the driver; PyTorch allows the access when it copies."""
        ask = getattr(self._module, "can_device_access_peer", None)
        return ask is not None and bool(ask(src, dst))

    def free_bytes(self, place: Place) -> float:
        """Return the free bytes of the driver and of PyTorch's allocator."""
        if not hasattr(self._module, "mem_get_info"):
            return float("inf")
        free, _ = self._module.mem_get_info(place)
        return float(free + self._module.memory_reserved(place) - self._module.memory_allocated(place))

    def allocate(self, place: Place | None, nbytes: int) -> torch.Tensor:
        """Allocate with PyTorch's allocators."""
        if place is None:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self.hardware != "cpu")
        return torch.empty(nbytes, dtype=torch.uint8, device=narrowed(torch.device, place))

    def free(self, memory: torch.Tensor) -> None:
        """Return memory to PyTorch's allocator."""
        memory.untyped_storage().resize_(0)

    def trim(self) -> None:
        """Return the unused memory of PyTorch's allocator."""
        empty = getattr(self._module, "empty_cache", None)
        if empty is not None:
            with contextlib.suppress(RuntimeError):  # of a failed device, which raises it again where it is used
                empty()

    def view(self, memory: torch.Tensor, spec: BufferSpec) -> torch.Tensor:
        """Return a tensor in the memory, without a copy."""
        dtype: torch.dtype = getattr(torch, spec.dtype)
        count = int(np.prod(spec.shape, dtype=np.int64)) * dtype.itemsize
        tensor = memory[:count].view(dtype).view(spec.memory_shape)
        return tensor.permute(0, 3, 1, 2) if spec.channels_last else tensor

    def address(self, view: torch.Tensor) -> int:
        """Return the address."""
        return view.data_ptr()

    def write(self, view: torch.Tensor, value: NDArray[np.generic]) -> None:
        """Copy an array into a tensor in host memory. An array that PyTorch cannot read in place is copied before."""
        strides = value.strides
        if not value.flags.writeable or any(stride < 0 or stride % value.itemsize for stride in strides):
            value = value.copy()
        view.copy_(torch.from_numpy(value))  # not through ``view.numpy()``: memory shared with NumPy could not be freed

    def read(self, view: torch.Tensor) -> NDArray[np.generic]:
        """Copy a tensor in host memory to an array, bfloat16 as float32."""
        value = view.clone(memory_format=torch.contiguous_format)
        array: NDArray[np.generic] = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
        return array

    def host_view(self, view: torch.Tensor, owner: object) -> NDArray[np.generic]:
        """Return a view by the address of the tensor: memory that :meth:`torch.Tensor.numpy` shares could not be freed."""
        if view.dtype is torch.bfloat16 or not view.numel():
            return self.read(view)
        dtype = np.dtype(str(view.dtype).removeprefix("torch."))
        strides = [step * dtype.itemsize for step in view.stride()]
        return array_at(view.data_ptr(), view.shape, dtype, owner, strides)

    def adopt(self, array: object) -> tuple[torch.device, torch.Tensor, Any]:
        """Take a tensor by DLPack, on a stream that waits for the caller's work."""
        if not isinstance(array, DLPackArray):
            assert isinstance(array, CudaArray)  # noqa: S101 (the caller has checked)
            tensor, stream = torch.as_tensor(array, device=self.hardware), array.__cuda_array_interface__.get("stream")
            if stream is not None:
                external: Any = torch.cuda.ExternalStream
                self.current(tensor.device).wait_stream(external(stream, device=tensor.device))
            return self.adopt(tensor)
        place = torch.device(self.hardware, array.__dlpack_device__()[1])
        with self._lock:
            if place not in self._adoption_streams:
                self._adoption_streams[place] = self.stream(place, 0, (1, 1))
            stream, event = self._adoption_streams[place], self.event(place)
            taken: torch.Tensor = torch.utils.dlpack.from_dlpack(array.__dlpack__(stream=self.handle(stream)))
            event.record(stream)
        return place, taken, event

    def array(self, view: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return view

    def blank(self, view: torch.Tensor, sentinel: int) -> None:
        """Fill a tensor on the default stream, and wait for that stream."""
        view.fill_(float("nan") if view.is_floating_point() or view.is_complex() else sentinel)
        if view.device.type != "cpu":
            wait_for_default_stream(view.device)

    def is_blank(self, view: torch.Tensor, sentinel: int) -> bool:
        """Compare on the tensor's device."""
        if view.is_floating_point() or view.is_complex():
            return bool((view if view.is_complex() else view.float()).isnan().all())
        return bool((view == sentinel).all())

    def stream(self, place: Place, priority: int, part: tuple[int, int]) -> Any:
        """Return a stream of PyTorch's pool or of a part of a GPU."""
        if self.hardware != "cuda":
            return torch.Stream(device=narrowed(torch.device, place))
        if part[1] > 1:
            return part_stream(self.number(place) or 0, part, priority)
        make: Any = torch.cuda.Stream
        return make(place, priority=priority)

    def event(self, place: Place) -> Any:
        """Return an event with timing; on CUDA, threads wait for it asleep, and a graph can record it."""
        if self.hardware == "cuda":
            make: Any = torch.cuda.Event
            return make(enable_timing=True, blocking=True, **({"external": True} if self.times_graphs else {}))
        return torch.Event(device=narrowed(torch.device, place), enable_timing=True)

    def current(self, place: Place) -> Any:
        """Return PyTorch's current stream."""
        return self._module.current_stream(place)

    def follow(self, stream: Any, other: Any) -> None:
        """Have a stream wait for another one."""
        stream.wait_stream(other)

    def query(self, stream: Any) -> None:
        """Query the stream; PyTorch raises errors of the device."""
        stream.query()

    def finish(self, stream: Any) -> None:
        """Wait, on CUDA by an event: CUDA spins while it waits for anything that was not made with ``blocking=True``."""
        if self.hardware != "cuda":
            stream.synchronize()
            return
        make: Any = torch.cuda.Event
        event = make(blocking=True)
        event.record(stream)
        event.synchronize()

    def handle(self, stream: Any) -> int:
        """Return the ``cudaStream_t``."""
        return int(stream.cuda_stream)

    def launch_on(self, stream: Any, launch: Callable[[], object]) -> None:
        """Launch in inference mode, with a stream as the current one of its device, and that as the current device."""
        if torch.is_inference_mode_enabled():
            with stream:
                launch()
        else:
            with stream, torch.inference_mode():
                launch()

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        """Copy on the current stream."""
        destination.copy_(source, non_blocking=True)

    def graph_pool(self) -> Any:
        """Return a new pool."""
        cuda: Any = torch.cuda
        return cuda.graph_pool_handle()

    def capture(self, stream: Any, pool: Any, launch: Callable[[Any], None]) -> Callable[[], None] | None:
        """Record a CUDA graph."""
        cuda: Any = torch.cuda
        graph = cuda.CUDAGraph()
        try:
            with stream:
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    launch(stream)
                finally:
                    graph.capture_end()
        except RuntimeError:  # torch.OutOfMemoryError and torch.AcceleratorError among others
            # kept, as PyTorch's allocator may still refer to it, and regard the pool and the stream as being recorded
            _failed.append(graph)
            return None
        replay: Callable[[], None] = graph.replay
        return replay


_failed: list[Any] = []  # graphs that could not be recorded; a few bytes each


def _can_time_graphs() -> bool:
    """Return whether this PyTorch can record events as parts of graphs (2.9 or newer)."""
    make: Any = torch.cuda.Event
    return "external" in inspect.signature(make.__new__).parameters


def _module(kind: str) -> Any:
    """Return PyTorch's module for a type of device. Raises DeviceError if no such device is available."""
    version = torch.__version__
    try:
        module: Any = torch.get_device_module(kind)
    except RuntimeError as error:
        raise DeviceError(f"PyTorch {version} does not support devices of type '{kind}': {error}") from error
    if module.is_available():
        return module
    if kind == "cuda" and torch.version.cuda is None:
        raise DeviceError(
            f"PyTorch {version} is built without CUDA: install one built with it (see https://pytorch.org/get-started/locally) "
            "and `pip install 'placeit[cuda]'`, or choose other devices."
        )
    if kind == "cuda":
        raise DeviceError(
            f"PyTorch {version} is built for CUDA {torch.version.cuda} and finds no GPU to use: check that `nvidia-smi` "
            "lists one, that its driver is recent enough for this CUDA, and that CUDA_VISIBLE_DEVICES does not hide it."
        )
    raise DeviceError(f"PyTorch {version} finds no device of type '{kind}': check that its driver is installed.")
