"""Times of launches on an accelerator, from the events around each launch."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from placeit.runtime.accelerators.launcher import Launcher, RequestSlot
from placeit.runtime.devices.accelerator import HOST, Event
from placeit.runtime.feed import Ran
from placeit.runtime.plan_executor import empty_samples, seconds_of
from placeit.runtime.spans import Span

__all__ = ["Times"]


class Times:
    """Times of launches, in seconds of ``time.perf_counter``.

    A device knows how much time passed between two of its own events. So one event is recorded on each device when a run
    begins, while nothing runs, and the host's clock is read: devices are aligned to within what that takes, some microseconds,
    and some tens where a thread of a core set has to wake up.

    Args:
        launcher: whose launches are recorded.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._origins: dict[int, tuple[Event, float]] = {}
        self._last: list[tuple[int, list[tuple[float, float]]]] = []
        self._samples = empty_samples(len(launcher.layout.runs))

    def begin(self) -> None:
        """Record the time on every device. Nothing may be running."""
        accelerator, layout = self._launcher.accelerator, self._launcher.layout
        self._last.clear()
        for device, stream in dict(zip(reversed(layout.streams), reversed(self._launcher.streams), strict=True)).items():
            event = self._origins[device][0] if device in self._origins else accelerator.event(device)
            accelerator.record(event, stream)
            self._origins[device] = event, perf_counter()

    def ended(self, request: int, slot: RequestSlot, *, only: bool = False) -> None:
        """Record the times of a request that has ended; if ``only`` it counts, forget the one before it there."""
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

    def ran(self) -> Sequence[Ran]:
        """Return when each segment of the last finished request ran."""
        _, times = self._last[-1]
        return [(s, *times[n]) for s, n in enumerate(self._launcher.layout.runs) if n is not None]

    def spans(self) -> list[Span]:
        """Spans of the last run, in order of start."""
        layout, names = self._launcher.layout, self._launcher.accelerator.names
        segment_of = {n: s for s, n in enumerate(layout.runs) if n is not None}
        spans = []
        for request, times in self._last:
            for n, (launch, (start, finish)) in enumerate(zip(layout.launches, times, strict=True)):
                src, dst = ("host" if end == HOST else names[end] for end in layout.routes[launch.stream])
                if (s := segment_of.get(n)) is None:
                    spans.append(Span("copy", (src, dst), request, None, start, finish, launch.name))
                else:
                    ops = tuple(layout.work.tasks[s].ops)
                    spans.append(Span("compute", (src,), request, s, start, finish, launch.name, ops))
        return sorted(spans, key=lambda span: span.start)

    def segment_seconds(self, *, last: bool) -> NDArray[np.float64]:
        """``float64[S]``, median seconds of each segment over many runs, or of the last one; zero if it runs nothing."""
        return seconds_of(self._samples, last=last)
