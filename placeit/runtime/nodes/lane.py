"""The part of an executor that runs on a node: it starts segments when their inputs have arrived, and sends their outputs.

The node knows the plan in advance, so it asks no other process between two segments, whether they are on one node or on two.
The scheduler of the executor gets a report of each start and end, and decides nothing that was decided here.
"""

from __future__ import annotations

import functools
import heapq
import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from placeit.core.errors import DeviceError
from placeit.runtime.devices.base import Buffer, BufferSpec, Delivers, Instance, PinsMemory, RuntimeDevice
from placeit.runtime.nodes.tensors import Outgoing, ReceivingBuffers, outgoing
from placeit.runtime.nodes.wire import CHUNK, Connection, Frame, Kind, Parcel, ProtocolError

__all__ = ["DRIVER", "MAX_TEXT_BYTES", "Lane", "SegmentJob", "Wiring", "data_parcel"]

DRIVER = ""
"""Name of the connection to the driver: the process with the executor."""
MAX_TEXT_BYTES = 4096  # limit on the text of an error in a frame


@dataclass(frozen=True)
class SegmentJob:
    """An instance of a segment in one slot.

    Attributes:
        number: number of the instance in reports.
        program: number that the program of the segment got when it was compiled.
        priority: of the jobs that are ready, the one with the lowest number starts first.
        inputs: numbers of the buffers that it reads, in order.
        outputs: numbers of the buffers that it writes, in order.
        keeps_state: whether each run continues from the state that the previous run left.
        shares: number of the job in an earlier slot whose state it uses; None if its own slot is the first with this state.
    """

    number: int
    program: int
    priority: float
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
        fed: numbers of the buffers that the driver fills at the beginning of a run; it gets no reports about them.
    """

    slot: int
    buffers: dict[int, BufferSpec]
    jobs: tuple[SegmentJob, ...]
    sends: tuple[tuple[int, str, int], ...]
    fed: frozenset[int] = frozenset()


@dataclass(eq=False)
class _TrackedBuffer:
    """A buffer on this device, with the jobs that read it and the buffers that it is sent to.

    Attributes:
        buffer: the buffer.
        slot: number of its slot.
        fed: whether the driver fills it.
        sent: the buffer whose value is sent: ``buffer``, or its copy on the host; None if it is not sent.
        readers: numbers of the jobs that read it.
        sends: for each destination: name of the device, number of the buffer there, and priority.
    """

    buffer: Buffer
    slot: int
    fed: bool = False
    sent: Buffer | None = None
    readers: list[int] = field(default_factory=list)
    sends: list[tuple[str, int, float]] = field(default_factory=list)


@dataclass(eq=False)
class _Slot:
    """A slot of the executor, and its current run.

    Attributes:
        epoch: number of the current run in this slot.
        run_number: position of the current run among the runs of all slots, in the order in which they began here.
        announced_epoch: epoch of the last run that a frame of the driver has begun.
        jobs: numbers of its jobs.
        buffers: numbers of its buffers.
        pending: for each job that has not started, how many inputs, and turns for its state, are still to come.
    """

    epoch: int = 0
    run_number: int = 0
    announced_epoch: int = 0
    jobs: list[int] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    pending: dict[int, int] = field(default_factory=dict)


class Lane:
    """Runs jobs on a device as their inputs arrive.

    Args:
        device: the device that they run on.
        coding: how float32 tensors are sent to others.
    """

    def __init__(self, device: RuntimeDevice, coding: int = 0) -> None:
        self.device, self._coding = device, coding
        self._inbox = ReceivingBuffers()
        self._buffers: dict[int, _TrackedBuffer] = {}
        self._jobs: dict[int, tuple[SegmentJob, Instance, int]] = {}
        self._slots: dict[int, _Slot] = {}
        # for each job that keeps state, the queue of the jobs that use this state, in the order in which the driver begins runs
        self._state_queues: dict[int, deque[int]] = {}
        self._ready: list[tuple[int, float, int, int]] = []
        self._running: tuple[int, int] | None = None  # slot and epoch
        self._deferred: list[Frame] = []  # last parts of tensors that came while an earlier run of their slot was running
        self._run_count = 0
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)  # notified when a segment ends
        self._peers: dict[str, Connection] = {}

    # -- calls through Ray ------------------------------------------------------------------------------------------

    def wire(self, wiring: Wiring, instances: Sequence[Instance]) -> None:
        """Make a slot ready to run; its jobs start as soon as a run of it begins."""
        slot = _Slot()
        tracked: dict[int, _TrackedBuffer] = {}
        for number, spec in wiring.buffers.items():
            made = self.device.pin(spec) if isinstance(self.device, PinsMemory) else self.device.allocate(spec)
            tracked[number] = _TrackedBuffer(made, wiring.slot, number in wiring.fed)
        for job, instance in zip(wiring.jobs, instances, strict=True):
            for i, number in enumerate(job.outputs):
                tracked[number] = _TrackedBuffer(instance.output(i), wiring.slot)
            for i, number in enumerate(job.inputs):
                instance.bind(i, tracked[number].buffer)
            for number in dict.fromkeys(job.inputs):
                tracked[number].readers.append(job.number)
            slot.jobs.append(job.number)
        priority = {number: job.priority for job in wiring.jobs for number in job.outputs}
        for number, name, there in wiring.sends:
            entry = tracked[number]
            entry.sent = entry.buffer.deliver() if isinstance(entry.buffer, Delivers) else entry.buffer
            entry.sends.append((name, there, priority.get(number, 0.0)))
        slot.buffers = list(tracked)
        with self._lock:
            for number in wiring.buffers:
                self._inbox.expect(number, tracked[number].buffer)
            self._buffers |= tracked
            self._jobs |= {job.number: (job, made, wiring.slot) for job, made in zip(wiring.jobs, instances, strict=True)}
            self._slots[wiring.slot] = slot
            for job in wiring.jobs:
                if job.keeps_state:
                    self._state_queues[job.number] = deque() if job.shares is None else self._state_queues[job.shares]

    def unwire(self, number: int) -> None:
        """Release a slot, which will not run again."""
        with self._lock:
            if number in self._slots:
                self._end(number, self._slots[number].epoch)
                slot = self._slots.pop(number)
                for job in slot.jobs:
                    del self._jobs[job]
                    self._state_queues.pop(job, None)
                for buffer in slot.buffers:
                    del self._buffers[buffer]
                    self._inbox.forget(buffer)

    def buffer(self, number: int) -> Buffer:
        """Return a buffer by its number. Raises DeviceError."""
        try:
            return self._buffers[number].buffer
        except KeyError:
            raise DeviceError(f"{self.device.name} has no buffer {number} any more.") from None

    def idle_instance(self, number: int, epochs: Mapping[int, int]) -> Instance:
        """Return an instance after all runs of slots before ``epochs``, by slot, have ended.

        Raises:
            DeviceError: the instance was unwired.
        """
        with self._lock:
            for slot, epoch in epochs.items():
                if slot in self._slots and self._slots[slot].epoch < epoch:
                    self._end(slot, epoch)
            while self._running is not None and self._running[0] in epochs:
                self._ended.wait()
            if number not in self._jobs:
                raise DeviceError(f"{self.device.name} has no segment {number} any more.")
            return self._jobs[number][1]

    def add_peer(self, connection: Connection) -> None:
        """Use a connection for frames to its other end."""
        self._peers[connection.name] = connection

    # -- calls of connections ---------------------------------------------------------------------------------------

    def place(self, frame: Frame) -> memoryview | None:
        """Return memory for a payload; see :meth:`placeit.runtime.nodes.wire.Receiver.place`."""
        if frame.kind != Kind.DATA:
            raise ProtocolError(f"an unexpected payload (kind {frame.kind})")
        with self._lock:
            entry = self._buffers.get(frame.target)
            if entry is None or self._slots[entry.slot].epoch > frame.epoch:
                return None  # the run, or the executor, is over
            return self._inbox.place(frame)

    def handle(self, frame: Frame, payload: memoryview | None, connection: Connection) -> None:  # noqa: ARG002
        """Handle a frame; see :meth:`placeit.runtime.nodes.wire.Receiver.handle`."""
        match frame.kind:
            case Kind.PING:
                connection.send(Frame(Kind.PONG, start=frame.start, finish=perf_counter()), priority=(-1.0,))
            case Kind.BEGIN:
                with self._lock:
                    self._begin(frame.slot, frame.epoch)
                    self._join_queues(frame.slot, frame.epoch)
                self._start_next()
            case Kind.DATA:
                self._handle_data(frame)
            case _:
                raise ProtocolError(f"a frame of kind {frame.kind}")

    def lost(self, connection: Connection, why: str) -> None:
        """Report a lost peer to the driver, unless the peer has connected again."""
        if self._peers.get(connection.name, connection) is not connection:
            return
        self._peers.pop(connection.name, None)
        text = f"{connection.name}: {why}".encode()[:MAX_TEXT_BYTES]
        if (driver := self._peers.get(DRIVER)) is not None:
            driver.send(Frame(Kind.LOST), memoryview(text))

    # -- decisions; "(locked)": the caller holds the lock ---------------------------------------------------------------

    def _begin(self, number: int, epoch: int) -> None:
        """Begin a run of a slot: end earlier runs, and count the inputs that its jobs wait for (locked)."""
        slot = self._slots.get(number)
        if slot is None or epoch <= slot.epoch:
            return  # the slot was unwired, or this run has begun already
        self._run_count += 1
        slot.run_number = self._run_count
        self._end(number, epoch)
        for job in slot.jobs:
            slot.pending[job] = len(set(self._jobs[job][0].inputs)) + (job in self._state_queues)
            if slot.pending[job] == 0:
                self._make_ready(job)

    def _end(self, number: int, epoch: int) -> None:
        """Start no more jobs of the runs of a slot before an epoch (locked)."""
        slot = self._slots[number]
        slot.epoch, slot.pending = epoch, {}
        for job in slot.jobs:
            self._leave_queue(job)
        self._ready = [entry for entry in self._ready if entry[3] != number]
        heapq.heapify(self._ready)

    def _join_queues(self, number: int, epoch: int) -> None:
        """Queue the jobs of a run that keep state: they run in the order in which the driver begins runs (locked)."""
        slot = self._slots.get(number)
        if slot is None or slot.epoch != epoch or slot.announced_epoch == epoch:
            return
        slot.announced_epoch = epoch
        for job in slot.jobs:
            queue = self._state_queues.get(job)
            if queue is not None:
                queue.append(job)
                if queue[0] == job:
                    self._count_input(job)

    def _leave_queue(self, number: int) -> None:
        """Remove a job that has ended, or will not run, from the queue for its state (locked)."""
        queue = self._state_queues.get(number)
        if queue is not None and number in queue:
            was_first = queue[0] == number
            queue.remove(number)
            if was_first and queue:
                self._count_input(queue[0])

    def _count_input(self, number: int) -> None:
        """Count one input of a job, or its turn for the state, as available; after the last, make the job ready (locked)."""
        pending = self._slots[self._jobs[number][2]].pending
        pending[number] -= 1
        if pending[number] == 0:
            self._make_ready(number)

    def _make_ready(self, number: int) -> None:
        job, _, slot = self._jobs[number]
        heapq.heappush(self._ready, (self._slots[slot].run_number, job.priority, number, slot))

    def _handle_data(self, frame: Frame) -> None:
        with self._lock:
            entry = self._buffers.get(frame.target)
            if entry is None:
                return
            self._begin(entry.slot, frame.epoch)  # data may come before the driver's frame that begins the run
            if self._slots[entry.slot].epoch != frame.epoch or not self._inbox.add_part(frame):
                return
            if self._running is not None and self._running[0] == entry.slot and self._running[1] != frame.epoch:
                self._deferred.append(frame)  # the running segment may read the buffer
                return
        self._use_arrived(frame)

    def _use_arrived(self, frame: Frame) -> None:
        """Use a tensor of which all parts have arrived, unless its run is over.

        No segment of an earlier run of the slot may be running.
        """
        with self._lock:
            entry = self._buffers.get(frame.target)
            if entry is None or self._slots[entry.slot].epoch != frame.epoch:
                return
            self._inbox.write_back(frame.target)
            sent = self._sent_value(entry)
            for job in entry.readers:
                self._count_input(job)
        finish = perf_counter()
        self._start_next()
        arrived = Frame(Kind.ARRIVED, epoch=frame.epoch, target=frame.target, start=frame.start, finish=finish)
        self._send_outputs(entry.slot, frame.epoch, {entry: sent}, None if entry.fed else arrived)

    def _start_next(self) -> None:
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
        sent: dict[_TrackedBuffer, Outgoing | None] = {}
        with self._lock:
            current = error is None and self._is_current(slot, epoch)
            outputs = [self._buffers[output] for output in self._jobs[number][0].outputs] if current else []
        try:  # before another segment runs here, which might give the tensors other sizes
            sent = {entry: self._sent_value(entry) for entry in outputs}
        except Exception as failure:  # noqa: BLE001 (it is reported to the driver)
            error = failure
        with self._lock:
            self._running = None
            self._ended.notify_all()
            deferred, self._deferred = self._deferred, []
            if self._is_current(slot, epoch):
                self._leave_queue(number)
                for job in [job for entry in sent for job in entry.readers]:
                    self._count_input(job)
        text = b"" if error is None else (str(error) or type(error).__name__).encode()[:MAX_TEXT_BYTES]
        ended = Frame(Kind.ENDED, epoch=epoch, target=number, start=start, finish=finish)
        self._send_outputs(slot, epoch, sent, ended, text)
        for frame in deferred:
            self._use_arrived(frame)
        self._start_next()

    def _sent_value(self, entry: _TrackedBuffer) -> Outgoing | None:
        """Return the value of a buffer in the form that is sent; None if it is not sent."""
        return None if entry.sent is None else outgoing(entry.sent, self._coding)

    def _send_outputs(
        self, slot: int, epoch: int, sent: Mapping[_TrackedBuffer, Outgoing | None], report: Frame | None, text: bytes = b""
    ) -> None:
        """Send values to all devices that read them, then a report to the driver, after the values that the driver reads."""
        parcels: dict[str, list[Parcel]] = {}
        for entry, value in sent.items():
            if value is not None:
                for name, number, priority in entry.sends:
                    parcels.setdefault(name, []).append(data_parcel(value, epoch, number, priority))
        if report is not None:
            before = [(one.priority[0], math.inf) for one in parcels.get(DRIVER, ())]
            parcels.setdefault(DRIVER, []).append(Parcel(report, memoryview(text), max(before, default=())))
        for name in sorted(parcels, key=lambda name: name == DRIVER):
            if (peer := self._peers.get(name)) is not None:
                peer.send_all(parcels[name], functools.partial(self._is_current, slot, epoch))

    def _is_current(self, slot: int, epoch: int) -> bool:
        """Return whether an epoch is the current run of a slot that is still wired."""
        return (found := self._slots.get(slot)) is not None and found.epoch == epoch


def data_parcel(sent: Outgoing, epoch: int, number: int, priority: float = 0.0) -> Parcel:
    """Return a tensor for the buffer with a number. On a link, tensors of one chunk precede longer ones, then ``priority``."""
    start = perf_counter()
    frame = Frame(Kind.DATA, sent.coding, 0, epoch, number, start=start, finish=sent.scale, sizes=sent.sizes)
    return Parcel(frame, sent.payload, (float(len(sent.payload) > CHUNK), priority))
