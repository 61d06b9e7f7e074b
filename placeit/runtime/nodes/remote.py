"""Devices of other nodes in the executor's process: their programs, buffers and instances, and the slots that run there."""

from __future__ import annotations

import functools
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError
from placeit.core.threads import Worker
from placeit.runtime.devices.base import Buffer, BufferSpec, DoneCallback, SegmentSource
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.kernels import CountedKernel
from placeit.runtime.nodes.heartbeat import PeerClock
from placeit.runtime.nodes.tensors import ReceivingBuffers

__all__ = ["RemoteBuffer", "RemoteDevice", "RemoteInstance", "RemoteProgram", "RemoteSlot"]

_slots, _numbers = itertools.count(1), itertools.count(1)


class RemoteDevice(ABC):
    """The interface of a device of another node to its programs, buffers and instances, and to the slots that use it.

    Attributes:
        gone: why the device is lost; None while it is there.
        cut: why its link with another device is lost, by the name of that device.
        worker: the thread that reports ends that arrived before the scheduler asked for them.
        routes: for each instance and buffer, by number, the slot that gets its reports.
        arrivals: the number of each buffer of this process that the device writes to.
        clock: converts moments of the device's clock to this process's clock.
    """

    name: str
    space: str
    gone: DeviceError | None
    cut: dict[str, DeviceError]
    worker: Worker
    routes: WeakValueDictionary[int, RemoteSlot]
    arrivals: WeakKeyDictionary[Buffer, int]
    clock: PeerClock

    @staticmethod
    def number() -> int:
        """Return a new number for an instance or a buffer."""
        return next(_numbers)

    @abstractmethod
    def ask(self, what: str, *arguments: Any) -> Any:
        """Call a method of the node's actor and wait for its answer. Raises DeviceError."""

    @abstractmethod
    def tell(self, what: str, *arguments: Any) -> None:
        """Call a method of the node's actor without waiting for its answer. Errors are ignored."""

    @abstractmethod
    def begin(self, slot: RemoteSlot, inputs: Sequence[tuple[int, HostBuffer]]) -> None:
        """Begin a run of a slot on the device, with the inputs that come from this process."""

    @abstractmethod
    def send(self, slot: RemoteSlot, number: int, buffer: Buffer) -> None:
        """Send a tensor of this process into the device's buffer with a number."""


class RemoteProgram:
    """A segment compiled on a node.

    Args:
        device: the device.
        segment: the segment, whose inputs and outputs it has.
        number: its number on the node.
        variables: names of the variables that hold its state.
    """

    def __init__(self, device: RemoteDevice, segment: SegmentSource, number: int, variables: tuple[str, ...]) -> None:
        self.inputs, self.outputs, self.number, self.variables = segment.inputs, segment.outputs, number, variables
        self._device = device

    def counted(self) -> list[CountedKernel]:
        """Return its kernels; none if the node does not count. Raises DeviceError."""
        return cast("list[CountedKernel]", self._device.ask("counted", self.number))


class RemoteBuffer:
    """Memory of a node.

    Attributes:
        number: its number in frames.
        slot: the slot that it belongs to; None until the slot is wired.
        delivered: the buffer of this process that its value is copied to; None if it is not copied.
    """

    def __init__(self, device: RemoteDevice, spec: BufferSpec) -> None:
        self.device, self.spec, self.nbytes, self.space = device, spec, spec.nbytes, device.space
        self.number = device.number()
        self.slot: RemoteSlot | None = None
        self.delivered: HostBuffer | None = None

    def array(self) -> NDArray[np.generic]:
        """Return a copy of the value, in its logical shape. Raises DeviceError."""
        return cast("NDArray[np.generic]", self.device.ask("read", self.number))

    def fill(self, value: NDArray[np.generic]) -> None:
        """Copy a value into the buffer. Raises DeviceError."""
        self.device.ask("fill", self.number, np.require(value, requirements="C"))

    def blank(self, sentinel: int) -> None:
        """Fill the memory. Raises DeviceError."""
        self.device.ask("blank", self.number, sentinel)

    def deliver(self) -> Buffer:
        """Have the value copied to this process before its writer is reported to have ended; return the buffer there."""
        self.delivered = self.delivered or HostBuffer(self.spec)
        return self.delivered


class RemoteInstance:
    """An instance of a segment on a node, which starts it when its inputs have arrived.

    Attributes:
        number: its number in reports.
        bound: buffers of its inputs.
        outputs: buffers on the node.
        slot: the slot that it belongs to; None until the slot is wired.
        keeps_state: whether each run continues from the state that the previous run left.
        shares: number of the instance in the first slot of its sequence, whose state it uses; None if it is in the first slot.
        alternates: whether instances in other slots can use its state.
    """

    keeps_state = False
    shares: int | None = None
    alternates = False  # until the slot is wired, when the node reports it

    def __init__(self, device: RemoteDevice, program: RemoteProgram) -> None:
        self.device, self.program, self.number = device, program, device.number()
        self.bound: dict[int, Buffer] = {}
        self.outputs = [RemoteBuffer(device, spec) for spec in program.outputs]
        self.slot: RemoteSlot | None = None

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` in every later run. Raises DeviceError if it does not fit."""
        spec = self.program.inputs[index]
        if spec.limits is None and buffer.nbytes != spec.nbytes:
            raise DeviceError(f"A buffer of {buffer.nbytes} bytes does not fit input {index} of a segment.")
        self.bound[index] = buffer

    def output(self, index: int) -> RemoteBuffer:
        """Return the buffer that output ``index`` is written to."""
        return self.outputs[index]


class RemoteSlot:
    """One slot of an executor, on all devices of nodes that its plan uses.

    A report from a node is kept until the scheduler asks for it, and a request of the scheduler until the report arrives.
    Reports of an earlier run are dropped.

    Attributes:
        number: number of the slot, in this process.
        epoch: number of the current run.
        inbox: buffers of this process that nodes write to.
        senders: for each buffer, by number, the device that sends to it; this process sends to buffers without an entry.
        feeds: for each device, the buffers that a run fills from this process: their numbers there, and the sources here.
    """

    def __init__(self) -> None:
        self.number, self.epoch = next(_slots), 0
        self._begun = False
        self.inbox = ReceivingBuffers()
        self.senders: dict[int, RemoteDevice] = {}
        self.feeds: dict[RemoteDevice, list[tuple[int, HostBuffer]]] = {}
        self._lock, self._begin_lock = threading.Lock(), threading.Lock()
        self._started: set[int] = set()  # numbers of the instances and buffers that were started or sent in this run
        self._callbacks: dict[int, tuple[DoneCallback, tuple[RemoteDevice, ...]]] = {}  # until the report arrives
        self._reports: dict[int, tuple[float, float, BaseException | None]] = {}  # until the scheduler asks

    def renew(self) -> None:
        """Begin a new run with the next instance or transfer that is started."""
        self._begun = False

    def ensure_begun(self, number: int) -> None:
        """Have the nodes begin a run, unless it has begun. The inputs of the run must be in place.

        Args:
            number: number of an instance or a buffer, which each run starts or sends once: the second time begins a new run.
        """
        with self._begin_lock:
            if self._begun and number not in self._started:
                self._started.add(number)
                return
            self._begun, self._started = True, {number}
            self.retire()
            for device, inputs in self.feeds.items():
                device.begin(self, inputs)

    def retire(self) -> int:
        """Begin a new epoch and return it; a node that receives it ends earlier runs. No run may be in progress here."""
        with self._lock:
            self.epoch += 1
            self._reports.clear()
            return self.epoch

    def expect(self, number: int, done: DoneCallback, devices: tuple[RemoteDevice, ...]) -> None:
        """Have ``done`` called, on another thread, when a segment or a transfer is reported or one of its devices is lost."""
        with self._lock:
            report = self._reports.pop(number, None)
            if report is None:
                gone = next((device.gone for device in devices if device.gone is not None), None)
                gone = gone or next((why for why in (devices[0].cut.get(other.name) for other in devices) if why), None)
                if gone is None:
                    self._callbacks[number] = done, devices
                    return
                report = perf_counter(), perf_counter(), gone
        devices[0].worker.submit(functools.partial(done, *report))

    def report(self, number: int, epoch: int, start: float, finish: float, error: BaseException | None = None) -> None:
        """Pass the end of a segment or a transfer on to the scheduler, or keep it until the scheduler asks for it."""
        with self._lock:
            if epoch != self.epoch:
                return
            done, _ = self._callbacks.pop(number, (None, ()))
            if done is None:
                self._reports[number] = start, finish, error
                return
        done(start, finish, error)

    def lost(self, devices: set[RemoteDevice], error: DeviceError) -> None:
        """Fail the segments and transfers that use all of these devices."""
        with self._lock:
            numbers = [number for number, (_, used) in self._callbacks.items() if devices <= set(used)]
            failed = [self._callbacks.pop(number)[0] for number in numbers]
        for done in failed:
            done(perf_counter(), perf_counter(), error)
