"""Show live statistics of a server: as a view on a terminal, as lines elsewhere."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from placeit.core.threads import Gate, Worker
from placeit.core.units import about_bytes
from placeit.report import text
from placeit.runtime.device_stats import DeviceStats
from placeit.serving.stats import ServerStats

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

__all__ = ["LiveView"]

_REFRESH_S, _LINE_S = 0.5, 5.0  # seconds between updates on a terminal, and between lines elsewhere
_WINDOW_S = 5.0  # seconds over which rates and utilisation are averaged
_BAR, _MIN_WIDTH = 20, 70  # columns of a bar, and minimum columns of a terminal to show bars
_EVENTS = ("lost", "news", "first answer", "left out", "nothing is left")  # server events that are shown
_MAX_EVENTS = 3  # maximum number of events that are shown


class LiveView:
    """A view of a server's statistics, from :meth:`start` until it is closed. A context manager.

    Args:
        read: returns the statistics.
        console: console to write to; None for standard error.
    """

    def __init__(self, read: Callable[[], ServerStats], console: Console | None = None) -> None:
        from rich.console import Console

        self._read, self._begin = read, read()
        self._samples = deque([self._begin])
        self._console = Console(stderr=True, force_terminal=sys.stderr.isatty()) if console is None else console
        self._live: Live | None = None
        self._lock, self._stopped = threading.Lock(), Gate()
        self._worker: Worker | None = None

    def start(self) -> None:
        """Start the view: refreshed twice a second on a terminal, or a line every five seconds elsewhere."""
        from rich.live import Live

        self._worker = Worker("placeit live")
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            own = sys.stdout is not None and sys.stdout.isatty()  # otherwise output to it would be redirected
            self._live = Live(self.render(), console=self._console, auto_refresh=False, redirect_stdout=own)
            self._live.start(refresh=True)
        self._worker.submit(self._watch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Show the final statistics, and end the view; a second call has no effect."""
        with self._lock:
            if self._stopped.is_open:
                return
            self._stopped.open()
        try:
            if self._worker is not None:
                self._worker.close()
                self.refresh()
        finally:
            if self._live is not None:
                self._live.stop()

    def _watch(self) -> None:
        while not self._stopped.wait(_LINE_S if self._live is None else _REFRESH_S):
            self.refresh()

    def refresh(self) -> None:
        """Read the statistics, and show them."""
        with self._lock, contextlib.suppress(OSError):  # nothing reads the output any more
            self._sample()
            if self._live is not None:
                self._live.update(self.render(), refresh=True)
            else:
                print(self.line(), file=self._console.file, flush=True)

    def _sample(self) -> None:
        self._samples.append(self._read())
        while len(self._samples) > 2 and self._samples[-1].at - self._samples[1].at >= _WINDOW_S:
            self._samples.popleft()

    def render(self) -> Text:
        """Return the view of the last statistics, as wide as the console."""
        from rich.console import Console
        from rich.text import Text

        now, width = self._samples[-1], self._console.width
        nowhere = io.TextIOWrapper(io.BytesIO(), self._console.encoding)  # the encoding determines how lines are drawn
        page = Console(
            file=nowhere,
            width=width,
            force_terminal=True,
            color_system=None,
            markup=False,
            highlight=False,
            emoji=False,
            soft_wrap=True,
        )
        with page.capture() as shown:
            text.facts(page, self._figures(now))
            page.print()
            bars = width >= _MIN_WIDTH
            text.table(page, ("device", "state", "busy", *([""] if bars else [])), self._rows(now, bars=bars), left=2)
            events = [event for event in now.events if event.name in _EVENTS][-_MAX_EVENTS:]
            if events:
                page.print()
            for event in events:
                text.paragraph(page, event.why, label=f"{now.at - event.finish:.0f} s ago  ")
        view = Text(shown.get().rstrip("\n"), overflow="fold")
        view.highlight_words(["lost"], "bold red")
        return view

    def line(self) -> str:
        """Return the last statistics as one line."""
        now = self._samples[-1]
        busy = [f"{device.name} {text.percent(self._busy([device]))}" for device in now.devices if device.up]
        lost = [device.name for device in now.devices if not device.up]
        parts = [f"{what} {figure}" for what, figure in self._figures(now).items()]
        parts += [f"busy {', '.join(busy)}"] if busy else []
        parts += [f"lost {', '.join(lost)}"] if lost else []
        return text.printable(f"{now.at - self._begin.at:.0f} s: {'; '.join(parts)}".replace("\n", " "))

    def _figures(self, now: ServerStats) -> dict[str, str]:
        names = "p50", "p95", "p99"
        times = (f"{name} {text.seconds(value)}" for name, value in zip(names, now.percentiles(0.5, 0.95, 0.99), strict=True))
        outcomes = (f"{count} {what}" for what, count in now.outcomes.items() if count or what in ("succeeded", "failed"))
        return {
            "requests": f"{now.arrived} arrived, {', '.join(outcomes)}",
            "throughput": f"{text.rate(self._rate(lambda stats: stats.outcomes['succeeded']))} per second",
            "latency": ", ".join(times),
            "queue": f"{now.waiting} of {now.queue} waiting, {now.in_flight} in flight",
            **({"batches": f"{_rows_each(now.batches):.1f} rows each on average"} if now.batches else {}),
            **({"sequences": f"{now.sequences} open, {about_bytes(now.state_bytes)} of state"} if now.sequences else {}),
            **({"placed anew": str(now.replacements)} if now.replacements else {}),
        }

    def _rows(self, now: ServerStats, *, bars: bool) -> list[tuple[str, ...]]:
        """Return the rows of the table of devices; with nodes, a row for each node above the rows of its devices."""
        rows = []
        nodes = dict.fromkeys(device.node for device in now.devices)
        for node in nodes:
            devices = [device for device in now.devices if device.node == node]
            if any(nodes):
                up = sum(device.up for device in devices)
                rows.append((node or "this machine", f"{up} of {len(devices)} devices up", *self._use(devices, bars)))
            indent = "  " if any(nodes) else ""
            rows += [(indent + device.name, _state(device), *self._use([device], bars)) for device in devices]
        return rows

    def _use(self, devices: Sequence[DeviceStats], bars: bool) -> list[str]:
        """Return the table cells with the mean utilisation of devices."""
        busy = self._busy(devices)
        full = 0 if busy is None else round(busy * _BAR)
        return [text.percent(busy), *(["#" * full + "." * (_BAR - full)] if bars else [])]

    def _busy(self, devices: Sequence[DeviceStats]) -> float | None:
        """Return the mean utilisation of devices over the window.

        Segments count when their request ends, so some may have run before the window.
        """
        names = {device.name for device in devices}
        spent = self._rate(lambda stats: sum(device.busy_s for device in stats.devices if device.name in names))
        return None if spent is None else min(1.0, spent / len(devices))

    def _rate(self, count: Callable[[ServerStats], float]) -> float | None:
        """Return the increase of a count per second over the window; None if no time has passed."""
        first, last = self._samples[0], self._samples[-1]
        return (count(last) - count(first)) / (last.at - first.at) if last.at > first.at else None


def _rows_each(batches: Mapping[int, int]) -> float:
    """Return the mean number of rows of a batch."""
    return sum(rows * runs for rows, runs in batches.items()) / sum(batches.values())


def _state(device: DeviceStats) -> str:
    if not device.up:
        return "lost" if device.losses == 1 else f"lost, {device.losses} times so far"
    return "up" if not device.returns else "back" if device.returns == 1 else f"back, {device.returns} times so far"
