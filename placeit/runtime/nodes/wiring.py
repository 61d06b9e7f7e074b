"""Tells nodes what a slot of an executor runs there: segments, and the tensors that are sent and received."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

from placeit.core.errors import DeviceError, LostError
from placeit.planning.segments import Plan
from placeit.runtime.device_pool import DevicePool
from placeit.runtime.devices.base import Buffer, BufferSpec, Delivers
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.nodes.ahead import Ahead, RemoteBuffer, RemoteDevice, RemoteInstance
from placeit.runtime.nodes.lane import DRIVER, SegmentJob, Wiring
from placeit.runtime.segment_book import SegmentBook
from placeit.simulator.scheduler import b_level

if TYPE_CHECKING:
    from placeit.runtime.slots import Slot

__all__ = ["run_ahead"]


def run_ahead(book: SegmentBook, pool: DevicePool, plan: Plan, slot: Slot) -> Ahead | None:
    """Tell the nodes that a plan uses about one slot of it, and return its state; None if it uses none. Raises DeviceError."""
    devices = pool.devices
    ends = {end for copy, (src, *_) in slot.copies.items() for end in (src, copy[1])}
    remote = [d for d in {*ends, *(s.device for s in plan.programs)} if isinstance(devices[d], RemoteDevice)]
    if not remote:
        return None
    ahead, ranks = Ahead(), b_level(plan.problem, plan.placement)
    wirings = {d: _Wiring(ahead, _node(devices[d])) for d in remote}
    for s, instance in enumerate(slot.instances):
        d = plan.segments[s].device
        if instance is not None and d in wirings:
            wirings[d].add(instance, -float(ranks[s]))
    for (t, far), (src, source, destination) in slot.copies.items():
        if source is destination:
            continue
        spec = book.spec(plan.tensors[t])
        if far in wirings:
            wirings[far].receive(destination, spec)
        if isinstance(source, RemoteBuffer):
            wirings[src].send(source, destination, devices[far].name if far in wirings else DRIVER)
            if isinstance(destination, RemoteBuffer):
                ahead.senders[destination.number] = wirings[src].device
        elif isinstance(source, Delivers):
            source.deliver()  # from where it is sent
    for buffer in _delivered(slot):
        wiring = next((one for one in wirings.values() if one.device is buffer.device), None)
        if wiring is None:
            raise LostError(f"{buffer.device.name} is lost: it was opened anew while segments were loaded there.")
        wiring.deliver(buffer)
    for d, wiring in wirings.items():
        with pool.on(d):
            wiring.tell()
    weakref.finalize(ahead, _forget, ahead.number, [wiring.device for wiring in wirings.values()])
    return ahead


def _node(device: Any) -> RemoteDevice:
    assert isinstance(device, RemoteDevice)  # noqa: S101
    return device


def _delivered(slot: Slot) -> list[RemoteBuffer]:
    written = [buffer for buffers in slot.writes.values() for buffer in buffers]
    return [buffer for buffer in written if isinstance(buffer, RemoteBuffer) and buffer.delivered is not None]


def _forget(slot: int, devices: list[RemoteDevice]) -> None:
    for device in devices:
        with contextlib.suppress(DeviceError):
            device.tell("unwire", slot)


class _Wiring:
    """The wiring of a slot that one device is told about."""

    def __init__(self, ahead: Ahead, device: RemoteDevice) -> None:
        self.ahead, self.device = ahead, device
        self._buffers: dict[int, BufferSpec] = {}
        self._jobs: list[SegmentJob] = []
        self._sends: list[tuple[int, str, int]] = []
        self._fed: dict[int, int] = {}
        self._numbers: list[int] = []
        self._made: list[RemoteInstance] = []
        ahead.feeds[device] = []

    def add(self, instance: Any, urgency: float) -> None:
        """Add a segment that runs on the device."""
        made: RemoteInstance = instance
        made.ahead = self.ahead
        inputs = tuple(self._number(buffer, made.program.inputs[i]) for i, buffer in sorted(made.bound.items()))
        outputs = tuple(buffer.number for buffer in made.outputs)
        for buffer in made.outputs:
            buffer.ahead = self.ahead
        self._jobs.append(SegmentJob(made.number, made.program.number, urgency, inputs, outputs, made.keeps_state, made.shares))
        self._numbers.append(made.number)
        self._made.append(made)

    def _number(self, buffer: Buffer, spec: BufferSpec) -> int:
        """Return the number of a buffer on the device; a buffer of this process is sent there at the begin of each run."""
        if isinstance(buffer, RemoteBuffer):
            return buffer.number
        assert isinstance(buffer, HostBuffer)  # noqa: S101
        if id(buffer) not in self._fed:
            self._fed[id(buffer)] = number = self.device.number()
            self._buffers[number] = spec
            self.ahead.feeds[self.device].append((number, buffer))
        return self._fed[id(buffer)]

    def receive(self, buffer: Buffer, spec: BufferSpec) -> None:
        """Add a tensor that arrives at the device."""
        assert isinstance(buffer, RemoteBuffer)  # noqa: S101
        buffer.ahead = self.ahead
        self._buffers[buffer.number] = spec
        self._numbers.append(buffer.number)

    def send(self, source: RemoteBuffer, destination: Buffer, name: str) -> None:
        """Add a tensor that the device sends to another device, or to this process."""
        if isinstance(destination, RemoteBuffer):
            self._sends.append((source.number, name, destination.number))
        else:
            self._sends.append((source.number, DRIVER, self._expect(destination)))

    def deliver(self, buffer: RemoteBuffer) -> None:
        """Add an output of the model that the device sends to this process."""
        assert buffer.delivered is not None  # noqa: S101
        self._sends.append((buffer.number, DRIVER, self._expect(buffer.delivered)))

    def _expect(self, buffer: Buffer) -> int:
        number = self.device.number()
        self.ahead.inbox.expect(number, buffer)
        self.device.arrivals[buffer] = number
        self._numbers.append(number)
        return number

    def tell(self) -> None:
        """Send the wiring to the device."""
        for number in self._numbers:
            self.device.routes[number] = self.ahead
        fed = frozenset(self._fed.values())
        wiring = Wiring(self.ahead.number, self._buffers, tuple(self._jobs), tuple(self._sends), fed)
        for made, alternates in zip(self._made, self.device.ask("wire", wiring), strict=True):
            made.alternates = alternates
