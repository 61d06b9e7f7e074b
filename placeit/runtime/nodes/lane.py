"""Run beside a device of a node: start segments when their inputs are there, and send on their outputs.

The plan was told ahead. So between two segments, on one node or on two, nobody is asked: the scheduler of the executor hears of
each start and end afterwards, and decides nothing that has been decided here.
"""

from __future__ import annotations

import functools
import heapq
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError
from placeit.runtime.devices.base import Buffer, BufferSpec, Instance, RuntimeDevice
from placeit.runtime.nodes.coding import Coding, coded, coded_type, decode
from placeit.runtime.nodes.wire import CHUNK, Connection, Frame, Kind, ProtocolError

__all__ = ["DRIVER", "Lane", "ReceivingBuffers", "SegmentJob", "Wiring", "bytes_of", "memory_of", "rank"]

DRIVER = ""
"""The name under which the process with the executor is connected."""
_LONGEST_TEXT = 4096


@dataclass(frozen=True)
class SegmentJob:
    """An instance of a segment in one slot.

    Attributes:
        number: of the instance, by which its end is reported.
        program: of the segment, as it was numbered when it was compiled.
        urgency: the lower goes first of those that are ready.
        inputs: numbers of the buffers that it reads, in order.
        outputs: of those that it writes.
    """

    number: int
    program: int
    urgency: float
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Wiring:
    """The parts of one slot of an executor that are on one device.

    Attributes:
        slot: its number.
        buffers: that tensors arrive in, by number.
        jobs: in the order of the plan.
        sends: number of a buffer here, name of the device (or :data:`DRIVER`), number of the buffer there.
    """

    slot: int
    buffers: dict[int, BufferSpec]
    jobs: tuple[SegmentJob, ...]
    sends: tuple[tuple[int, str, int], ...]


@dataclass(eq=False)
class _Cell:
    """A buffer here: who reads it, and where it is sent."""

    buffer: Buffer
    slot: int
    memory: NDArray[np.generic]
    readers: list[int] = field(default_factory=list)
    sends: list[tuple[str, int, float]] = field(default_factory=list)


@dataclass(eq=False)
class _Slot:
    epoch: int = 0
    begun: int = 0
    jobs: list[int] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    waiting: dict[int, int] = field(default_factory=dict)


class ReceivingBuffers:
    """Buffers that payloads arrive in, by number: the only memory that a frame can write to."""

    def __init__(self) -> None:
        self._into: dict[int, NDArray[np.generic]] = {}
        self._coded: dict[int, NDArray[np.generic]] = {}
        self._missing: dict[int, tuple[int, int]] = {}

    def expect(self, number: int, memory: NDArray[np.generic]) -> None:
        """Set memory aside for a buffer: C-contiguous."""
        self._into[number] = memory

    def forget(self, number: int) -> None:
        """Expect nothing for a buffer any more."""
        for table in (self._into, self._coded, self._missing):
            table.pop(number, None)

    def place(self, frame: Frame) -> memoryview:
        """Return where a part of a tensor belongs. Raises ProtocolError if it is not expected."""
        memory = self._source(frame)
        if frame.offset + frame.size > memory.nbytes:
            raise ProtocolError(f"{frame.offset + frame.size} bytes for the buffer {frame.target}, which has {memory.nbytes}")
        return bytes_of(memory)[frame.offset : frame.offset + frame.size]

    def _source(self, frame: Frame) -> NDArray[np.generic]:
        """The memory that a frame is about: the buffer itself, or what it is decoded from. Raises ProtocolError."""
        memory = self._into.get(frame.target)
        if memory is None or frame.coding not in tuple(Coding) or (frame.coding and memory.dtype != np.float32):
            raise ProtocolError(f"a tensor for the buffer {frame.target}, which is not expected")
        if not frame.coding:
            return memory
        wanted = coded_type(frame.coding, memory.dtype)
        held = self._coded.get(frame.target)
        if held is None or held.dtype != wanted:
            held = self._coded[frame.target] = np.empty(memory.shape, wanted)
        return held

    def took(self, frame: Frame) -> bool:
        """Take note that a part is in place; return whether it was the last one. Raises ProtocolError if it is not expected."""
        source = self._source(frame)
        epoch, missing = self._missing.get(frame.target, (frame.epoch, source.nbytes))
        missing = (source.nbytes if epoch != frame.epoch else missing) - frame.size
        self._missing[frame.target] = frame.epoch, missing
        if missing > 0:
            return False
        del self._missing[frame.target]
        if frame.coding:
            decode(frame.coding, source, frame.finish, self._into[frame.target])
        return True


class Lane:
    """Runs jobs on a device as their inputs arrive.

    Args:
        device: what they run on.
        coding: how float32 tensors are sent to others.
    """

    def __init__(self, device: RuntimeDevice, coding: int = 0) -> None:
        self.device, self._coding = device, coding
        self._inbox = ReceivingBuffers()
        self._cells: dict[int, _Cell] = {}
        self._jobs: dict[int, tuple[SegmentJob, Instance, int]] = {}
        self._slots: dict[int, _Slot] = {}
        self._ready: list[tuple[int, float, int, int]] = []
        self._running: tuple[int, int] | None = None
        self._begun = 0
        self._lock = threading.Lock()
        self._peers: dict[str, Connection] = {}

    # -- told through Ray -------------------------------------------------------------------------------------------

    def wire(self, wiring: Wiring, instances: Sequence[Instance]) -> None:
        """Make a slot ready to run; it does as soon as a run of it begins."""
        slot = _Slot()
        cells: dict[int, _Cell] = {}
        for number, spec in wiring.buffers.items():
            cells[number] = self._cell(number, self.device.allocate(spec), wiring.slot, expected=True)
        for job, instance in zip(wiring.jobs, instances, strict=True):
            for i, number in enumerate(job.outputs):
                cells[number] = self._cell(number, instance.output(i), wiring.slot)
            for i, number in enumerate(job.inputs):
                instance.bind(i, cells[number].buffer)
            for number in dict.fromkeys(job.inputs):
                cells[number].readers.append(job.number)
            slot.jobs.append(job.number)
        urgency = {number: job.urgency for job in wiring.jobs for number in job.outputs}
        for number, name, there in wiring.sends:
            cells[number].sends.append((name, there, urgency.get(number, 0.0)))
        slot.buffers = list(cells)
        with self._lock:
            self._cells |= cells
            self._jobs |= {job.number: (job, made, wiring.slot) for job, made in zip(wiring.jobs, instances, strict=True)}
            self._slots[wiring.slot] = slot

    def _cell(self, number: int, buffer: Buffer, slot: int, *, expected: bool = False) -> _Cell:
        memory = memory_of(buffer)
        if expected:
            self._inbox.expect(number, memory)
        return _Cell(buffer, slot, memory)

    def unwire(self, number: int) -> None:
        """Forget a slot, which runs no more."""
        with self._lock:
            slot = self._slots.pop(number, None)
            if slot is not None:
                for job in slot.jobs:
                    del self._jobs[job]
                for buffer in slot.buffers:
                    del self._cells[buffer]
                    self._inbox.forget(buffer)
                self._ready = [entry for entry in self._ready if entry[3] != number]
                heapq.heapify(self._ready)

    def buffer(self, number: int) -> Buffer:
        """A buffer by its number. Raises DeviceError."""
        try:
            return self._cells[number].buffer
        except KeyError:
            raise DeviceError(f"{self.device.name} has no buffer {number} any more.") from None

    def meet(self, connection: Connection) -> None:
        """Use a connection for what is sent to its other end."""
        self._peers[connection.name] = connection

    # -- told by sockets --------------------------------------------------------------------------------------------

    def place(self, frame: Frame) -> memoryview | None:
        """Say where a payload goes; see :class:`placeit.runtime.nodes.wire.Receiver`."""
        if frame.kind != Kind.DATA:
            raise ProtocolError(f"a payload where none belongs (kind {frame.kind})")
        with self._lock:
            cell = self._cells.get(frame.target)
            if cell is None or self._slots[cell.slot].epoch > frame.epoch:
                return None  # of a run, or of an executor, that is over
            return self._inbox.place(frame)

    def took(self, frame: Frame, payload: memoryview | None, connection: Connection) -> None:  # noqa: ARG002
        """Follow a frame; see :class:`placeit.runtime.nodes.wire.Receiver`."""
        match frame.kind:
            case Kind.PING:
                connection.send(Frame(Kind.PONG, start=frame.start, finish=perf_counter()), urgency=(-1.0,))
            case Kind.BEGIN:
                with self._lock:
                    self._begin(frame.slot, frame.epoch)
                self._go_on()
            case Kind.DATA:
                self._arrived(frame)
            case _:
                raise ProtocolError(f"a frame of kind {frame.kind}")

    def lost(self, connection: Connection, why: str) -> None:
        """Tell the driver that a peer is gone, unless it has connected anew."""
        if self._peers.get(connection.name, connection) is not connection:
            return
        self._peers.pop(connection.name, None)
        text = f"{connection.name}: {why}".encode()[:_LONGEST_TEXT]
        self._tell(Frame(Kind.LOST), memoryview(text))

    # -- decisions; those with the lock say so ------------------------------------------------------------------------

    def _begin(self, number: int, epoch: int) -> None:
        """Forget an earlier run of a slot, and count anew what its jobs wait for; with the lock."""
        slot = self._slots.get(number)
        if slot is None or epoch <= slot.epoch:
            return  # or something of it has come first
        self._begun += 1
        slot.epoch, slot.begun = epoch, self._begun
        self._ready = [entry for entry in self._ready if entry[3] != number]
        heapq.heapify(self._ready)
        slot.waiting = {}
        for job in slot.jobs:
            slot.waiting[job] = len(set(self._jobs[job][0].inputs))
            if slot.waiting[job] == 0:
                self._push(job)

    def _push(self, number: int) -> None:
        job, _, slot = self._jobs[number]
        heapq.heappush(self._ready, (self._slots[slot].begun, job.urgency, number, slot))

    def _filled(self, cell: _Cell) -> None:
        """Have what reads a buffer wait for one thing less; with the lock."""
        waiting = self._slots[cell.slot].waiting
        for job in cell.readers:
            waiting[job] -= 1
            if waiting[job] == 0:
                self._push(job)

    def _arrived(self, frame: Frame) -> None:
        with self._lock:
            cell = self._cells.get(frame.target)
            if cell is None:
                return
            self._begin(cell.slot, frame.epoch)  # its data may come before the driver's word
            if self._slots[cell.slot].epoch != frame.epoch or not self._inbox.took(frame):
                return
            self._filled(cell)
        self._send_on(cell, frame.epoch)
        arrived = Frame(Kind.ARRIVED, epoch=frame.epoch, target=frame.target, start=frame.start, finish=perf_counter())
        self._tell(arrived, urgency=_after([cell]))
        self._go_on()

    def _go_on(self) -> None:
        """Start what is most urgent, if nothing runs."""
        with self._lock:
            if self._running is not None or not self._ready:
                return
            _, _, number, slot = heapq.heappop(self._ready)
            epoch = self._slots[slot].epoch
            self._running = number, epoch
            instance = self._jobs[number][1]
        self.device.start(instance, functools.partial(self._done, number, slot, epoch))

    def _done(self, number: int, slot: int, epoch: int, start: float, finish: float, error: BaseException | None) -> None:
        sends: list[_Cell] = []
        with self._lock:
            self._running = None
            known = self._slots.get(slot)
            if known is not None and known.epoch == epoch and error is None:
                sends = [self._cells[output] for output in self._jobs[number][0].outputs]
                for cell in sends:
                    self._filled(cell)
        for cell in sends:
            self._send_on(cell, epoch)
        text = b"" if error is None else (str(error) or type(error).__name__).encode()[:_LONGEST_TEXT]
        ended = Frame(Kind.ENDED, epoch=epoch, target=number, start=start, finish=finish)
        self._tell(ended, memoryview(text), urgency=_after(sends))
        self._go_on()

    def _send_on(self, cell: _Cell, epoch: int) -> None:
        if not cell.sends:
            return
        value, scale = coded(self._coding, cell.memory)
        coding = self._coding if value is not cell.memory else 0
        payload, begin = bytes_of(value), perf_counter()
        for name, there, urgency in cell.sends:
            peer = self._peers.get(name)
            if peer is not None:
                frame = Frame(Kind.DATA, coding, 0, epoch, there, start=begin, finish=scale)
                peer.send(frame, payload, urgency=rank(value.nbytes, urgency), current=self._still(cell.slot, epoch))

    def _still(self, slot: int, epoch: int) -> Callable[[], bool]:
        slots = self._slots
        return lambda: (known := slots.get(slot)) is not None and known.epoch == epoch

    def _tell(self, frame: Frame, payload: memoryview | None = None, urgency: tuple[float, ...] = ()) -> None:
        driver = self._peers.get(DRIVER)
        if driver is not None:
            driver.send(frame, payload, urgency=urgency)


def rank(nbytes: int, urgency: float) -> tuple[float, ...]:
    """Order of tensors on a link: those of one chunk before longer ones, then by urgency."""
    return (1.0, urgency) if nbytes > CHUNK else (0.0, urgency)


def _after(cells: Sequence[_Cell]) -> tuple[float, ...]:
    """Order of a report: at once, but behind what it is about if that goes to the driver, too."""
    largest = max((cell.memory.nbytes for cell in cells if any(name == DRIVER for name, _, _ in cell.sends)), default=None)
    return () if largest is None else rank(largest, float("inf"))


def memory_of(buffer: Buffer) -> NDArray[np.generic]:
    """The memory of a buffer in host memory, C-contiguous, without a copy. Raises DeviceError if it has none."""
    tensor = getattr(buffer, "tensor", None)
    memory: NDArray[np.generic] = buffer.array() if tensor is None else tensor.data
    if not memory.flags.c_contiguous:
        raise DeviceError("A buffer that is sent to another node is not contiguous in memory.")
    return memory


def bytes_of(memory: NDArray[np.generic]) -> memoryview:
    """View C-contiguous memory as bytes."""
    return memoryview(memory.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
