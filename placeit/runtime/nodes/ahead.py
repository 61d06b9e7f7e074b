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
from placeit.runtime.nodes.tensors import ReceivingBuffers

__all__ = ["Ahead", "RemoteBuffer", "RemoteDevice", "RemoteInstance", "RemoteProgram"]

_slots, _numbers = itertools.count(1), itertools.count(1)


class RemoteDevice(ABC):
    """A device of another node, as its buffers, its instances and the slots that use it know it.

    Attributes:
        gone: why nothing more will come from it; None while it is there.
        cut: devices that it has lost the link with, by name, and why.
        worker: the thread that reports what has ended before it was asked for.
        routes: the slot that hears of each instance and buffer, by its number.
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
        """A number for an instance or a buffer that no other has."""
        return next(_numbers)

    @abstractmethod
    def ask(self, what: str, *arguments: Any) -> Any:
        """Call a method of the node's actor and wait for its answer. Raises DeviceError."""

    @abstractmethod
    def tell(self, what: str, *arguments: Any) -> None:
        """Call a method of the node's actor, and wait for nothing."""

    @abstractmethod
    def begin(self, ahead: Ahead, inputs: Sequence[tuple[int, HostBuffer]]) -> None:
        """Begin a run of a slot there."""

    @abstractmethod
    def send(self, ahead: Ahead, number: int, buffer: Buffer) -> None:
        """Send a tensor of this process there, into the buffer with a number."""

    @abstractmethod
    def here(self, moment: float) -> float:
        """A moment of its clock by this process's."""


class RemoteProgram:
    """A segment compiled on a node.

    Args:
        segment: its inputs and outputs.
        number: by which the node knows it.
        variables: names of those that hold its state.
    """

    def __init__(self, segment: SegmentSource, number: int, variables: tuple[str, ...]) -> None:
        self.inputs, self.outputs, self.number, self.variables = segment.inputs, segment.outputs, number, variables


class RemoteBuffer:
    """Memory of a node.

    Attributes:
        number: by which frames name it.
        ahead: the slot that it belongs to.
        delivered: the buffer of this process that its value is brought to; None if it is not.
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
        """A copy of the value, in its logical shape. Raises DeviceError."""
        return cast("NDArray[np.generic]", self.device.ask("read", self.number))

    def fill(self, value: NDArray[np.generic]) -> None:
        """Copy a value there. Raises DeviceError."""
        self.device.ask("fill", self.number, np.ascontiguousarray(value))

    def blank(self, sentinel: int) -> None:
        """Fill the memory. Raises DeviceError."""
        self.device.ask("blank", self.number, sentinel)

    def deliver(self) -> Buffer:
        """Have the value brought to this process, before its writer is reported to have ended."""
        if self.delivered is None:
            self.delivered = HostBuffer(self.spec)
        return self.delivered


class RemoteInstance:
    """An instance of a segment on a node, which starts by itself when its inputs are there.

    Attributes:
        number: by which its end is reported.
        bound: buffers of its inputs.
        outputs: buffers on the node.
        ahead: the slot that it belongs to.
        keeps_state: whether each run goes on from the state that the one before has left.
    """

    keeps_state = False

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

    What is reported is kept until the scheduler asks for it, and what the scheduler asks for until it is reported. Reports of
    an earlier run are dropped.

    Attributes:
        number: of the slot, in this process.
        epoch: which run of it is under way.
        inbox: buffers of this process that nodes write to.
        senders: the device that sends what arrives in a buffer, by number; this process if it has none.
    """

    def __init__(self) -> None:
        self.number, self.epoch = next(_slots), 0
        self._begun = False
        self.inbox = ReceivingBuffers()
        self.senders: dict[int, RemoteDevice] = {}
        self.feeds: dict[RemoteDevice, list[tuple[int, HostBuffer]]] = {}
        self._lock, self._going = threading.Lock(), threading.Lock()
        self._started: set[object] = set()
        self._waiting: dict[int, tuple[DoneCallback, tuple[RemoteDevice, ...]]] = {}
        self._come: dict[int, tuple[float, float, BaseException | None]] = {}

    def renew(self) -> None:
        """Have the next thing that is started begin another run."""
        self._begun = False

    def go(self, what: object) -> None:
        """Have nodes begin a run, with the inputs that are in place, unless they have.

        Args:
            what: an instance or a buffer, which is started or sent once in each run: a second time begins another run.
        """
        with self._going:
            if self._begun and what not in self._started:
                self._started.add(what)
                return
            self._begun, self._started = True, {what}
            with self._lock:
                self.epoch += 1
                self._come.clear()
            for device, inputs in self.feeds.items():
                device.begin(self, inputs)

    def retire(self) -> int:
        """Have nothing of the last run go on anywhere once it is said that the epoch returned has begun; nothing runs here."""
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
        """Take note of the end of a segment or a transfer."""
        with self._lock:
            if epoch != self.epoch:
                return
            done, _ = self._waiting.pop(number, (None, ()))
            if done is None:
                self._come[number] = start, finish, error
                return
        done(start, finish, error)

    def lost(self, devices: set[RemoteDevice], error: DeviceError) -> None:
        """Fail whatever all of these devices take part in."""
        with self._lock:
            hit = [number for number, (_, those) in self._waiting.items() if devices <= set(those)]
            failed = [self._waiting.pop(number)[0] for number in hit]
        for done in failed:
            done(perf_counter(), perf_counter(), error)
