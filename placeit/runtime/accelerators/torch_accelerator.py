"""Accelerators that PyTorch drives, through its interface for any of them: torch.Stream, torch.Event, torch.get_device_module.

Everything here is device-generic but two things: that waits for CUDA's events are asleep, and that cuDNN's convolutions
and recurrent layers are kept from rounding float32 to TF32. CPU core sets can stand beside the accelerators: they compute in
the host's memory, on threads that look like streams.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray

from placeit.core.cluster import Device
from placeit.core.errors import DeviceError, ExecutionError, NoRoomError, PlaceitError, first_line
from placeit.runtime.accelerators.host_stream import HostEvent, HostStream
from placeit.runtime.accelerators.module_program import ModuleProgram, wait_for_default_stream
from placeit.runtime.accelerators.recorder import CudaGraphs, Recorder
from placeit.runtime.accelerators.reports import Reports, ThreadReports, native_handle, wait_for
from placeit.runtime.devices.accelerator import HOST, Inbox, LoadedProgram, Streams, Token
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.devices.pytorch import check_precision, failing_op, module_of

__all__ = ["TorchAccelerator", "open_accelerator", "torch_streams"]

_EXACT = "ieee", "ieee"  # precision of convolutions and of recurrent layers
_LOOK_S = 1.0  # how often a host that waits looks whether the devices are alive


def open_accelerator(devices: Sequence[Device], precision: str) -> Streams:
    """Open PyTorch's devices, one of which at least is no core set. Raises DeviceError."""
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
        type: of the devices that are no core sets.
    """

    def __init__(self, devices: Sequence[Device], reports: Reports | None = None) -> None:
        self.names = tuple(device.name for device in devices)
        self._sets = {number: device for number, device in enumerate(devices) if device.core_set}
        self._devices = [torch.device("cpu" if device.core_set else device.where.hardware) for device in devices]
        own = [device for number, device in enumerate(self._devices) if number not in self._sets]
        self.type = own[0].type if own else "cpu"
        self._module = _module(self.type)
        count = int(self._module.device_count())
        for device in own:
            if device.type != self.type:
                raise DeviceError(f"{device} and {own[0]} are of different types, and share no streams: choose one.")
            if (device.index or 0) >= count:
                there = ", ".join(f"{self.type}:{i}" for i in range(count))
                raise DeviceError(f"There is no device {device}; PyTorch sees {there}. See `placeit devices`.")
        self._reports: Reports = reports or ThreadReports()
        self._errors = [_Errors(name) for name in self.names]
        self._lock = threading.Lock()
        self._turns: WeakSet[threading.RLock] = WeakSet()
        self._streams: dict[tuple[int, int], _Queue] = {}
        self._threads: list[HostStream] = []
        self.closed = False
        self._exact = self.type == "cuda"
        try:
            for number, core_set in self._sets.items():  # now: an interrupt in a run would lose the thread that it starts
                self._threads.append(HostStream(core_set))
                self._streams[number, 0] = _Queue(self._threads[-1], self._errors[number])
        except BaseException:
            self._exact = False
            self.close()
            raise
        if self._exact:
            _Rounding.forbid()

    def turn(self) -> AbstractContextManager[object]:
        """A lock that :meth:`close` takes."""
        with self._lock:
            if self.closed:
                raise ExecutionError(f"{', '.join(self.names)} is closed, and nothing more can run there: open a new session.")
            turn = threading.RLock()
            self._turns.add(turn)
            return turn

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
        """The host's for core sets, and its own for other devices."""
        return HOST if device in self._sets else device

    def place(self, device: int) -> torch.device:
        """The device as PyTorch spells it."""
        return self._devices[device]

    def can_peer(self, src: int, dst: int) -> bool:
        """Return whether the driver lets one device write the other's memory."""
        ask = getattr(self._module, "can_device_access_peer", None)
        return ask is not None and bool(ask(self._devices[src], self._devices[dst]))

    def free_bytes(self, device: int) -> float:
        """Free bytes of the driver and of PyTorch's allocator; ``inf`` if the device does not report them."""
        if not hasattr(self._module, "mem_get_info"):
            return float("inf")
        at = self._devices[device]
        with self._errors[device]:
            free, _ = self._module.mem_get_info(at)
            return float(free + self._module.memory_reserved(at) - self._module.memory_allocated(at))

    def allocate(self, device: int, nbytes: int) -> torch.Tensor:
        """Allocate with PyTorch's allocators."""
        if device == HOST:
            with _Errors("the host"):
                return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self.type != "cpu")
        with self._errors[device]:
            return torch.empty(nbytes, dtype=torch.uint8, device=self._devices[device])

    def free(self, memory: torch.Tensor) -> None:
        """Return memory to PyTorch's allocator, for all views of it."""
        memory.untyped_storage().resize_(0)

    def trim(self) -> None:
        """Empty the reserve of PyTorch's allocator; that of a device that has failed is lost."""
        empty = getattr(self._module, "empty_cache", None)
        if empty is not None:
            with contextlib.suppress(RuntimeError):  # what the device failed with, which is told where it is used
                empty()

    def view(self, memory: torch.Tensor, spec: BufferSpec) -> torch.Tensor:
        """A tensor in the memory, without a copy."""
        dtype: torch.dtype = getattr(torch, spec.dtype)
        count = int(np.prod(spec.shape, dtype=np.int64)) * dtype.itemsize
        tensor = memory[:count].view(dtype).view(spec.memory_shape)
        return tensor.permute(0, 3, 1, 2) if spec.channels_last else tensor

    def write(self, view: torch.Tensor, value: NDArray[np.generic]) -> None:
        """Write as the host."""
        view.copy_(torch.tensor(value, dtype=view.dtype))  # a tensor that NumPy has seen could not be freed any more

    def read(self, view: torch.Tensor) -> NDArray[np.generic]:
        """Read as the host."""
        value = view.clone(memory_format=torch.contiguous_format)
        array: NDArray[np.generic] = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
        return array

    def blank(self, view: torch.Tensor, sentinel: int) -> None:
        """Fill on the default stream, which no other waits for, and wait for it."""
        with self._errors_of(view):
            view.fill_(float("nan") if view.is_floating_point() or view.is_complex() else sentinel)
            if view.device.type != "cpu":
                wait_for_default_stream(view.device)

    def is_blank(self, view: torch.Tensor, sentinel: int) -> bool:
        """Compare on the device."""
        with self._errors_of(view):
            if view.is_floating_point() or view.is_complex():
                return bool((view if view.is_complex() else view.float()).isnan().all())
            return bool((view == sentinel).all())

    def _errors_of(self, view: torch.Tensor) -> _Errors:
        return _Errors("the host" if view.device.type == "cpu" else str(view.device))

    def stream(self, device: int, number: int) -> _Queue:
        """A stream of PyTorch's pool, or the thread of a core set, which has one stream."""
        found = self._streams.get((device, 0 if device in self._sets else number))
        if found is None:
            with self._lock, self._errors[device]:
                records = number == 0 and self.type == "cuda"
                found = _Queue(
                    torch.Stream(device=self._devices[device]),
                    self._errors[device],
                    Recorder(CudaGraphs(self._devices[device])) if records else None,
                )
                found = self._streams.setdefault((device, number), found)
        return found

    def handle(self, device: int) -> int:
        """The driver's address of the stream that a device's segments are launched on, for other libraries."""
        return native_handle(self.stream(device, 0).stream)

    def event(self, device: int) -> torch.Event | HostEvent:
        """An event, with timing."""
        if device in self._sets:
            return HostEvent()
        with self._errors[device]:
            return torch.Event(device=self._devices[device], enable_timing=True)

    def elapsed(self, first: Any, second: Any) -> float:
        """Elapsed seconds; PyTorch returns milliseconds."""
        return float(first.elapsed_time(second)) / 1e3

    def record(self, event: Any, stream: _Queue) -> None:
        """Record."""
        with stream.errors:
            event.record(stream.stream)

    def wait(self, stream: _Queue, event: Any) -> None:
        """Wait, on the device."""
        with stream.errors:
            stream.stream.wait_event(event)

    def launch(
        self,
        stream: _Queue,
        program: LoadedProgram,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        inbox: Inbox,
        token: Token,
    ) -> None:
        """Launch with the stream as the current one, so that PyTorch allocates intermediate tensors from its pool.

        On CUDA's devices, what can be recorded as a graph is launched by one call from its second launch on.
        """
        if isinstance(stream.stream, HostStream):
            stream.stream.run(functools.partial(_compute, stream.errors, program, inputs, outputs), inbox, token)
            return
        with stream.errors, torch.inference_mode(), stream.stream:
            if stream.recorder is None:
                program.launch(inputs, outputs)
            else:
                stream.recorder.launch(program, inputs, outputs)

    def copy(self, stream: _Queue, source: torch.Tensor, destination: torch.Tensor) -> None:
        """Copy with the stream as the current one.

        Between devices PyTorch copies on the source's current stream, and lets the destination's current one, here its unused
        default stream, wait before and after.
        """
        with stream.errors, torch.inference_mode(), stream.stream:
            destination.copy_(source, non_blocking=True)

    def notify(self, stream: _Queue, event: Any, inbox: Inbox, token: Token) -> None:
        """Report by the chosen method; a core set's thread reports as its next job."""
        if isinstance(stream.stream, HostStream):
            stream.stream.launch(functools.partial(inbox.put, token))
            return
        with stream.errors:
            self._reports.report(stream.stream, event, inbox, token)

    def take(self, inbox: Inbox) -> Token | None:
        """Wait, and check regularly that the devices are alive, since a broken device reports nothing."""
        while True:
            token = inbox.get(_LOOK_S)
            if token is not None or inbox.over:
                return token
            self._look()

    def _look(self) -> None:
        for queue in list(self._streams.values()):
            with queue.errors:
                queue.stream.query()

    def finish(self, stream: _Queue) -> None:
        """Synchronize the stream, asleep."""
        with stream.errors:
            wait_for(stream.stream)


def _compute(errors: _Errors, program: LoadedProgram, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    with errors:
        program.launch(inputs, outputs)


def _module(kind: str) -> Any:
    """PyTorch's module for a type of device. Raises DeviceError if nothing answers there."""
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
    _wanted = _EXACT  # by the user

    @classmethod
    def forbid(cls) -> None:
        """Forbid TF32 until :meth:`allow` has been called as often."""
        with cls._lock:
            now = _precision()
            if not cls._forbidding or now != _EXACT:  # or allowed by the user meanwhile
                cls._wanted = now
            _set_precision(_EXACT)
            cls._forbidding += 1

    @classmethod
    def allow(cls) -> None:
        """Round again as the user wants, if nobody else forbids it."""
        with cls._lock:
            cls._forbidding -= 1
            if not cls._forbidding and _precision() == _EXACT:
                _set_precision(cls._wanted)


def _precision() -> tuple[str, str]:
    """Precision of float32 in convolutions and in recurrent layers: ``tf32``, ``ieee``, or ``none`` for PyTorch's default."""
    cudnn: Any = torch.backends.cudnn
    if not hasattr(cudnn, "conv"):  # before PyTorch 2.9
        return ("tf32", "tf32") if cudnn.allow_tf32 else _EXACT
    return cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision


def _set_precision(wanted: tuple[str, str]) -> None:
    cudnn: Any = torch.backends.cudnn
    cudnn.allow_tf32 = "tf32" in wanted  # the older name: PyTorch raises where it is read and does not fit the newer ones
    if hasattr(cudnn, "conv"):
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = wanted


class _Errors:
    """A context in which what goes wrong on a device becomes a DeviceError.

    A time-out, which a signal may raise at any time, is not the device's.
    """

    def __init__(self, device: str) -> None:
        self._device = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            first = ". ".join(str(error).split(". ")[:2])  # what was asked for; the rest is advice on PyTorch's allocator
            raise NoRoomError(
                f"{self._device} is out of memory ({first}). Place fewer ops there, keep fewer requests in flight, or free "
                "memory that other processes use."
            ) from error
        # torch.AcceleratorError, NotImplementedError for a missing kernel; an index that is out of range
        if isinstance(error, Exception) and not isinstance(error, PlaceitError | TimeoutError):
            op = failing_op(error)
            raise DeviceError(f"{self._device} refused{f' op {op!r}' if op else ''}: {first_line(error)}") from error


class _Queue(NamedTuple):
    """A stream (``torch.Stream`` or HostStream), what makes its device's errors placeit's, and what records its launches."""

    stream: Any
    errors: _Errors
    recorder: Recorder | None = None
