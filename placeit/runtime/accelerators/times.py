"""Times of launches on an accelerator, from the events around each launch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from placeit.runtime.accelerators.launcher import Launcher, RequestSlot
from placeit.runtime.devices.accelerator import Event
from placeit.runtime.spans import Moved, Ran

__all__ = ["Times"]

_KEPT_SAMPLES = 1000  # most times kept of a segment
_ANCHOR_S = 8.0  # seconds per origin: drivers count float32 milliseconds, whose steps are below a microsecond for so long


class Times:
    """Times of launches, in seconds of ``time.perf_counter``.

    A device measures only the time between two events on that device. So one event, the origin, is recorded on each device when
    a run begins, while nothing runs, and the host's clock is read. The alignment error is at most the time that this takes:
    some microseconds, or some tens of microseconds where a thread of a core set has to wake up.

    The time since an origin loses precision as it grows. Every 8 s there is a new one: aligned with the host's clock in the
    same way where nothing runs, or else by the time since the origin before it.

    Args:
        launcher: whose launches are recorded.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._origins: dict[int, tuple[Event, float]] = {}  # of each device, with its seconds
        self._next: dict[int, Event] = {}  # recorded to become the next origins
        self._spare: dict[int, Event] = {}
        self._left = 0  # requests still to end before those have certainly happened
        self._due = 0.0
        self._last: list[tuple[int, list[tuple[float, float]]]] = []
        self._samples = [deque[float](maxlen=_KEPT_SAMPLES) for _ in launcher.layout.runs]

    def begin(self) -> None:
        """Record the time on every device. Nothing may be running."""
        self._last.clear()
        self._align()

    def refresh(self) -> None:
        """Record new origins if they are due and nothing is running; called before a request begins."""
        if not self._launcher.flying and perf_counter() >= self._due:
            self._align()

    def _align(self) -> None:
        events = {device: event for device, (event, _) in self._origins.items()}
        for device, event in self._record(events):
            self._origins[device] = event, perf_counter()
        self._next.clear()
        self._due = perf_counter() + _ANCHOR_S

    def _record(self, events: dict[int, Event]) -> Iterator[tuple[int, Event]]:
        """Record an event on the first stream of each device: the given event, or a new one."""
        accelerator, streams = self._launcher.accelerator, self._launcher.streams
        for device, stream in dict(zip(reversed(self._launcher.layout.streams), reversed(streams), strict=True)).items():
            event = events[device] if device in events else accelerator.event(device)
            accelerator.record(event, stream)
            yield device, event

    def _advance(self) -> None:
        """Record new origins when they are due, and use them once these events have certainly happened.

        Every request uses every stream. After one more request than there are slots has ended, one of them must have been
        launched after the events were recorded.
        """
        accelerator = self._launcher.accelerator
        if self._next:
            self._left -= 1
            if self._left > 0:
                return
            for device, event in self._next.items():
                origin, at = self._origins[device]
                self._origins[device] = event, at + accelerator.elapsed(origin, event)
                self._spare[device] = origin
            self._next.clear()
            self._due = perf_counter() + _ANCHOR_S
        elif perf_counter() >= self._due:
            self._next.update(self._record(self._spare))
            self._left = len(self._launcher.slots) + 1

    def ended(self, request: int, slot: RequestSlot, *, only: bool = False) -> None:
        """Record the times of a request that has ended; with ``only``, forget the earlier request of the same number."""
        accelerator, layout, times = self._launcher.accelerator, self._launcher.layout, list[tuple[float, float]]()
        for launch, begin, end in zip(layout.launches, slot.begins, slot.events, strict=True):
            origin, at = self._origins[layout.streams[launch.stream]]
            start = at + accelerator.elapsed(origin, begin)
            times.append((start, start + accelerator.elapsed(begin, end)))
        if only:
            self._last = [kept for kept in self._last if kept[0] != request]
        self._last.append((request, times))
        for n, samples in zip(layout.runs, self._samples, strict=True):
            if n is not None:
                samples.append(times[n][1] - times[n][0])
        self._advance()

    def last(self) -> tuple[list[Ran], list[Moved]]:
        """Return when each segment of the last finished request ran, and what moved when."""
        return self._of(self._last[-1][1])

    def _of(self, times: Sequence[tuple[float, float]]) -> tuple[list[Ran], list[Moved]]:
        layout = self._launcher.layout
        ran = [(s, *times[n]) for s, n in enumerate(layout.runs) if n is not None]
        moved = [(t, *layout.routes[layout.launches[n].stream], *times[n]) for n, t in layout.tensor_of.items()]
        return ran, moved

    def all(self) -> list[tuple[int, list[Ran], list[Moved]]]:
        """Return what each request of the last run ran and moved, by its number among those in flight."""
        return [(request, *self._of(times)) for request, times in self._last]

    def segment_seconds(self, *, last: bool) -> NDArray[np.float64]:
        """Return each segment's median seconds over many runs, or its last ones, ``float64[S]``; zero if it runs nothing."""
        seconds = np.zeros(len(self._samples))
        for s, times in enumerate(self._samples):
            if times:
                seconds[s] = times[-1] if last else np.median(times)
        return seconds
