"""Wire slots of executors on nodes: tell each node which segments it runs, and which tensors it sends and receives."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from placeit.core.errors import LostError
from placeit.core.narrowing import narrowed
from placeit.planning.segments import Plan
from placeit.runtime.device_pool import DevicePool
from placeit.runtime.devices.base import Buffer, BufferSpec, Delivers
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.nodes.lane import DRIVER, SegmentJob, Wiring
from placeit.runtime.nodes.remote import RemoteBuffer, RemoteDevice, RemoteInstance, RemoteSlot
from placeit.runtime.segment_book import SegmentBook
from placeit.simulator.scheduler import b_level

if TYPE_CHECKING:
    from placeit.runtime.slots import Slot

__all__ = ["wire_slot"]


def wire_slot(book: SegmentBook, pool: DevicePool, plan: Plan, slot: Slot) -> Callable[[], None] | None:
    """Wire a slot on the nodes of a plan, and return a function that begins a new run there; None if the plan uses no nodes.

    Raises:
        DeviceError: a node does not answer, or cannot wire the slot.
    """
    devices = pool.devices
    ends = {end for copy, (src, *_) in slot.copies.items() for end in (src, copy[1])}
    used = {d: devices[d] for d in {*ends, *(s.device for s in plan.programs)}}
    remote_slot, ranks = RemoteSlot(), b_level(plan.problem, plan.placement)
    wirings = {d: _WiringBuilder(remote_slot, device) for d, device in used.items() if isinstance(device, RemoteDevice)}
    if not wirings:
        return None
    for s, instance in enumerate(slot.instances):
        d = plan.segments[s].device
        if instance is not None and d in wirings:
            wirings[d].add(narrowed(RemoteInstance, instance), -float(ranks[s]))
    for (t, far), (src, source, destination) in slot.copies.items():
        if source is destination:
            continue
        spec = book.spec(plan.tensors[t])
        if far in wirings:
            wirings[far].receive(destination, spec)
        if isinstance(source, RemoteBuffer):
            wirings[src].send(source, destination, devices[far].name)
            if isinstance(destination, RemoteBuffer):
                remote_slot.senders[destination.number] = wirings[src].device
        elif isinstance(source, Delivers):
            source.deliver()  # from where it is sent
    for buffer in [buffer for buffers in slot.writes.values() for buffer in buffers]:
        if not isinstance(buffer, RemoteBuffer) or buffer.delivered is None:
            continue
        wiring = next((one for one in wirings.values() if one.device is buffer.device), None)
        if wiring is None:
            raise LostError(f"{buffer.device.name} is lost: it was opened anew while segments were loaded there.")
        wiring.deliver(buffer)
    for d, wiring in wirings.items():
        weakref.finalize(remote_slot, wiring.device.tell, "unwire", remote_slot.number)  # even if another device fails
        with pool.on(d):
            wiring.send_to_device()
    return remote_slot.renew


class _WiringBuilder:
    """Builds the wiring of a slot for one device."""

    def __init__(self, remote_slot: RemoteSlot, device: RemoteDevice) -> None:
        self.slot, self.device = remote_slot, device
        self._buffers: dict[int, BufferSpec] = {}
        self._jobs: list[SegmentJob] = []
        self._sends: list[tuple[int, str, int]] = []
        self._fed: dict[int, int] = {}
        self._numbers: list[int] = []
        self._made: list[RemoteInstance] = []
        remote_slot.feeds[device] = []

    def add(self, made: RemoteInstance, priority: float) -> None:
        """Add a segment that runs on the device."""
        made.slot = self.slot
        inputs = tuple(self._number(buffer, made.program.inputs[i]) for i, buffer in sorted(made.bound.items()))
        outputs = tuple(buffer.number for buffer in made.outputs)
        for buffer in made.outputs:
            buffer.slot = self.slot
        self._jobs.append(
            SegmentJob(made.number, made.program.number, priority, inputs, outputs, made.keeps_state, made.shares)
        )
        self._numbers.append(made.number)
        self._made.append(made)

    def _number(self, buffer: Buffer, spec: BufferSpec) -> int:
        """Return the number of a buffer on the device. A buffer of this process is sent there at the beginning of each run."""
        if isinstance(buffer, RemoteBuffer):
            return buffer.number
        if id(buffer) not in self._fed:
            self._fed[id(buffer)] = number = self.device.number()
            self._buffers[number] = spec
            self.slot.feeds[self.device].append((number, narrowed(HostBuffer, buffer)))
        return self._fed[id(buffer)]

    def receive(self, buffer: Buffer, spec: BufferSpec) -> None:
        """Add a tensor that the device receives."""
        made = narrowed(RemoteBuffer, buffer)
        made.slot = self.slot
        self._buffers[made.number] = spec
        self._numbers.append(made.number)

    def send(self, source: RemoteBuffer, destination: Buffer, name: str) -> None:
        """Add a tensor that the device sends to another device, or to this process."""
        if isinstance(destination, RemoteBuffer):
            self._sends.append((source.number, name, destination.number))
        else:
            self._sends.append((source.number, DRIVER, self._expect(destination)))

    def deliver(self, buffer: RemoteBuffer) -> None:
        """Add an output of the model that the device sends to this process."""
        self._sends.append((buffer.number, DRIVER, self._expect(buffer.deliver())))

    def _expect(self, buffer: Buffer) -> int:
        number = self.device.number()
        self.slot.inbox.expect(number, buffer)
        self.device.arrivals[buffer] = number
        self._numbers.append(number)
        return number

    def send_to_device(self) -> None:
        """Have the device wire the slot. Raises DeviceError."""
        for number in self._numbers:
            self.device.routes[number] = self.slot
        fed = frozenset(self._fed.values())
        wiring = Wiring(self.slot.number, self._buffers, tuple(self._jobs), tuple(self._sends), fed)
        for made, alternates in zip(self._made, self.device.ask("wire", wiring), strict=True):
            made.alternates = alternates
