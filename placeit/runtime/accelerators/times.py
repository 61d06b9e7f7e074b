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

_MAX_SAMPLES = 1000  # times of each segment that are kept
_ANCHOR_S = 8.0  # seconds between origins: float32 milliseconds of drivers are exact to a microsecond up to about 8 s


class Times:
    """Times of launches, in seconds of ``time.perf_counter``.

    A device measures only the time between two of its events. So an event, the origin, is recorded on each device when a run
    begins, while nothing runs, and the host's clock is read. The alignment error is at most the time that this takes: some
    microseconds, or some tens of microseconds if a thread of a core set has to wake up.

    The time since an origin loses precision as it grows. So there is a new origin every 8 s. It is aligned with the host's
    clock in the same way if nothing runs, and otherwise by its time since the previous origin.

    Args:
        launcher: the launcher whose launches are timed.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._origins: dict[int, tuple[Event, float]] = {}  # by device: the event, and its time by the host's clock
        self._next_origins: dict[int, Event] = {}  # by device: recorded events, used as origins when they have happened
        self._spare_events: dict[int, Event] = {}
        self._requests_left = 0  # number of requests that have to end until the next origins have certainly happened
        self._due = 0.0
        self._requests: list[tuple[int, list[tuple[float, float]]]] = []
        self._samples = [deque[float](maxlen=_MAX_SAMPLES) for _ in launcher.layout.runs]

    def begin(self) -> None:
        """Record the time on every device. Nothing may be running."""
        self._requests.clear()
        self._align()

    def refresh(self) -> None:
        """Record new origins if they are due and nothing is running. This is called before a request begins."""
        if not self._launcher.pending and perf_counter() >= self._due:
            self._align()

    def _align(self) -> None:
        events = {device: event for device, (event, _) in self._origins.items()}
        for device, event in self._record(events):
            self._origins[device] = event, perf_counter()
        self._next_origins.clear()
        self._due = perf_counter() + _ANCHOR_S

    def _record(self, events: dict[int, Event]) -> Iterator[tuple[int, Event]]:
        """Record an event on the first stream of each device: the one in ``events``, or a new one."""
        accelerator, streams = self._launcher.accelerator, self._launcher.streams
        for device, stream in dict(zip(reversed(self._launcher.layout.streams), reversed(streams), strict=True)).items():
            event = events[device] if device in events else accelerator.event(device)
            accelerator.record(event, stream)
            yield device, event

    def _advance(self) -> None:
        """Record new origins when they are due, and use them when they have certainly happened.

        Every request uses every stream. After one more request than there are slots has ended, one of them must have been
        launched after the events were recorded.
        """
        accelerator = self._launcher.accelerator
        if self._next_origins:
            self._requests_left -= 1
            if self._requests_left > 0:
                return
            for device, event in self._next_origins.items():
                origin, at = self._origins[device]
                self._origins[device] = event, at + accelerator.elapsed(origin, event)
                self._spare_events[device] = origin
            self._next_origins.clear()
            self._due = perf_counter() + _ANCHOR_S
        elif perf_counter() >= self._due:
            self._next_origins.update(self._record(self._spare_events))
            self._requests_left = len(self._launcher.slots) + 1

    def ended(self, request: int, slot: RequestSlot, *, only: bool = False) -> None:
        """Record the times of a request that has ended.

        Args:
            request: number of the request.
            slot: its launches.
            only: whether to discard the times of the previous request of the same number.
        """
        accelerator, layout, times = self._launcher.accelerator, self._launcher.layout, list[tuple[float, float]]()
        for launch, begin, end in zip(layout.launches, slot.begins, slot.events, strict=True):
            origin, at = self._origins[layout.streams[launch.stream]]
            start = at + accelerator.elapsed(origin, begin)
            times.append((start, start + accelerator.elapsed(begin, end)))
        if only:
            self._requests = [kept for kept in self._requests if kept[0] != request]
        self._requests.append((request, times))
        for n, samples in zip(layout.runs, self._samples, strict=True):
            if n is not None:
                samples.append(times[n][1] - times[n][0])
        self._advance()

    def last(self) -> tuple[list[Ran], list[Moved]]:
        """Return the times of the segments and of the transfers of the last request that ended."""
        return self._spans(self._requests[-1][1])

    def _spans(self, times: Sequence[tuple[float, float]]) -> tuple[list[Ran], list[Moved]]:
        layout = self._launcher.layout
        ran = [(s, *times[n]) for s, n in enumerate(layout.runs) if n is not None]
        moved = [(t, *layout.routes[layout.launches[n].stream], *times[n]) for n, t in layout.tensor_of.items()]
        return ran, moved

    def all(self) -> list[tuple[int, Sequence[Ran], Sequence[Moved]]]:
        """Return the times of segments and transfers of each request of the last run, by its number among those in flight."""
        return [(request, *self._spans(times)) for request, times in self._requests]

    def segment_seconds(self, *, last: bool) -> NDArray[np.float64]:
        """Return each segment's median seconds over many runs, or its last ones, ``float64[S]``; zero if it runs nothing."""
        seconds = np.zeros(len(self._samples))
        for s, times in enumerate(self._samples):
            if times:
                seconds[s] = times[-1] if last else np.median(times)
        return seconds
