"""The part of an executor beside a device of a node: it starts segments when their inputs are there, and sends their outputs.

The node knows the plan in advance. So no other process is asked between two segments, on one node or on two: the scheduler of
the executor hears of each start and end afterwards, and decides nothing that has been decided here.
"""

from __future__ import annotations

import functools
import heapq
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from placeit.core.errors import DeviceError
from placeit.runtime.devices.base import Buffer, BufferSpec, Delivers, Instance, PinsMemory, RuntimeDevice
from placeit.runtime.nodes.tensors import Outgoing, ReceivingBuffers, outgoing
from placeit.runtime.nodes.wire import CHUNK, Connection, Frame, Kind, Parcel, ProtocolError

__all__ = ["DRIVER", "Lane", "SegmentJob", "Wiring", "rank"]

DRIVER = ""
"""The name under which the process with the executor is connected."""
_LONGEST_TEXT = 4096


@dataclass(frozen=True)
class SegmentJob:
    """An instance of a segment in one slot.

    Attributes:
        number: number of the instance in reports.
        program: number that the program of the segment got when it was compiled.
        urgency: of the jobs that are ready, the one with the lowest urgency starts first.
        inputs: numbers of the buffers that it reads, in order.
        outputs: numbers of the buffers that it writes, in order.
        keeps_state: whether each run continues from the state that the one before has left.
        shares: number of the job in another slot whose state it uses; None if no other slot was wired for this state before.
    """

    number: int
    program: int
    urgency: float
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    keeps_state: bool = False
    shares: int | None = None


@dataclass(frozen=True)
class Wiring:
    """The parts of one slot of an executor that are on one device.

    Attributes:
        slot: its number.
        buffers: buffers that tensors arrive in, by number.
        jobs: jobs in the order of the plan.
        sends: for each tensor to send: number of the buffer here, name of the device (or :data:`DRIVER`), number of the buffer
            there.
        fed: numbers of the buffers that the driver fills at the begin of a run, and gets no reports about.
    """

    slot: int
    buffers: dict[int, BufferSpec]
    jobs: tuple[SegmentJob, ...]
    sends: tuple[tuple[int, str, int], ...]
    fed: frozenset[int] = frozenset()


@dataclass(eq=False)
class _Cell:
    """A buffer on this device, with the jobs that read it, and the buffers that it is sent to.

    Attributes:
        sent: the buffer whose value is sent: the host's copy of ``buffer`` if that is in the device's memory.
    """

    buffer: Buffer
    slot: int
    fed: bool = False
    sent: Buffer | None = None
    readers: list[int] = field(default_factory=list)
    sends: list[tuple[str, int, float]] = field(default_factory=list)


@dataclass(eq=False)
class _Slot:
    epoch: int = 0
    begun: int = 0
    told: int = 0  # epoch of the last run that the driver has begun
    jobs: list[int] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    waiting: dict[int, int] = field(default_factory=dict)


class Lane:
    """Runs jobs on a device as their inputs arrive.

    Args:
        device: the device that they run on.
        coding: how float32 tensors are sent to others.
    """

    def __init__(self, device: RuntimeDevice, coding: int = 0) -> None:
        self.device, self._coding = device, coding
        self._inbox = ReceivingBuffers()
        self._cells: dict[int, _Cell] = {}
        self._jobs: dict[int, tuple[SegmentJob, Instance, int]] = {}
        self._slots: dict[int, _Slot] = {}
        # for each job that keeps state, the jobs that use this state in runs that the driver has begun, in this order
        self._turns: dict[int, deque[int]] = {}
        self._ready: list[tuple[int, float, int, int]] = []
        self._running: tuple[int, int] | None = None  # slot and epoch
        self._late: list[Frame] = []  # tensors that came while an earlier run of their slot was still running
        self._begun = 0
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)  # notified when a segment has ended
        self._peers: dict[str, Connection] = {}

    # -- calls through Ray ------------------------------------------------------------------------------------------

    def wire(self, wiring: Wiring, instances: Sequence[Instance]) -> None:
        """Make a slot ready to run; its jobs start as soon as a run of it begins."""
        slot = _Slot()
        cells: dict[int, _Cell] = {}
        for number, spec in wiring.buffers.items():
            made = self.device.pin(spec) if isinstance(self.device, PinsMemory) else self.device.allocate(spec)
            cells[number] = _Cell(made, wiring.slot, number in wiring.fed)
            self._inbox.expect(number, cells[number].buffer)
        for job, instance in zip(wiring.jobs, instances, strict=True):
            for i, number in enumerate(job.outputs):
                cells[number] = _Cell(instance.output(i), wiring.slot)
            for i, number in enumerate(job.inputs):
                instance.bind(i, cells[number].buffer)
            for number in dict.fromkeys(job.inputs):
                cells[number].readers.append(job.number)
            slot.jobs.append(job.number)
        urgency = {number: job.urgency for job in wiring.jobs for number in job.outputs}
        for number, name, there in wiring.sends:
            cell = cells[number]
            cell.sent = cell.buffer.deliver() if isinstance(cell.buffer, Delivers) else cell.buffer
            cell.sends.append((name, there, urgency.get(number, 0.0)))
        slot.buffers = list(cells)
        with self._lock:
            self._cells |= cells
            self._jobs |= {job.number: (job, made, wiring.slot) for job, made in zip(wiring.jobs, instances, strict=True)}
            self._slots[wiring.slot] = slot
            for job in wiring.jobs:
                if job.keeps_state:
                    self._turns[job.number] = deque() if job.shares is None else self._turns[job.shares]

    def unwire(self, number: int) -> None:
        """Forget a slot, which runs no more."""
        with self._lock:
            if number in self._slots:
                self._end(number, self._slots[number].epoch)
                slot = self._slots.pop(number)
                for job in slot.jobs:
                    del self._jobs[job]
                    self._turns.pop(job, None)
                for buffer in slot.buffers:
                    del self._cells[buffer]
                    self._inbox.forget(buffer)

    def buffer(self, number: int) -> Buffer:
        """Return a buffer by its number. Raises DeviceError."""
        try:
            return self._cells[number].buffer
        except KeyError:
            raise DeviceError(f"{self.device.name} has no buffer {number} any more.") from None

    def at_rest(self, number: int, epochs: Mapping[int, int]) -> Instance:
        """Return an instance after all runs of slots before ``epochs``, by slot, have ended. Raises DeviceError."""
        with self._lock:
            if number not in self._jobs:
                raise DeviceError(f"{self.device.name} has no segment {number} any more.")
            for slot, epoch in epochs.items():
                if slot in self._slots and self._slots[slot].epoch < epoch:
                    self._end(slot, epoch)
            while self._running is not None and self._running[0] in epochs:
                self._ended.wait()
            return self._jobs[number][1]

    def meet(self, connection: Connection) -> None:
        """Use a connection for frames to its other end."""
        self._peers[connection.name] = connection

    # -- calls of connections ---------------------------------------------------------------------------------------

    def place(self, frame: Frame) -> memoryview | None:
        """Return the memory for a payload; see :class:`placeit.runtime.nodes.wire.Receiver`."""
        if frame.kind != Kind.DATA:
            raise ProtocolError(f"a payload where none belongs (kind {frame.kind})")
        with self._lock:
            cell = self._cells.get(frame.target)
            if cell is None or self._slots[cell.slot].epoch > frame.epoch:
                return None  # of a run, or of an executor, that is over
            return self._inbox.place(frame)

    def took(self, frame: Frame, payload: memoryview | None, connection: Connection) -> None:  # noqa: ARG002
        """Handle a frame; see :class:`placeit.runtime.nodes.wire.Receiver`."""
        match frame.kind:
            case Kind.PING:
                connection.send(Frame(Kind.PONG, start=frame.start, finish=perf_counter()), urgency=(-1.0,))
            case Kind.BEGIN:
                with self._lock:
                    self._begin(frame.slot, frame.epoch)
                    self._queue(frame.slot, frame.epoch)
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
        driver = self._peers.get(DRIVER)
        if driver is not None:
            driver.send(Frame(Kind.LOST), memoryview(text))

    # -- decisions; "with the lock": the caller holds it --------------------------------------------------------------

    def _begin(self, number: int, epoch: int) -> None:
        """Begin a run of a slot: end earlier runs, and count the inputs that its jobs wait for; with the lock."""
        slot = self._slots.get(number)
        if slot is None or epoch <= slot.epoch:
            return  # the slot is forgotten, or this run has begun already
        self._begun += 1
        slot.begun = self._begun
        self._end(number, epoch)
        for job in slot.jobs:
            slot.waiting[job] = len(set(self._jobs[job][0].inputs)) + (job in self._turns)
            if slot.waiting[job] == 0:
                self._push(job)

    def _end(self, number: int, epoch: int) -> None:
        """Start nothing more of the runs of a slot before an epoch; with the lock."""
        slot = self._slots[number]
        slot.epoch, slot.waiting = epoch, {}
        for job in slot.jobs:
            self._leave(job)
        self._ready = [entry for entry in self._ready if entry[3] != number]
        heapq.heapify(self._ready)

    def _queue(self, number: int, epoch: int) -> None:
        """Queue the jobs of a run that keep state, which run in the order in which the driver begins runs; with the lock."""
        slot = self._slots.get(number)
        if slot is None or slot.epoch != epoch or slot.told == epoch:
            return
        slot.told = epoch
        for job in slot.jobs:
            turns = self._turns.get(job)
            if turns is not None:
                turns.append(job)
                if turns[0] == job:
                    self._came(job)

    def _leave(self, number: int) -> None:
        """Take a job that has ended, or is not to run any more, out of the queue for its state; with the lock."""
        turns = self._turns.get(number)
        if turns is not None and number in turns:
            first = turns[0] == number
            turns.remove(number)
            if first and turns:
                self._came(turns[0])

    def _came(self, number: int) -> None:
        """Count an input of a job, or its turn, as come, and make the job ready if it was the last; with the lock."""
        waiting = self._slots[self._jobs[number][2]].waiting
        waiting[number] -= 1
        if waiting[number] == 0:
            self._push(number)

    def _push(self, number: int) -> None:
        job, _, slot = self._jobs[number]
        heapq.heappush(self._ready, (self._slots[slot].begun, job.urgency, number, slot))

    def _filled(self, cell: _Cell) -> None:
        """Count a buffer as filled for each job that reads it, and queue the jobs that are ready; with the lock."""
        for job in cell.readers:
            self._came(job)

    def _arrived(self, frame: Frame) -> None:
        with self._lock:
            cell = self._cells.get(frame.target)
            if cell is None:
                return
            self._begin(cell.slot, frame.epoch)  # data may come before the driver's frame that begins the run
            if self._slots[cell.slot].epoch != frame.epoch or not self._inbox.took(frame):
                return
            if self._running is not None and self._running[0] == cell.slot and self._running[1] != frame.epoch:
                self._late.append(frame)  # the running segment may read the buffer
                return
        self._landed(frame)

    def _landed(self, frame: Frame) -> None:
        """Use a tensor that has arrived, unless its run is over. No segment of an earlier run of the slot may be running."""
        with self._lock:
            cell = self._cells.get(frame.target)
            if cell is None or self._slots[cell.slot].epoch != frame.epoch:
                return
            self._inbox.settle(frame.target)
            sent = self._outgoing(cell)
            self._filled(cell)
        finish = perf_counter()
        self._go_on()
        arrived = Frame(Kind.ARRIVED, epoch=frame.epoch, target=frame.target, start=frame.start, finish=finish)
        self._send_on(cell.slot, frame.epoch, {cell: sent}, None if cell.fed else arrived)

    def _go_on(self) -> None:
        """Start the most urgent job that is ready, if none is running."""
        with self._lock:
            if self._running is not None or not self._ready:
                return
            _, _, number, slot = heapq.heappop(self._ready)
            epoch = self._slots[slot].epoch
            self._running = slot, epoch
            instance = self._jobs[number][1]
        self.device.start(instance, functools.partial(self._done, number, slot, epoch))

    def _done(self, number: int, slot: int, epoch: int, start: float, finish: float, error: BaseException | None) -> None:
        sent: dict[_Cell, Outgoing | None] = {}
        with self._lock:
            outputs = self._outputs(number, slot, epoch) if error is None else []
        try:  # before another segment runs here, which might give the tensors other sizes
            sent = {cell: self._outgoing(cell) for cell in outputs}
        except Exception as failure:  # noqa: BLE001 (it is reported to the driver)
            error = failure
        with self._lock:
            self._running = None
            self._ended.notify_all()
            late, self._late = self._late, []
            if slot in self._slots and self._slots[slot].epoch == epoch:
                self._leave(number)
                for cell in sent:
                    self._filled(cell)
        text = b"" if error is None else (str(error) or type(error).__name__).encode()[:_LONGEST_TEXT]
        ended = Frame(Kind.ENDED, epoch=epoch, target=number, start=start, finish=finish)
        self._send_on(slot, epoch, sent, ended, text)
        for frame in late:
            self._landed(frame)
        self._go_on()

    def _outputs(self, number: int, slot: int, epoch: int) -> list[_Cell]:
        """Return the buffers that a job has written; none if its run is over; with the lock."""
        known = self._slots.get(slot)
        if known is None or known.epoch != epoch:
            return []
        return [self._cells[output] for output in self._jobs[number][0].outputs]

    def _outgoing(self, cell: _Cell) -> Outgoing | None:
        """Return the value of a buffer as it is sent; None if it is not sent."""
        return None if cell.sent is None else outgoing(cell.sent, self._coding)

    def _send_on(
        self, slot: int, epoch: int, sent: Mapping[_Cell, Outgoing | None], report: Frame | None, text: bytes = b""
    ) -> None:
        """Send buffers to all devices that read them, and a report to the driver, behind the tensors that the driver reads."""
        begin = perf_counter()
        parcels: dict[str, list[Parcel]] = {}
        for cell, what in sent.items():
            if what is None:
                continue
            for name, there, urgency in cell.sends:
                frame = Frame(Kind.DATA, what.coding, 0, epoch, there, start=begin, finish=what.scale, sizes=what.sizes)
                parcels.setdefault(name, []).append(Parcel(frame, what.payload, rank(len(what.payload), urgency)))
        if report is not None:
            before = [(one.urgency[0], math.inf) for one in parcels.get(DRIVER, ())]
            parcels.setdefault(DRIVER, []).append(Parcel(report, memoryview(text), max(before, default=())))
        for name in sorted(parcels, key=lambda name: name == DRIVER):
            peer = self._peers.get(name)
            if peer is not None:
                peer.send_all(parcels[name], self._still(slot, epoch))

    def _still(self, slot: int, epoch: int) -> Callable[[], bool]:
        slots = self._slots
        return lambda: (known := slots.get(slot)) is not None and known.epoch == epoch


def rank(nbytes: int, urgency: float) -> tuple[float, ...]:
    """Return the rank of a tensor on a link: tensors of one chunk go before longer ones, then by urgency."""
    return (1.0, urgency) if nbytes > CHUNK else (0.0, urgency)
