"""Requests in flight on streams of an accelerator, and the calls that launch their work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placeit.core.arrays import GpuArray
from placeit.core.errors import DeviceError, ExecutionError, PlaceitError
from placeit.runtime.accelerators.layout import Launch, RequestLayout
from placeit.runtime.devices.accelerator import (
    HOST,
    Accelerator,
    Batch,
    Event,
    Inbox,
    LoadedProgram,
    Memory,
    Prepared,
    Step,
    Stream,
    Token,
    View,
)

__all__ = ["Launcher", "RequestSlot"]


class RequestSlot:
    """One request in flight: its memory, its events, and its progress.

    Attributes:
        views: of each buffer.
        events: of each launch, recorded behind it.
        begins: of each launch, recorded before it.
        prepared: of each launch that runs a program.
        tokens: of each launch.
        flying: launches whose reports are still to come.
        decided: whether nothing is left to launch.
        batch: launches that follow each other on one stream in any case; None if the scheduler decides about every launch.
        given: arrays of the caller on GPUs, in place of buffers of the host, by buffer.
    """

    def __init__(self, number: int, layout: RequestLayout, accelerator: Accelerator, memory: list[Memory]) -> None:
        mine: list[Memory] = []
        for place, nbytes in layout.slots:
            mine.append(accelerator.allocate(place, nbytes))
            memory.append(mine[-1])
        self.views: list[View] = [
            accelerator.view(mine[slot], spec) for slot, spec in zip(layout.slot_of, layout.specs, strict=True)
        ]
        owners = [layout.streams[launch.stream] for launch in layout.launches]
        self.events: list[Event] = [accelerator.event(device) for device in owners]
        self.begins: list[Event] = [accelerator.event(device) for device in owners]
        self.prepared: list[Prepared | None] = []
        self.tokens: list[Token] = [(number, n) for n in range(len(layout.launches))]
        self.flying: dict[int, None] = {}
        self.decided = True
        self.batch: Batch | None = None
        self.given: dict[int, GpuArray] = {}


class Launcher:
    """Programs, memory, streams and events of a number of requests.

    Args:
        layout: what there is to launch.
        accelerator: the devices to launch it on.
        priority: priority of its streams.

    Attributes:
        slots: the requests, once :meth:`make` has made them.
        streams: the open streams, numbered as in the layout.
        straight: whether all segments are on one device, and are launched at once when a request begins, by :meth:`start_all`.
        flying: how many reports are still to come, of all requests.
        at_fault: the request that failed first in this run, if that is known.
    """

    def __init__(self, layout: RequestLayout, accelerator: Accelerator, priority: int = 0) -> None:
        self.layout, self.accelerator, self._priority = layout, accelerator, priority
        self.slots: list[RequestSlot] = []
        self.streams: list[Stream] = []
        self.straight = False
        self.flying = 0
        self.at_fault: int | None = None
        self._inbox = Inbox()
        self._memory: list[Memory] = []
        self._loaded: list[LoadedProgram | None] = []
        self._beside: list[Stream | None] = []  # for each stream, a stream of the device that it copies to
        self._opened: list[Stream] = []
        self._before: list[int] = []  # of a straight request: launches before its batch, in it, and behind it
        self._inside: list[int] = []
        self._behind: list[int] = []

    def make(self, in_flight: int, *, straight: bool) -> None:
        """Load every program, open streams, and allocate all memory, with inputs of zeros.

        Args:
            in_flight: how many requests.
            straight: whether all segments may be launched at once, if they are on one device that does not compute in the
                host's memory.

        Raises:
            DeviceError: the device refuses a program, a stream or memory; :meth:`release` undoes what was done before.
        """
        layout, accelerator = self.layout, self.accelerator
        for launch in layout.launches:
            self._loaded.append(None if launch.program is None else self._load(launch))
        for device, peer in zip(layout.streams, layout.peers, strict=True):
            self.streams.append(self._open(device))
            self._beside.append(None if peer is None else self._open(peer))
        runs = [n for n in layout.runs if n is not None]
        devices = {layout.streams[layout.launches[n].stream] for n in runs}
        self.straight = straight and len(devices) == 1 and accelerator.memory(min(devices)) != HOST
        if self.straight and in_flight == 1:
            self._inside = [*range(len(layout.launches))]
        elif self.straight:
            self._divide()  # copies of one request can overlap with segments of another one
        for number in range(in_flight):
            slot = RequestSlot(number, layout, accelerator, self._memory)
            self.slots.append(slot)
            for value in layout.work.inputs.values():
                spec = layout.work.values[value]
                accelerator.write(slot.views[layout.buffer_of[value, HOST]], np.zeros(spec.shape, spec.dtype))
            if self.straight:
                self._make_batch(slot, layout.launches[runs[0]].stream)
            else:
                slot.prepared = [self._prepare(slot, n) for n in range(len(layout.launches))]

    def _divide(self) -> None:
        """Have straight requests launch their copies before and behind the batch, and not in it."""
        layout = self.layout
        copies = [n for n, launch in enumerate(layout.launches) if launch.program is None]
        self._inside = [n for n, launch in enumerate(layout.launches) if launch.program is not None]
        self._before = [n for n in copies if layout.routes[layout.launches[n].stream][0] == HOST]
        self._behind = [n for n in copies if n not in self._before]

    def copy_apart(self) -> None:
        """Launch copies apart from batches from now on, so that they may read and write arrays of callers.

        Nothing may be in flight, unless copies are apart already.
        """
        if self.straight and any(self.layout.launches[n].program is None for n in self._inside):
            self._divide()
            for slot in self.slots:
                slot.begins = [self.accelerator.event(self.layout.streams[one.stream]) for one in self.layout.launches]
                self._make_batch(slot, self.layout.launches[self._inside[0]].stream)

    def _open(self, device: int) -> Stream:
        self._opened.append(self.accelerator.open_stream(device, self._priority))
        return self._opened[-1]

    def _load(self, launch: Launch) -> LoadedProgram:
        assert launch.program is not None  # noqa: S101 (the caller has checked)
        device = self.layout.streams[launch.stream]
        try:
            return launch.program.load(self.accelerator.place(device))
        except DeviceError as error:
            raise DeviceError(
                f"The segment that starts with '{launch.name}' cannot be loaded onto {self.accelerator.names[device]}: {error}"
            ) from error

    def _ends(self, slot: RequestSlot, n: int) -> tuple[list[View], list[View]]:
        launch = self.layout.launches[n]
        return [slot.views[b] for b in launch.reads], [slot.views[b] for b in launch.writes]

    def _prepare(self, slot: RequestSlot, n: int) -> Prepared | None:
        program = self._loaded[n]
        if program is None:
            return None
        return self.accelerator.prepare(self.streams[self.layout.launches[n].stream], program, *self._ends(slot, n))

    def _make_batch(self, slot: RequestSlot, stream: int) -> None:
        slot.prepared = [None] * len(self.layout.launches)
        steps = [Step(self._loaded[n], *self._ends(slot, n), slot.events[n]) for n in self._inside]
        for before, n in zip(self._inside, self._inside[1:], strict=False):
            slot.begins[n] = slot.events[before]  # nothing is between them
        slot.batch = self.accelerator.batch(self.streams[stream], slot.begins[self._inside[0]], steps)

    def release(self) -> None:
        """Free the memory, release the programs and return the streams. Nothing may be running."""
        self.slots.clear()
        self._loaded.clear()
        while self._memory:
            self.accelerator.free(self._memory.pop())
        while self._opened:
            self.accelerator.close_stream(self._opened.pop())

    def start_all(self, request: int) -> None:
        """Launch all segments and copies of a straight request, and ask for one report of its end.

        Raises:
            DeviceError: names the segment, or what was to be copied, and the device.
        """
        slot, layout = self.slots[request], self.layout
        batch, last = slot.batch, self._inside[-1]
        assert batch is not None  # noqa: S101 (all slots of a straight launcher have one)
        slot.decided = True
        for n in self._before:
            self.start(request, n, ())
        stream = self.streams[layout.launches[next(n for n in layout.runs if n is not None)].stream]
        if self._before:  # all of them are on one stream
            self.accelerator.wait(stream, slot.events[self._before[-1]])
        try:
            batch.start()
        except Exception as error:
            if isinstance(error, PlaceitError) and not isinstance(error, DeviceError):
                raise
            raise self._failed(request, self._inside[batch.at], error) from error
        for n in self._behind:
            self.start(request, n, (last,) if n == self._behind[0] else ())
        if self._behind:
            last = self._behind[-1]
            stream = self.streams[layout.launches[last].stream]
        self.expect(request, last, stream)

    def start(self, request: int, n: int, after: Sequence[int]) -> None:
        """Launch a segment or copy after others.

        Args:
            request: number of the request.
            n: number of the launch.
            after: launches to wait for.

        Raises:
            DeviceError: names the segment, or what was to be copied, and the device.
        """
        slot, launch, accelerator = self.slots[request], self.layout.launches[n], self.accelerator
        stream, prepared = self.streams[launch.stream], slot.prepared[n]
        try:
            for wait in after:
                accelerator.wait(stream, slot.events[wait])
            accelerator.record(slot.begins[n], stream)
            if prepared is None:
                source, destination = (self._end(slot, b, stream) for b in (launch.reads[0], launch.writes[0]))
                accelerator.copy(stream, source, destination, self._beside[launch.stream])
            else:
                prepared(self._inbox, slot.tokens[n])
            accelerator.record(slot.events[n], stream)
        except Exception as error:
            if isinstance(error, PlaceitError) and not isinstance(error, DeviceError):
                raise
            raise self._failed(request, n, error) from error

    def _end(self, slot: RequestSlot, buffer: int, stream: Stream) -> View:
        """Return an end of a copy on a stream, and have the stream wait for the caller's work on it."""
        given = slot.given.get(buffer)
        if given is None:
            return slot.views[buffer]
        if given.ready is not None:
            self.accelerator.wait(stream, given.ready)
        return given.view

    def _failed(self, request: int, n: int, error: Exception) -> DeviceError:
        launch = self.layout.launches[n]
        self.at_fault = request if self.at_fault is None else self.at_fault
        what = "Copying what is made by" if launch.program is None else "The segment that starts with"
        why = str(error) if isinstance(error, PlaceitError) else f"{type(error).__name__}: {error}"
        failure = DeviceError(f"{what} {self._named(n)[0]} failed on {self._named(n)[1]}: {why}")
        failure.device = self._named(n)[1]
        return failure

    def _named(self, n: int) -> tuple[str, str]:
        launch = self.layout.launches[n]
        return f"'{launch.name}'", self.accelerator.names[self.layout.streams[launch.stream]]

    def expect(self, request: int, n: int, stream: Stream) -> None:
        """Ask for a report of a launch whose event was recorded in a stream."""
        slot = self.slots[request]
        self.accelerator.notify(stream, slot.events[n], self._inbox, slot.tokens[n])
        slot.flying[n] = None
        self.flying += 1

    def next_report(self) -> Token | None:
        """Wait for a report: a request and its launch that has ended; None if it was cancelled.

        Raises:
            DeviceError: a launch, which the error names, or a device failed.
        """
        try:
            token = self.accelerator.take(self._inbox)
        except (DeviceError, ExecutionError):
            self._check()
            raise
        if token is not None:
            request, n = token
            del self.slots[request].flying[n]
            self.flying -= 1
        return token

    def _check(self) -> None:
        if self._inbox.failure is not None:
            token, error = self._inbox.failure
            raise self._failed(*token, error) from error

    def awaited(self) -> list[str]:
        """Describe the launches that have not been reported as ended; from any thread."""
        return [self._described(n) for slot in list(self.slots) for n in list(slot.flying)]

    def _described(self, n: int) -> str:
        launch, (name, device) = self.layout.launches[n], self._named(n)
        if self.straight:
            first = next(one.name for one in self.layout.launches if one.program is not None)
            return f"the segment that starts with '{first}' on {device}, or what follows it there"
        if launch.program is not None:
            return f"the segment that starts with {name} on {device}"
        src, dst = ("the host" if end == HOST else self.accelerator.names[end] for end in self.layout.routes[launch.stream])
        return f"{name} from {src} to {dst}"

    def cancel(self) -> None:
        """Skip work that has not started, if possible, and end the wait for reports; from any thread, at any time."""
        self._inbox.cancel()

    def begin(self) -> None:
        """Prepare for a run, also if the run before was cancelled just after it had ended."""
        self.at_fault = None
        if self._inbox.over:
            self.renew()

    def renew(self) -> None:
        """Forget what was launched and cancelled. Nothing may be running."""
        self._inbox, self.flying = Inbox(), 0
        for slot in self.slots:
            slot.flying.clear()
            slot.decided = True

    def finish(self) -> None:
        """Wait for all streams, whatever fails. Raises DeviceError if a launch or a device failed."""
        failure: Exception | None = None
        for stream in self._opened:
            try:
                self.accelerator.finish(stream)
            except (DeviceError, ExecutionError) as error:
                failure = failure or error
        self._check()
        if failure is not None:
            raise failure
