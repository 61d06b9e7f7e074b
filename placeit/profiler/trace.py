"""Traces of runs as files for Perfetto (https://ui.perfetto.dev) or ``chrome://tracing``."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from placeit.core.files import write_text
from placeit.runtime.spans import Event, Span, SpanKind

__all__ = ["utilization", "write_chrome_trace"]

_Kind = SpanKind | Literal["event"]
_PROCESSES: dict[_Kind, tuple[int, str]] = {"compute": (1, "devices"), "copy": (2, "links"), "event": (3, "events")}


def write_chrome_trace(path: str | Path, spans: Sequence[Span | Event], *, devices: Sequence[str] = ()) -> None:
    """Write a trace in the Chrome trace event format: one track per device and link, times relative to the first span.

    What happened to a server is on a track of its own, as a mark if it took no time.

    Spans that overlap on one track (several requests in flight) are drawn in further lanes of it, since the format only
    draws what is nested.

    Args:
        path: the file, ``*.json``.
        spans: in any order.
        devices: tracks that come first, in this order, even if nothing ran on them.

    Raises:
        FileError: the file cannot be written.
    """
    origin = min((span.start for span in spans), default=0.0)
    lanes = _lanes(spans, devices)
    events: list[dict[str, Any]] = []
    for pid, process in _PROCESSES.values():
        if any(_PROCESSES[kind][0] == pid for kind, *_ in lanes):
            events.append(_metadata("process_name", pid, 0, name=process))
            events.append(_metadata("process_sort_index", pid, 0, sort_index=pid))
    slices = []
    for tid, ((kind, track, lane), members) in enumerate(lanes.items(), start=1):
        pid = _PROCESSES[kind][0]
        events.append(_metadata("thread_name", pid, tid, name=f"{track} ({lane + 1})" if lane else track))
        events.append(_metadata("thread_sort_index", pid, tid, sort_index=tid))
        for span in members:
            begin, end = (round((moment - origin) * 1e6, 3) for moment in (span.start, span.finish))
            took: dict[str, Any] = {"ph": "X", "dur": round(end - begin, 3)}
            if kind == "event" and begin == end:
                took = {"ph": "i", "s": "t"}
            slices.append({**took, "name": span.name, "cat": kind, "pid": pid, "tid": tid, "ts": begin, "args": _args(span)})
    slices.sort(key=lambda event: (event["ts"], event["tid"]))
    lines = ",\n".join(json.dumps(event, allow_nan=False) for event in (*events, *slices))
    write_text(Path(path), f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n')


def utilization(
    spans: Iterable[Span], window: tuple[float, float] | None = None, *, devices: Sequence[str] = ()
) -> dict[str, float]:
    """Share of a window in which each track was busy, in [0, 1]; overlapping spans count once.

    Args:
        spans: in any order.
        window: start and finish in seconds; None for first start to last finish. In a window without length nothing is busy.
        devices: tracks that are listed first, even if nothing ran on them.
    """
    by_track: dict[str, list[Span]] = {device: [] for device in devices}
    for span in spans:
        by_track.setdefault(span.track, []).append(span)
    everything = [span for members in by_track.values() for span in members]
    if window is None:
        window = (min((s.start for s in everything), default=0.0), max((s.finish for s in everything), default=0.0))
    begin, end = window
    shares = {}
    for track, members in by_track.items():
        busy, reached = 0.0, begin
        for span in sorted(members, key=lambda span: span.start):
            busy += max(0.0, min(span.finish, end) - max(span.start, reached))
            reached = max(reached, span.finish)
        shares[track] = min(1.0, busy / (end - begin)) if end > begin else 0.0
    return shares


def _metadata(event: str, pid: int, tid: int, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": event, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _args(span: Span | Event) -> dict[str, Any]:
    """Return what a trace viewer shows when a span is selected."""
    if isinstance(span, Event):
        return {"why": span.why}
    if span.kind == "copy":
        return {"request": span.request}
    return {"request": span.request, "segment": span.segment, "ops": list(span.ops)}


def _lanes(spans: Sequence[Span | Event], devices: Sequence[str]) -> dict[tuple[_Kind, str, int], list[Span | Event]]:
    """Spans by kind, track and lane, so that no two overlap in a lane; devices come before links, and those before events."""
    lanes: dict[tuple[_Kind, str, int], list[Span | Event]] = {("compute", device, 0): [] for device in devices}
    free: dict[tuple[_Kind, str], list[tuple[float, int]]] = {("compute", device): [(-math.inf, 0)] for device in devices}
    for span in sorted(spans, key=lambda span: (span.start, span.finish)):
        ready = free.setdefault((span.kind, span.track), [])
        lane = heapq.heappop(ready)[1] if ready and ready[0][0] <= span.start else len(ready)
        heapq.heappush(ready, (span.finish, lane))
        lanes.setdefault((span.kind, span.track, lane), []).append(span)
    return dict(sorted(lanes.items(), key=lambda item: _PROCESSES[item[0][0]][0]))
