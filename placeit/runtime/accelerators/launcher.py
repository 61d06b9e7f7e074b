"""Requests in flight on streams of an accelerator, and the calls that launch their work."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from placeit.core.errors import DeviceError, ExecutionError, PlaceitError
from placeit.runtime.accelerators.layout import Launch, RequestLayout
from placeit.runtime.devices.accelerator import HOST, Accelerator, Event, Inbox, LoadedProgram, Memory, Stream, Token, View

__all__ = ["Launcher", "RequestSlot"]


class RequestSlot:
    """One request in flight: its memory, its events, and its progress.

    Attributes:
        views: of each buffer.
        events: of each launch, recorded behind it.
        begins: of each launch, recorded before it.
        flying: launches whose reports are still to come.
        decided: whether nothing is left to launch.
    """

    def __init__(self, layout: RequestLayout, accelerator: Accelerator, memory: list[Memory]) -> None:
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
        self.flying: dict[int, None] = {}
        self.decided = True


class Launcher:
    """Programs, memory, streams and events of a number of requests.

    Args:
        layout: what there is to launch.
        accelerator: where.

    Attributes:
        slots: the requests, once :meth:`make` has made them.
        streams: of the layout.
        flying: how many reports are still to come, of all requests.
        at_fault: the request that failed first in this run, if that is known.
    """

    def __init__(self, layout: RequestLayout, accelerator: Accelerator) -> None:
        self.layout, self.accelerator = layout, accelerator
        self.slots: list[RequestSlot] = []
        self.streams: list[Stream] = []
        self.flying = 0
        self.at_fault: int | None = None
        self._inbox = Inbox()
        self._memory: list[Memory] = []
        self._loaded: list[LoadedProgram | None] = []

    def make(self, in_flight: int) -> None:
        """Load every program and allocate all memory, with inputs of zeros.

        Raises:
            DeviceError: :meth:`release` undoes what was done.
        """
        layout, accelerator = self.layout, self.accelerator
        for launch in layout.launches:
            self._loaded.append(None if launch.program is None else self._load(launch))
        for _ in range(in_flight):
            slot = RequestSlot(layout, accelerator, self._memory)
            self.slots.append(slot)
            for value in layout.work.inputs.values():
                spec = layout.work.values[value]
                accelerator.write(slot.views[layout.buffer_of[value, HOST]], np.zeros(spec.shape, spec.dtype))
        copying = dict.fromkeys(layout.streams, 0)
        for device, route in zip(layout.streams, layout.routes, strict=True):
            copying[device] += route != (device, device)
            self.streams.append(accelerator.stream(device, 0 if route == (device, device) else copying[device]))

    def _load(self, launch: Launch) -> LoadedProgram:
        assert launch.program is not None  # noqa: S101 (the caller has looked)
        device = self.layout.streams[launch.stream]
        try:
            return launch.program.load(self.accelerator.place(device))
        except DeviceError as error:
            raise DeviceError(
                f"The segment that starts with '{launch.name}' cannot be loaded onto {self.accelerator.names[device]}: {error}"
            ) from error

    def release(self) -> None:
        """Free the memory and release the programs. Nothing may be running."""
        self.slots.clear()
        self._loaded.clear()
        while self._memory:
            self.accelerator.free(self._memory.pop())

    def start(self, request: int, n: int, after: Iterable[int]) -> None:
        """Launch a segment or copy after others.

        Args:
            request: whose it is.
            n: its number.
            after: launches to wait for.

        Raises:
            DeviceError: names the segment, or what was to be copied, and the device.
        """
        slot, launch, accelerator = self.slots[request], self.layout.launches[n], self.accelerator
        stream, program, views = self.streams[launch.stream], self._loaded[n], slot.views
        inputs, outputs = [views[b] for b in launch.reads], [views[b] for b in launch.writes]
        try:
            for wait in after:
                accelerator.wait(stream, slot.events[wait])
            accelerator.record(slot.begins[n], stream)
            if program is None:
                accelerator.copy(stream, inputs[0], outputs[0])
            else:
                accelerator.launch(stream, program, inputs, outputs, self._inbox, (request, n))
            accelerator.record(slot.events[n], stream)
        except Exception as error:
            if isinstance(error, PlaceitError) and not isinstance(error, DeviceError):
                raise
            raise self._failed(request, n, error) from error

    def _failed(self, request: int, n: int, error: Exception) -> DeviceError:
        launch = self.layout.launches[n]
        self.at_fault = request if self.at_fault is None else self.at_fault
        what = "Copying what is made by" if launch.program is None else "The segment that starts with"
        why = str(error) if isinstance(error, PlaceitError) else f"{type(error).__name__}: {error}"
        return DeviceError(f"{what} {self._named(n)[0]} failed on {self._named(n)[1]}: {why}")

    def _named(self, n: int) -> tuple[str, str]:
        launch = self.layout.launches[n]
        return f"'{launch.name}'", self.accelerator.names[self.layout.streams[launch.stream]]

    def expect(self, request: int, n: int, stream: Stream) -> None:
        """Ask for a report of a launch whose event was recorded in a stream."""
        slot = self.slots[request]
        self.accelerator.notify(stream, slot.events[n], self._inbox, (request, n))
        slot.flying[n] = None
        self.flying += 1

    def next_report(self) -> Token | None:
        """Wait for a report: a request and its launch that has ended; None if it was cancelled.

        Raises:
            DeviceError: a launch failed, and which, or a device did.
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
        """Say which launches have not been reported as ended; from any thread."""
        return [self._described(n) for slot in list(self.slots) for n in list(slot.flying)]

    def _described(self, n: int) -> str:
        launch, (name, device) = self.layout.launches[n], self._named(n)
        if launch.program is not None:
            return f"the segment that starts with {name} on {device}"
        src, dst = ("the host" if end == HOST else self.accelerator.names[end] for end in self.layout.routes[launch.stream])
        return f"{name} from {src} to {dst}"

    def cancel(self) -> None:
        """Skip work that has not started, if possible, and have nobody wait for reports; from any thread, at any time."""
        self._inbox.cancel()

    def begin(self) -> None:
        """Make ready for a run, also if somebody cancelled the one before just after it had ended."""
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
        for stream in self.streams:
            try:
                self.accelerator.finish(stream)
            except (DeviceError, ExecutionError) as error:
                failure = failure or error
        self._check()
        if failure is not None:
            raise failure
