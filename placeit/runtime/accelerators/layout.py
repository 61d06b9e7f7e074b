"""Memory layout of a plan's values, and the launches and streams that compute and copy them.

Buffers share memory only if that costs no time: if, whatever the timing, everything that uses the first buffer happens before
the second buffer is written. So no wait is added, and no stream stalls. The memory that a plan needs is known before it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placeit.runtime.accelerators.work import PlanTasks
from placeit.runtime.devices.accelerator import HOST, Accelerator, StreamProgram
from placeit.runtime.devices.base import BufferSpec

__all__ = ["Launch", "RequestLayout"]


@dataclass(frozen=True)
class Launch:
    """A segment, or one step of a copy.

    Attributes:
        stream: number of its stream.
        reads: numbers of the buffers that it reads.
        writes: numbers of the buffers that it writes.
        after: launches that write what it reads.
        program: the program to launch; None for a copy.
        name: the first op of the segment, or the op or input that made the value that is copied.
    """

    stream: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    after: tuple[int, ...]
    program: StreamProgram | None
    name: str


class RequestLayout:
    """Launches, buffers and memory of one request.

    Each device has a stream for its segments, and a stream for each place that it copies to. It also has a stream for each
    place that it copies from because that place cannot write to it. So a copy never queues behind a copy to another place. A
    tensor that a device cannot send directly goes through pinned memory of the host, in two copies (legs). Nothing is copied
    between devices that compute in one memory: the host's memory, or the memory of a GPU of which both are parts.

    Args:
        work: the tasks of a plan.
        accelerator: the devices.

    Attributes:
        launches: launches, in an order in which they may be started.
        streams: device of each stream.
        routes: source and destination of the copies on each stream; for a stream of segments, both are its device.
        runs: launch of each task; None if the task runs nothing.
        moves: launches that copy a tensor of the plan's problem, by (tensor, destination).
        makers: launch that writes a tensor, by (tensor, destination), if the transfer copies nothing since the two devices have
            one memory.
        peers: for each stream, the device that it copies to directly; None if it copies from or to the host, or copies nothing.
        tensor_of: number of the tensor that a launch copies, by launch; see :class:`placeit.runtime.spans.Labels`.
        host_to_device: launches that copy inputs of the model from the host to the devices that read them.
        device_to_host: for each task, the launches that copy outputs of the model from its device to the host.
        specs: shape and type of each buffer.
        places: first device of the memory of each buffer, or ``HOST``.
        buffer_of: the buffer of a value on a device or the host, by (value, device).
        slot_of: slot of memory of each buffer.
        slots: device and bytes of each slot of memory.
    """

    def __init__(self, work: PlanTasks, accelerator: Accelerator) -> None:
        self.work, self._can_peer = work, accelerator.can_peer
        self._place = [accelerator.memory(device) for device in range(len(accelerator.names))]
        self.launches: list[Launch] = []
        self.streams: list[int] = []
        self.routes: list[tuple[int, int]] = []
        self.specs: list[BufferSpec] = []
        self.places: list[int] = []
        self.buffer_of: dict[tuple[int, int], int] = {}
        self.runs: list[int | None] = [None] * len(work.tasks)
        self.moves: dict[tuple[int, int], tuple[int, ...]] = {}
        self.makers: dict[tuple[int, int], int] = {}
        self.host_to_device: list[int] = []
        self.device_to_host: list[tuple[int, ...]] = [()] * len(work.tasks)
        self._stream_of: dict[tuple[int, int, int], int] = {}
        self._writer: dict[int, int] = {}  # launch that writes a buffer
        self._in_memory: dict[tuple[int, int], int] = {}  # buffer of a value that was copied to a memory
        self._names = {value: task.name for task in work.tasks for value in task.writes}
        self._names.update({value: name for name, value in work.inputs.items()})
        self._lay_out()
        self.peers = [dst if owner == src != dst and self._memory(dst) != HOST else None for owner, src, dst in self._stream_of]
        self.tensor_of = self._tensors()
        self.slot_of, self.slots = self._share(self._ancestors())

    def bytes_on(self, device: int) -> int:
        """Return the bytes of a request's buffers in the host's memory, or in a memory that is named by its first device."""
        return sum(nbytes for place, nbytes in self.slots if place == device)

    def _lay_out(self) -> None:
        """Make launches and buffers in the order of the simulated schedule."""
        work = self.work
        plan, schedule = work.plan, work.plan.schedule
        problem, moved = plan.problem, schedule.transfers
        for value in work.inputs.values():
            self.buffer_of[value, HOST] = self._new_buffer(value, HOST)
        level = [0] * len(problem)
        for v in problem.order.tolist():
            for e in problem.predecessors.row(v).tolist():
                level[v] = max(level[v], level[int(problem.edges[e, 0])] + 2)
        maker = dict(zip(problem.edge_tensor.tolist(), problem.edges[:, 0].tolist(), strict=True))
        # ties of segments that take no time are broken by depth in the graph
        steps = [(start, level[s], s, -1) for s, start in enumerate(schedule.start.tolist())]
        for tensor, dst, start in zip(moved.tensor.tolist(), moved.dst.tolist(), moved.start.tolist(), strict=True):
            steps.append((start, level[maker[tensor]] + 1, tensor, dst))
        read_on = {(value, task.device) for task in work.tasks for value in task.reads}
        provided = set(work.inputs.values())
        transferred = {(work.value_of[tensor], dst) for _, _, tensor, dst in steps if dst >= 0}
        for value, device in sorted(read_on - transferred):
            if value in provided:
                self.host_to_device += self._copy(value, HOST, device)
        wanted = set(work.outputs.values()) - provided
        for _, _, number, dst in sorted(steps):
            if dst >= 0:
                value = work.value_of[number]
                if (value, dst) in read_on:
                    src = HOST if value in provided else work.tasks[maker[number]].device
                    legs = self._copy(value, src, dst)
                    if legs:
                        self.moves[number, dst] = legs
                    elif self.buffer_of[value, dst] in self._writer:
                        self.makers[number, dst] = self._writer[self.buffer_of[value, dst]]
            elif work.tasks[number].program is not None:
                task = work.tasks[number]
                reads = tuple(self.buffer_of[value, task.device] for value in task.reads)
                place = self._place[task.device]
                writes = tuple(self._new_buffer(value, place) for value in task.writes)
                for value, buffer in zip(task.writes, writes, strict=True):
                    self.buffer_of[value, task.device] = self.buffer_of[value, place] = buffer
                stream = task.device, task.device, task.device
                self.runs[number] = self._launch(stream, reads, writes, task.name, task.program)
                for value in task.writes:
                    if value in wanted:
                        self.device_to_host[number] += self._copy(value, task.device, HOST)

    def _tensors(self) -> dict[int, int]:
        work, first = self.work, len(self.work.plan.tensors)
        found = {n: tensor for (tensor, _), legs in self.moves.items() for n in legs}
        inputs = {value: first + i for i, value in enumerate(work.inputs.values())}
        outputs = {value: first + len(inputs) + i for i, value in enumerate(work.outputs.values())}
        brought = {self.buffer_of[value, HOST]: number for value, number in inputs.items()}
        found |= {n: brought[self._source(n)] for n in self.host_to_device}
        wanted = {self.buffer_of[value, HOST]: number for value, number in outputs.items()}
        found |= {n: wanted[self.launches[n].writes[0]] for legs in self.device_to_host for n in legs}
        return found

    def _source(self, n: int) -> int:
        """Return the first source of a chain of copies."""
        launch = self.launches[n]
        return self._source(launch.after[0]) if launch.after else launch.reads[0]

    def _copy(self, value: int, src: int, dst: int) -> tuple[int, ...]:
        """Add the launches that copy a value from one place to another; return them in order. Empty if no copy is needed."""
        source, name = self.buffer_of[value, src], self._names[value]
        memory = self._memory(dst)
        from_host, to_host = self._memory(src) == HOST, memory == HOST
        there = source if self._memory(src) == memory else self._in_memory.get((value, memory))
        if there is not None:
            self.buffer_of[value, dst] = there
            return ()
        legs = []
        owner = dst if from_host else src
        if not (from_host or to_host or self._can_peer(src, dst)):
            staging = self._new_buffer(value, HOST)
            legs.append(self._launch((src, src, dst), (source,), (staging,), name))
            source, owner = staging, dst
        self.buffer_of[value, dst] = self._in_memory[value, memory] = self._new_buffer(value, memory)
        legs.append(self._launch((owner, src, dst), (source,), (self.buffer_of[value, dst],), name))
        return tuple(legs)

    def _memory(self, place: int) -> int:
        return HOST if place == HOST else self._place[place]

    def _launch(
        self,
        key: tuple[int, int, int],
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        name: str,
        program: StreamProgram | None = None,
    ) -> int:
        """Add a launch on the stream with a key: (device that the stream belongs to, source, destination)."""
        if key not in self._stream_of:
            self._stream_of[key] = len(self.streams)
            self.streams.append(key[0])
            self.routes.append(key[1:])
        after = tuple(dict.fromkeys(self._writer[b] for b in reads if b in self._writer))
        number = len(self.launches)
        self.launches.append(Launch(self._stream_of[key], reads, writes, after, program, name))
        self._writer.update(dict.fromkeys(writes, number))
        return number

    def _new_buffer(self, value: int, place: int) -> int:
        self.specs.append(self.work.values[value])
        self.places.append(place)
        return len(self.specs) - 1

    def _ancestors(self) -> list[int]:
        """Return for each launch a bit mask of the launches that always end before it starts."""
        ancestors: list[int] = []
        for launch in self.launches:
            found = 0
            for parent in launch.after:
                found |= ancestors[parent] | 1 << parent
            ancestors.append(found)
        return ancestors

    def _share(self, ancestors: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Assign buffers to slots of memory greedily: to the free slot that fits best, or else to the largest, which grows."""
        touched = [0] * len(self.specs)  # launches that read or write a buffer, as bits
        for n, launch in enumerate(self.launches):
            for b in (*launch.reads, *launch.writes):
                touched[b] |= 1 << n
        kept = {self.buffer_of[value, HOST] for value in (*self.work.inputs.values(), *self.work.outputs.values())}
        slot_of = [-1] * len(self.specs)
        slots: list[tuple[int, int]] = []
        last: list[int] = []  # for each slot, the last buffer assigned to it
        for b in (*kept, *(b for launch in self.launches for b in launch.writes if b not in kept)):
            place, need = self.places[b], max(1, self.specs[b].nbytes)
            free: list[int] = []
            if b not in kept:
                known = ancestors[self._writer[b]]
                free = [
                    s
                    for s, (at, _) in enumerate(slots)
                    if at == place and last[s] not in kept and not touched[last[s]] & ~known
                ]
            if free:
                slot = min(free, key=lambda s: (slots[s][1] < need, abs(slots[s][1] - need)))
                slots[slot] = place, max(need, slots[slot][1])
                last[slot] = b
            else:
                slot = len(slots)
                slots.append((place, need))
                last.append(b)
            slot_of[b] = slot
        return slot_of, slots
