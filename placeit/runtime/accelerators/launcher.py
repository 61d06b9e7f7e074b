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
        views: the tensor of each buffer.
        events: for each launch, the event recorded after it.
        begins: for each launch, the event recorded before it.
        prepared: for each launch, its prepared program; None for a copy, or if it is in the batch.
        tokens: for each launch, the token of its report.
        pending: launches whose reports have not arrived, as keys.
        all_launched: whether nothing is left to launch.
        batch: launches that always follow each other on one stream; None if the scheduler decides about every launch.
        caller_arrays: arrays of the caller on GPUs that replace buffers of the host, by buffer.
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
        self.pending: dict[int, None] = {}
        self.all_launched = True
        self.batch: Batch | None = None
        self.caller_arrays: dict[int, GpuArray] = {}


class Launcher:
    """Programs, memory, streams and events of a number of requests.

    Args:
        layout: launches and buffers of a request.
        accelerator: the devices to launch on.
        priority: priority of its streams.

    Attributes:
        slots: the requests, once :meth:`make` has made them.
        streams: the open streams, numbered as in the layout.
        batched: whether all segments are on one device, and are launched together when a request begins, by :meth:`start_all`.
        pending: number of reports of all requests that have not arrived.
        failed_request: the request that failed first in this run; None if no request failed, or it is not known which.
    """

    def __init__(self, layout: RequestLayout, accelerator: Accelerator, priority: int = 0) -> None:
        self.layout, self.accelerator, self._priority = layout, accelerator, priority
        self.slots: list[RequestSlot] = []
        self.streams: list[Stream] = []
        self.batched = False
        self.pending = 0
        self.failed_request: int | None = None
        self._inbox = Inbox()
        self._memory: list[Memory] = []
        self._loaded: list[LoadedProgram | None] = []
        self._destination_streams: list[Stream | None] = []  # for each stream, a stream of the device that it copies to
        self._opened: list[Stream] = []
        self._copies_in: list[int] = []  # of a batched request: launches before its batch, in it, and after it
        self._in_batch: list[int] = []
        self._copies_out: list[int] = []

    def make(self, in_flight: int, *, batched: bool) -> None:
        """Load every program, open streams, and allocate all memory, with inputs of zeros.

        Args:
            in_flight: number of requests.
            batched: whether all segments may be launched together, if they are on one device that does not compute in the
                host's memory.

        Raises:
            DeviceError: the device refuses a program, a stream or memory; :meth:`release` undoes what was done before.
        """
        layout, accelerator = self.layout, self.accelerator
        for launch in layout.launches:
            self._loaded.append(None if launch.program is None else self._load(launch))
        for device, peer in zip(layout.streams, layout.peers, strict=True):
            self.streams.append(self._open(device))
            self._destination_streams.append(None if peer is None else self._open(peer))
        runs = [n for n in layout.runs if n is not None]
        devices = {layout.streams[layout.launches[n].stream] for n in runs}
        self.batched = batched and len(devices) == 1 and accelerator.memory(min(devices)) != HOST
        if self.batched and in_flight == 1:
            self._in_batch = [*range(len(layout.launches))]
        elif self.batched:
            self._divide()  # copies of one request can overlap with segments of another request
        for number in range(in_flight):
            slot = RequestSlot(number, layout, accelerator, self._memory)
            self.slots.append(slot)
            for value in layout.work.inputs.values():
                spec = layout.work.values[value]
                accelerator.write(slot.views[layout.buffer_of[value, HOST]], np.zeros(spec.shape, spec.dtype))
            if self.batched:
                self._make_batch(slot, layout.launches[runs[0]].stream)
            else:
                slot.prepared = [self._prepare(slot, n) for n in range(len(layout.launches))]

    def _divide(self) -> None:
        """Have batched requests launch their copies before and after the batch, and not in it."""
        layout = self.layout
        copies = [n for n, launch in enumerate(layout.launches) if launch.program is None]
        self._in_batch = [n for n, launch in enumerate(layout.launches) if launch.program is not None]
        self._copies_in = [n for n in copies if layout.routes[layout.launches[n].stream][0] == HOST]
        self._copies_out = [n for n in copies if n not in self._copies_in]

    def separate_copies(self) -> None:
        """Launch copies outside of batches from now on, so that they may read and write arrays of callers.

        Nothing may be in flight, unless copies are launched outside of batches already.
        """
        if self.batched and any(self.layout.launches[n].program is None for n in self._in_batch):
            self._divide()
            for slot in self.slots:
                slot.begins = [self.accelerator.event(self.layout.streams[one.stream]) for one in self.layout.launches]
                self._make_batch(slot, self.layout.launches[self._in_batch[0]].stream)

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

    def _views(self, slot: RequestSlot, n: int) -> tuple[list[View], list[View]]:
        launch = self.layout.launches[n]
        return [slot.views[b] for b in launch.reads], [slot.views[b] for b in launch.writes]

    def _prepare(self, slot: RequestSlot, n: int) -> Prepared | None:
        program = self._loaded[n]
        if program is None:
            return None
        return self.accelerator.prepare(self.streams[self.layout.launches[n].stream], program, *self._views(slot, n))

    def _make_batch(self, slot: RequestSlot, stream: int) -> None:
        slot.prepared = [None] * len(self.layout.launches)
        steps = [Step(self._loaded[n], *self._views(slot, n), slot.events[n]) for n in self._in_batch]
        for before, n in zip(self._in_batch, self._in_batch[1:], strict=False):
            slot.begins[n] = slot.events[before]  # nothing is between them
        slot.batch = self.accelerator.batch(self.streams[stream], slot.begins[self._in_batch[0]], steps)

    def release(self) -> None:
        """Free the memory, release the programs and close the streams. Nothing may be running."""
        self.slots.clear()
        self._loaded.clear()
        while self._memory:
            self.accelerator.free(self._memory.pop())
        while self._opened:
            self.accelerator.close_stream(self._opened.pop())

    def start_all(self, request: int) -> None:
        """Launch all segments and copies of a batched request, and request one report of its end.

        Raises:
            DeviceError: a launch failed; the message names the segment or the copied value, and the device.
        """
        slot, layout = self.slots[request], self.layout
        batch, last = slot.batch, self._in_batch[-1]
        assert batch is not None  # noqa: S101 (all slots of a batched launcher have one)
        slot.all_launched = True
        for n in self._copies_in:
            self.start(request, n, ())
        stream = self.streams[layout.launches[next(n for n in layout.runs if n is not None)].stream]
        if self._copies_in:  # all of them are on one stream
            self.accelerator.wait(stream, slot.events[self._copies_in[-1]])
        try:
            batch.start()
        except Exception as error:
            if isinstance(error, PlaceitError) and not isinstance(error, DeviceError):
                raise
            raise self._failure(request, self._in_batch[batch.at], error) from error
        for n in self._copies_out:
            self.start(request, n, (last,) if n == self._copies_out[0] else ())
        if self._copies_out:
            last = self._copies_out[-1]
            stream = self.streams[layout.launches[last].stream]
        self.expect(request, last, stream)

    def start(self, request: int, n: int, after: Sequence[int]) -> None:
        """Launch a segment or copy after others.

        Args:
            request: number of the request.
            n: number of the launch.
            after: launches to wait for.

        Raises:
            DeviceError: a launch failed; the message names the segment or the copied value, and the device.
        """
        slot, launch, accelerator = self.slots[request], self.layout.launches[n], self.accelerator
        stream, prepared = self.streams[launch.stream], slot.prepared[n]
        try:
            for wait in after:
                accelerator.wait(stream, slot.events[wait])
            accelerator.record(slot.begins[n], stream)
            if prepared is None:
                source, destination = (self._copied_view(slot, b, stream) for b in (launch.reads[0], launch.writes[0]))
                accelerator.copy(stream, source, destination, self._destination_streams[launch.stream])
            else:
                prepared(self._inbox, slot.tokens[n])
            accelerator.record(slot.events[n], stream)
        except Exception as error:
            if isinstance(error, PlaceitError) and not isinstance(error, DeviceError):
                raise
            raise self._failure(request, n, error) from error

    def _copied_view(self, slot: RequestSlot, buffer: int, stream: Stream) -> View:
        """Return the source or destination of a copy on a stream; the stream waits for the caller's work on it."""
        given = slot.caller_arrays.get(buffer)
        if given is None:
            return slot.views[buffer]
        if given.ready is not None:
            self.accelerator.wait(stream, given.ready)
        return given.view

    def _failure(self, request: int, n: int, error: Exception) -> DeviceError:
        launch = self.layout.launches[n]
        self.failed_request = request if self.failed_request is None else self.failed_request
        what = "Copying the value of" if launch.program is None else "The segment that starts with"
        why = str(error) if isinstance(error, PlaceitError) else f"{type(error).__name__}: {error}"
        name, device = self._named(n)
        failure = DeviceError(f"{what} {name} failed on {device}: {why}")
        failure.device = device
        return failure

    def _named(self, n: int) -> tuple[str, str]:
        launch = self.layout.launches[n]
        return f"'{launch.name}'", self.accelerator.names[self.layout.streams[launch.stream]]

    def expect(self, request: int, n: int, stream: Stream) -> None:
        """Request a report of a launch whose event was recorded in a stream."""
        slot = self.slots[request]
        self.accelerator.notify(stream, slot.events[n], self._inbox, slot.tokens[n])
        slot.pending[n] = None
        self.pending += 1

    def next_report(self) -> Token | None:
        """Wait for a report, and return the request and its launch that has ended; None if the run was cancelled.

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
            del self.slots[request].pending[n]
            self.pending -= 1
        return token

    def _check(self) -> None:
        """Raise DeviceError if a launch failed."""
        if self._inbox.failure is not None:
            token, error = self._inbox.failure
            raise self._failure(*token, error) from error

    def describe_pending(self) -> list[str]:
        """Describe the launches that have not been reported to have ended. Any thread may call this."""
        return [self._described(n) for slot in list(self.slots) for n in list(slot.pending)]

    def _described(self, n: int) -> str:
        launch, (name, device) = self.layout.launches[n], self._named(n)
        if self.batched:
            first = next(one.name for one in self.layout.launches if one.program is not None)
            return f"the segment that starts with '{first}' on {device}, or a later launch there"
        if launch.program is not None:
            return f"the segment that starts with {name} on {device}"
        src, dst = ("the host" if end == HOST else self.accelerator.names[end] for end in self.layout.routes[launch.stream])
        return f"{name} from {src} to {dst}"

    def cancel(self) -> None:
        """Skip work that has not started, if possible, and end the wait for reports. Any thread may call this at any time."""
        self._inbox.cancel()

    def begin(self) -> None:
        """Prepare for a run, even if the previous run was cancelled just after it had ended."""
        self.failed_request = None
        if self._inbox.over:
            self.renew()

    def renew(self) -> None:
        """Discard the state of launches that were cancelled. Nothing may be running."""
        self._inbox, self.pending = Inbox(), 0
        for slot in self.slots:
            slot.pending.clear()
            slot.all_launched = True

    def finish(self) -> None:
        """Wait for all streams, even if some fail. Raises DeviceError if a launch or a device failed."""
        failure: Exception | None = None
        for stream in self._opened:
            try:
                self.accelerator.finish(stream)
            except (DeviceError, ExecutionError) as error:
                failure = failure or error
        self._check()
        if failure is not None:
            raise failure
