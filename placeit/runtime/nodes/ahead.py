"""State of a slot whose segments run on other nodes, kept by the executor's process ahead of its scheduler."""

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
from placeit.runtime.nodes.tensors import ReceivingBuffers

__all__ = ["Ahead", "RemoteBuffer", "RemoteDevice", "RemoteInstance", "RemoteProgram"]

_slots, _numbers = itertools.count(1), itertools.count(1)


class RemoteDevice(ABC):
    """A device of another node, as its buffers, its instances and the slots that use it see it.

    Attributes:
        gone: why the device is lost; None while it is there.
        cut: why its link with another device is lost, by the name of that device.
        worker: the thread that reports ends that came before the scheduler asked for them.
        routes: for each instance and buffer, by number, the slot that gets its reports.
        arrivals: the number of each buffer of this process that the device writes to.
    """

    name: str
    space: str
    gone: DeviceError | None
    cut: dict[str, DeviceError]
    worker: Worker
    routes: WeakValueDictionary[int, Ahead]
    arrivals: WeakKeyDictionary[Buffer, int]

    @staticmethod
    def number() -> int:
        """Return a number for an instance or a buffer that no other one has."""
        return next(_numbers)

    @abstractmethod
    def ask(self, what: str, *arguments: Any) -> Any:
        """Call a method of the node's actor and wait for its answer. Raises DeviceError."""

    @abstractmethod
    def tell(self, what: str, *arguments: Any) -> None:
        """Call a method of the node's actor without waiting for its answer."""

    @abstractmethod
    def begin(self, ahead: Ahead, inputs: Sequence[tuple[int, HostBuffer]]) -> None:
        """Begin a run of a slot on the device, with the inputs that come from this process."""

    @abstractmethod
    def send(self, ahead: Ahead, number: int, buffer: Buffer) -> None:
        """Send a tensor of this process into the device's buffer with a number."""

    @abstractmethod
    def here(self, moment: float) -> float:
        """Convert a moment of the device's clock to this process's clock."""


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
        ahead: the slot that it belongs to.
        delivered: the buffer of this process that its value is copied to; None if it is not copied.
    """

    def __init__(self, device: RemoteDevice, spec: BufferSpec) -> None:
        self.device, self.spec, self.space = device, spec, device.space
        self.number = device.number()
        self.ahead: Ahead | None = None
        self.delivered: HostBuffer | None = None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.spec.nbytes

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
        if self.delivered is None:
            self.delivered = HostBuffer(self.spec)
        return self.delivered


class RemoteInstance:
    """An instance of a segment on a node, which starts by itself when its inputs are there.

    Attributes:
        number: its number in reports.
        bound: buffers of its inputs.
        outputs: buffers on the node.
        ahead: the slot that it belongs to.
        keeps_state: whether each run continues from the state that the one before has left.
        shares: number of the instance in the first slot of its sequence, whose state it uses; None if it is in the first slot.
        alternates: whether instances in other slots can use its state.
    """

    keeps_state = False
    shares: int | None = None
    alternates = False

    def __init__(self, device: RemoteDevice, program: RemoteProgram) -> None:
        self.device, self.program, self.number = device, program, device.number()
        self.bound: dict[int, Buffer] = {}
        self.outputs = [RemoteBuffer(device, spec) for spec in program.outputs]
        self.ahead: Ahead | None = None

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` in every later run. Raises DeviceError if it does not fit."""
        spec = self.program.inputs[index]
        if spec.limits is None and buffer.nbytes != spec.nbytes:
            raise DeviceError(f"A buffer of {buffer.nbytes} bytes does not fit input {index} of a segment.")
        self.bound[index] = buffer

    def output(self, index: int) -> RemoteBuffer:
        """Return the buffer that output ``index`` is written to."""
        return self.outputs[index]


class Ahead:
    """One slot of an executor, on the devices of nodes that its plan uses.

    A report is kept until the scheduler asks for it, and a request of the scheduler is kept until the report comes. Reports of
    an earlier run are dropped.

    Attributes:
        number: number of the slot, in this process.
        epoch: number of the current run.
        inbox: buffers of this process that nodes write to.
        senders: for each buffer, by number, the device that sends to it; buffers without an entry are sent by this process.
    """

    def __init__(self) -> None:
        self.number, self.epoch = next(_slots), 0
        self._begun = False
        self.inbox = ReceivingBuffers()
        self.senders: dict[int, RemoteDevice] = {}
        self.feeds: dict[RemoteDevice, list[tuple[int, HostBuffer]]] = {}
        self._lock, self._going = threading.Lock(), threading.Lock()
        self._started: set[int] = set()  # numbers, as the objects refer to this one
        self._waiting: dict[int, tuple[DoneCallback, tuple[RemoteDevice, ...]]] = {}
        self._come: dict[int, tuple[float, float, BaseException | None]] = {}

    def renew(self) -> None:
        """Begin another run with the next instance or transfer that is started."""
        self._begun = False

    def go(self, number: int) -> None:
        """Have nodes begin a run on the inputs in place, unless they have begun it.

        Args:
            number: of an instance or a buffer, which is started or sent once in each run: a second time begins another run.
        """
        with self._going:
            if self._begun and number not in self._started:
                self._started.add(number)
                return
            self._begun, self._started = True, {number}
            with self._lock:
                self.epoch += 1
                self._come.clear()
            for device, inputs in self.feeds.items():
                device.begin(self, inputs)

    def retire(self) -> int:
        """Begin a new epoch and return it: a node that hears of it ends earlier runs. No run may be under way here."""
        with self._lock:
            self.epoch += 1
            self._come.clear()
            return self.epoch

    def expect(self, number: int, done: DoneCallback, devices: tuple[RemoteDevice, ...]) -> None:
        """Have ``done`` called when a segment or a transfer is reported, or one of its devices is lost; on another thread."""
        with self._lock:
            report = self._come.pop(number, None)
            if report is None:
                gone = next((device.gone for device in devices if device.gone is not None), None)
                gone = gone or next((why for why in (devices[0].cut.get(other.name) for other in devices) if why), None)
                if gone is None:
                    self._waiting[number] = done, devices
                    return
                report = perf_counter(), perf_counter(), gone
        devices[0].worker.submit(functools.partial(done, *report))

    def report(self, number: int, epoch: int, start: float, finish: float, error: BaseException | None = None) -> None:
        """Pass the end of a segment or a transfer on to the scheduler, or keep it until the scheduler asks for it."""
        with self._lock:
            if epoch != self.epoch:
                return
            done, _ = self._waiting.pop(number, (None, ()))
            if done is None:
                self._come[number] = start, finish, error
                return
        done(start, finish, error)

    def lost(self, devices: set[RemoteDevice], error: DeviceError) -> None:
        """Fail the segments and transfers that use all of these devices."""
        with self._lock:
            hit = [number for number, (_, those) in self._waiting.items() if devices <= set(those)]
            failed = [self._waiting.pop(number)[0] for number in hit]
        for done in failed:
            done(perf_counter(), perf_counter(), error)
