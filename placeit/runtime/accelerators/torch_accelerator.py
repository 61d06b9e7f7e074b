"""Accelerators that PyTorch drives, through its device-generic interface: torch.Stream, torch.Event, torch.get_device_module.

Three things are for CUDA alone: events that graphs can hold and that threads wait for asleep, parts of a GPU, and the setting
that keeps cuDNN's convolutions and recurrent layers from rounding float32 to TF32. CPU core sets can be devices beside the
accelerators: they compute in the host's memory, on threads that look like streams.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray

from placeit.core.cluster import Device
from placeit.core.errors import DeviceError, ExecutionError
from placeit.runtime.accelerators.gpu_parts import check_parts, part_stream
from placeit.runtime.accelerators.host_stream import HostEvent, HostStream
from placeit.runtime.accelerators.module_program import ModuleProgram, wait_for_default_stream
from placeit.runtime.accelerators.recorder import CudaGraphs, Graphs, Recording
from placeit.runtime.accelerators.reports import Reports, ThreadReports, wait_for
from placeit.runtime.accelerators.torch_launches import (
    DeviceErrors,
    LaunchBatch,
    PreparedProgram,
    Queue,
    can_time_graphs,
    is_replayable,
    launch_on,
)
from placeit.runtime.devices.accelerator import HOST, Inbox, LoadedProgram, Prepared, Step, Streams, Token
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.devices.pytorch import check_precision, module_of

__all__ = ["TorchAccelerator", "open_accelerator", "torch_streams"]

_EXACT = "ieee", "ieee"  # precision of convolutions and of recurrent layers
_POOL = 32  # streams in PyTorch's pool, by device and priority; after the last, it returns the first again
_LOOK_S = 1.0  # seconds between two checks that the devices are alive, while the host waits


def open_accelerator(devices: Sequence[Device], precision: str) -> Streams:
    """Open devices that PyTorch drives, at least one of which is not a CPU core set. Raises DeviceError."""
    check_precision(next(device for device in devices if not device.core_set), precision)
    return torch_streams(TorchAccelerator(devices))


def torch_streams(accelerator: TorchAccelerator) -> Streams:
    """Drive an accelerator with segments as PyTorch modules."""
    names = ", ".join(accelerator.names)
    return Streams(accelerator, lambda segment: ModuleProgram(module_of(segment, names)))


class TorchAccelerator:
    """PyTorch devices of one type, such as ``cuda``, and CPU core sets beside them.

    Call :meth:`close` at the end.

    Args:
        devices: as in the cluster; the hardware is a device as PyTorch spells it (``cuda:0``), or a CPU core set.
        reports: how events of accelerators are reported; None for threads that wait.

    Raises:
        DeviceError: PyTorch has no support for the devices, there is no driver or no such device, or this process may not use
            the cores.

    Attributes:
        type: type of the devices that are not core sets, such as ``cuda``.
    """

    def __init__(self, devices: Sequence[Device], reports: Reports | None = None) -> None:
        self.names = tuple(device.name for device in devices)
        self._sets = {number: device for number, device in enumerate(devices) if device.core_set}
        self._devices = [torch.device("cpu" if device.core_set else device.where.hardware) for device in devices]
        self._parts = [device.where.part for device in devices]
        own = [device for number, device in enumerate(self._devices) if number not in self._sets]
        self.type = own[0].type if own else "cpu"
        self._module = _module(self.type)
        first = {at: number for number, at in reversed(list(enumerate(self._devices)))}  # several may be parts of a GPU
        self._memory = [
            HOST if number in self._sets else first[at] if self.type == "cuda" else number
            for number, at in enumerate(self._devices)
        ]
        count = int(self._module.device_count())
        for device in own:
            if device.type != self.type:
                raise DeviceError(f"{device} and {own[0]} are of different types, and share no streams: choose one.")
            if (device.index or 0) >= count:
                there = ", ".join(f"{self.type}:{i}" for i in range(count))
                raise DeviceError(f"There is no device {device}; PyTorch sees {there}. See `placeit devices`.")
        self._reports: Reports = reports or ThreadReports()
        self._errors = [DeviceErrors(name) for name in self.names]
        self._lock = threading.Lock()
        self._turns: WeakSet[threading.RLock] = WeakSet()
        self._queues: list[Queue] = []
        self._idle: dict[tuple[int, int], list[Queue]] = {}  # streams that were closed, by device and priority
        self._recordings: dict[tuple[int, int], Recording] = {}  # for graphs, by device and priority
        self._shared: dict[int, Queue] = {}  # by device: streams of core sets, and streams for other libraries
        self._threads: list[HostStream] = []
        self.closed = False
        self._exact = self.type == "cuda"
        try:
            for number, core_set in self._sets.items():  # now, as an interrupt in a run could lose a thread
                self._threads.append(HostStream(core_set))
                self._shared[number] = Queue((number, 0), self._threads[-1], self._errors[number])
                self._queues.append(self._shared[number])
            for number, (_, parts) in enumerate(self._parts):
                if parts > 1:
                    check_parts(self.names[number], self._devices[number].index or 0, parts)
        except BaseException:
            self._exact = False
            self.close()
            raise
        if self._exact:
            _Rounding.forbid()

    def turn(self) -> AbstractContextManager[object]:
        """Return a lock that :meth:`close` waits for."""
        with self._lock:
            if self.closed:
                raise ExecutionError(f"{', '.join(self.names)} is closed, and nothing more can run there: open a new session.")
            turn = threading.RLock()
            self._turns.add(turn)
            return turn

    def launching(self) -> AbstractContextManager[object]:
        """Return a context of inference mode."""
        return torch.inference_mode()

    def close(self) -> None:
        """Wait for turns to end, stop every thread, and restore the rounding of float32."""
        with self._lock:
            self.closed = True
            turns = list(self._turns)
        with ExitStack() as held:
            for turn in turns:
                held.enter_context(turn)
            self._reports.close()
            for stream in self._threads:
                stream.close()
            with self._lock:
                allow, self._exact = self._exact, False
            if allow:
                _Rounding.allow()

    def memory(self, device: int) -> int:
        """Return ``HOST`` for a core set, otherwise the number of the first device, or part of one, with the same memory."""
        return self._memory[device]

    def place(self, device: int) -> torch.device:
        """Return the device as a ``torch.device``."""
        return self._devices[device]

    def can_peer(self, src: int, dst: int) -> bool:
        """Return whether the driver lets one device write the other's memory."""
        ask = getattr(self._module, "can_device_access_peer", None)
        return ask is not None and bool(ask(self._devices[src], self._devices[dst]))

    def free_bytes(self, device: int) -> float:
        """Return the free bytes of the driver and of PyTorch's allocator; ``inf`` if the device does not report them."""
        if not hasattr(self._module, "mem_get_info"):
            return float("inf")
        at = self._devices[device]
        with self._errors[device]:
            free, _ = self._module.mem_get_info(at)
            return float(free + self._module.memory_reserved(at) - self._module.memory_allocated(at))

    def allocate(self, device: int, nbytes: int) -> torch.Tensor:
        """Allocate with PyTorch's allocators."""
        if device == HOST:
            with DeviceErrors("the host"):
                return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self.type != "cpu")
        with self._errors[device]:
            return torch.empty(nbytes, dtype=torch.uint8, device=self._devices[device])

    def free(self, memory: torch.Tensor) -> None:
        """Return memory to PyTorch's allocator, for all views of it.

        Not while a graph is recorded: the allocator marks streams that pinned memory was copied on, and recording may be one.
        """
        with ExitStack() as held:
            for recording in list(self._recordings.values()):
                held.enter_context(recording.lock)
            memory.untyped_storage().resize_(0)

    def trim(self) -> None:
        """Return the unused memory of PyTorch's allocator to the driver; on a device that has failed, it is lost."""
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

    def write(self, view: torch.Tensor, value: NDArray[np.generic]) -> None:
        """Copy an array into a tensor in host memory; if PyTorch cannot read the array in place, copy it twice."""
        strides = value.strides
        if not value.flags.writeable or any(stride < 0 or stride % value.itemsize for stride in strides):
            value = value.copy()
        view.copy_(torch.from_numpy(value))  # not through ``view.numpy()``: memory shared with NumPy could not be freed

    def read(self, view: torch.Tensor) -> NDArray[np.generic]:
        """Copy a tensor in host memory to an array, bfloat16 as float32."""
        value = view.clone(memory_format=torch.contiguous_format)
        array: NDArray[np.generic] = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
        return array

    def look(self, view: torch.Tensor, owner: object) -> NDArray[np.generic]:
        """Return a view made from the address: memory that :meth:`torch.Tensor.numpy` shares could not be freed any more."""
        if view.dtype is torch.bfloat16 or not view.numel():
            return self.read(view)
        dtype = np.dtype(str(view.dtype).removeprefix("torch."))
        return np.asarray(_Held(owner, view, dtype))

    def blank(self, view: torch.Tensor, sentinel: int) -> None:
        """Fill a tensor on the default stream, and wait for it, as no other stream does."""
        with self._errors_of(view):
            view.fill_(float("nan") if view.is_floating_point() or view.is_complex() else sentinel)
            if view.device.type != "cpu":
                wait_for_default_stream(view.device)

    def is_blank(self, view: torch.Tensor, sentinel: int) -> bool:
        """Return whether a tensor is blank, compared on its device."""
        with self._errors_of(view):
            if view.is_floating_point() or view.is_complex():
                return bool((view if view.is_complex() else view.float()).isnan().all())
            return bool((view == sentinel).all())

    def _errors_of(self, view: torch.Tensor) -> DeviceErrors:
        return DeviceErrors("the host" if view.device.type == "cpu" else str(view.device))

    def open_stream(self, device: int, priority: int = 0) -> Queue:
        """Return a stream of PyTorch's pool or of a part of a GPU, or the thread of a core set."""
        if device in self._sets:
            return self._shared[device]
        with self._lock, self._errors[device]:
            idle = self._idle.setdefault((device, priority), [])
            if not idle:
                graphs = self._graphs(device, priority)
                queue = Queue((device, priority), self._new_stream(device, priority), self._errors[device], graphs)
                self._queues.append(queue)
                return queue
            return idle.pop()

    def close_stream(self, stream: Queue) -> None:
        """Keep the stream for the next caller: PyTorch's pool is finite, and each of its streams has a thread that reports."""
        if stream.of[0] not in self._sets:
            self._idle[stream.of].append(stream)

    def _graphs(self, device: int, priority: int) -> Graphs | None:
        if self.type != "cuda":
            return None
        if (device, priority) not in self._recordings:
            self._recordings[device, priority] = Recording(functools.partial(self._new_stream, device, priority))
        return CudaGraphs(self._devices[device], self._recordings[device, priority])

    def _new_stream(self, device: int, priority: int) -> Any:
        there = self._devices[device]
        if self.type != "cuda":
            return torch.Stream(device=there)
        if self._parts[device][1] > 1:
            return part_stream(there.index or 0, self._parts[device], priority)
        make: Any = torch.cuda.Stream
        recording = self._recordings.get((device, priority))
        for _ in range(_POOL):
            made = make(there, priority=priority)
            if recording is None or made != recording.stream:  # the pool returns its streams in turn
                break
        return made

    def shared_stream(self, device: int) -> Any:
        """Return a stream of a GPU (``torch.cuda.Stream``), the same in every call, for libraries that use a single one."""
        if device not in self._shared:
            self._shared[device] = self.open_stream(device)
        return self._shared[device].stream

    def event(self, device: int) -> Any:
        """Return an event with timing; on CUDA, threads wait for it asleep, and a graph can record it."""
        if device in self._sets:
            return HostEvent()
        if self.type == "cuda":
            make: Any = torch.cuda.Event
            return make(enable_timing=True, blocking=True, **({"external": True} if can_time_graphs() else {}))
        with self._errors[device]:
            return torch.Event(device=self._devices[device], enable_timing=True)

    def elapsed(self, first: Any, second: Any) -> float:
        """Return the elapsed seconds; PyTorch counts milliseconds."""
        return float(first.elapsed_time(second)) / 1e3

    def record(self, event: Any, stream: Queue) -> None:
        """Record the event on the stream."""
        try:
            event.record(stream.stream)
        except Exception as error:
            stream.errors.told(error)
            raise

    def wait(self, stream: Queue, event: Any) -> None:
        """Make the stream wait for the event, on the device."""
        try:
            stream.stream.wait_event(event)
        except Exception as error:
            stream.errors.told(error)
            raise

    def prepare(
        self, stream: Queue, program: LoadedProgram, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> Prepared:
        """Return a launch; on CUDA, it is recorded as a graph when first called, and replayed later, if the program can be."""
        if isinstance(stream.stream, HostStream):
            return functools.partial(stream.stream.run, functools.partial(_compute, stream.errors, program, inputs, outputs))
        graphs = stream.graphs if is_replayable(program) else None
        return PreparedProgram(stream, functools.partial(program.launch, inputs, outputs), graphs)

    def batch(self, stream: Queue, begin: Any, steps: Sequence[Step]) -> LaunchBatch:
        """Return a batch; on CUDA, its first start records it as one graph, which is replayed later, if all programs can be."""
        return LaunchBatch(stream, begin, steps)

    def copy(self, stream: Queue, source: torch.Tensor, destination: torch.Tensor, beside: Queue | None = None) -> None:
        """Copy with the stream as the current one.

        Between GPUs, PyTorch copies on the source's current stream. It makes that stream wait for the destination's current
        stream before the copy, and the destination's wait for the source's after it. So the destination's current stream is
        ``beside`` during the call, on which nothing else is launched.
        """
        try:
            if beside is None:
                launch_on(stream.stream, functools.partial(destination.copy_, source, non_blocking=True))
            else:
                with beside.stream:
                    launch_on(stream.stream, functools.partial(destination.copy_, source, non_blocking=True))
        except Exception as error:
            stream.errors.told(error)
            raise

    def notify(self, stream: Queue, event: Any, inbox: Inbox, token: Token) -> None:
        """Report by the chosen method; a core set's thread reports as its next job."""
        if isinstance(stream.stream, HostStream):
            stream.stream.launch(functools.partial(inbox.put, token))
            return
        try:
            self._reports.report(stream.stream, event, inbox, token)
        except Exception as error:
            stream.errors.told(error)
            raise

    def take(self, inbox: Inbox) -> Token | None:
        """Wait, and check regularly that the devices are alive, since a broken device reports nothing."""
        while True:
            token = inbox.get(_LOOK_S)
            if token is not None or inbox.over:
                return token
            self._look()

    def _look(self) -> None:
        for queue in list(self._queues):
            with queue.errors:
                queue.stream.query()

    def finish(self, stream: Queue) -> None:
        """Wait for everything launched on the stream, asleep."""
        with stream.errors:
            wait_for(stream.stream)


class _Held:
    """A tensor with NumPy's array interface, which keeps the owner of the memory."""

    def __init__(self, owner: object, view: torch.Tensor, dtype: np.dtype[Any]) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(view.shape),
            "typestr": dtype.str,
            "data": (view.data_ptr(), False),
            "strides": tuple(step * dtype.itemsize for step in view.stride()),
        }


def _compute(
    errors: DeviceErrors, program: LoadedProgram, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> None:
    with errors:
        program.launch(inputs, outputs)


def _module(kind: str) -> Any:
    """Return PyTorch's module for a type of device. Raises DeviceError if no such device is available."""
    version = torch.__version__
    try:
        module: Any = torch.get_device_module(kind)
    except RuntimeError as error:
        raise DeviceError(f"PyTorch {version} knows no devices of type '{kind}': {error}") from error
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


class _Rounding:
    """The rounding of float32 in CUDA's convolutions and recurrent layers, which is one setting for the whole process."""

    _lock = threading.Lock()
    _forbidding = 0
    _wanted = _EXACT  # the user's setting

    @classmethod
    def forbid(cls) -> None:
        """Forbid TF32 until :meth:`allow` has been called as often."""
        with cls._lock:
            now = _precision()
            if not cls._forbidding or now != _EXACT:  # or the user has changed it since
                cls._wanted = now
            _set_precision(_EXACT)
            cls._forbidding += 1

    @classmethod
    def allow(cls) -> None:
        """Restore the user's setting, unless another accelerator still forbids TF32."""
        with cls._lock:
            cls._forbidding -= 1
            if not cls._forbidding and _precision() == _EXACT:
                _set_precision(cls._wanted)


def _precision() -> tuple[str, str]:
    """Return float32's precision in convolutions and recurrent layers: ``tf32``, ``ieee``, or ``none``, PyTorch's default."""
    cudnn: Any = torch.backends.cudnn
    if not hasattr(cudnn, "conv"):  # before PyTorch 2.9
        return ("tf32", "tf32") if cudnn.allow_tf32 else _EXACT
    return cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision


def _set_precision(wanted: tuple[str, str]) -> None:
    cudnn: Any = torch.backends.cudnn
    cudnn.allow_tf32 = "tf32" in wanted  # the older name: PyTorch raises if it is read and contradicts the newer ones
    if hasattr(cudnn, "conv"):
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = wanted
