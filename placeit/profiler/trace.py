"""Traces of runs as files for Perfetto (https://ui.perfetto.dev) or ``chrome://tracing``."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np

from placeit.core.files import write_text
from placeit.profiler.recorded import RecordedPlan
from placeit.profiler.recording import Recording
from placeit.profiler.timeline import dependencies
from placeit.runtime.spans import Event, Span, SpanKind

__all__ = ["Counter", "utilization", "write_chrome_trace", "write_recording_trace"]

_MAX_OPS = 20  # maximum number of ops in the details of a span
_MAX_WINDOWS = 200  # maximum number of windows of time in the curve of a device's utilisation

_Kind = SpanKind | Literal["event"]
_PROCESSES: dict[_Kind, tuple[int, str]] = {"compute": (1, "devices"), "copy": (2, "links"), "event": (3, "events")}


@dataclass(frozen=True)
class Counter:
    """A value over time: its name, the process under which it is shown, times in seconds, and the value from each time on."""

    name: str
    process: str
    time: Sequence[float]
    values: Sequence[float]


def write_chrome_trace(
    path: str | Path,
    spans: Sequence[Span | Event],
    *,
    devices: Sequence[str] = (),
    flows: Iterable[tuple[int, int]] = (),
    counters: Iterable[Counter] = (),
) -> None:
    """Write a trace in the Chrome trace event format: one track per device and link, times relative to the first span.

    Events of a server are on separate tracks, as marks if they took no time. Spans that overlap on a track (of several requests
    in flight) are divided among several lanes, since the format can only draw nested spans.

    Args:
        path: the file, ``*.json``.
        spans: in any order.
        devices: tracks to list first, in this order, even if nothing ran on them.
        flows: arrows between spans, as pairs of positions in ``spans``.
        counters: values over time, by the clock of the spans.

    Raises:
        FileError: the file cannot be written.
    """
    origin = min((span.start for span in spans), default=0.0)
    lanes = _lanes(spans, devices)
    events: list[dict[str, Any]] = []
    for pid, process in _PROCESSES.values():
        if any(_PROCESSES[kind][0] == pid for kind, *_ in lanes):
            events += _named(pid, process)
    counted = list(counters)
    pids = {process: pid for pid, process in _PROCESSES.values()}
    for counter in counted:
        if counter.process not in pids:
            pids[counter.process] = 1 + max(pids.values())
            events += _named(pids[counter.process], counter.process)
    found: list[dict[str, Any]] = []
    places: dict[int, tuple[int, int, float, float]] = {}
    for tid, ((kind, track, lane), members) in enumerate(lanes.items(), start=1):
        pid = _PROCESSES[kind][0]
        events.append(_metadata("thread_name", pid, tid, name=f"{track} ({lane + 1})" if lane else track))
        events.append(_metadata("thread_sort_index", pid, tid, sort_index=tid))
        for span in members:
            begin, end = (_microseconds(moment - origin) for moment in (span.start, span.finish))
            places[id(span)] = pid, tid, begin, end
            took: dict[str, Any] = {"ph": "X", "dur": round(end - begin, 3)}
            if kind == "event" and begin == end:
                took = {"ph": "i", "s": "t"}
            found.append({**took, "name": span.name, "cat": kind, "pid": pid, "tid": tid, "ts": begin, "args": _args(span)})
    found.sort(key=lambda event: (event["ts"], event["tid"]))
    for number, (producer, consumer) in enumerate(flows, start=1):
        (pid, tid, begin, end), (to_pid, to_tid, arrival, _) = places[id(spans[producer])], places[id(spans[consumer])]
        # start 1 ns before the end, or the viewer would attach the arrow to a span that begins then; earlier if clocks differ
        start = min(max(begin, round(end - 0.001, 3)), arrival)
        if start >= begin:
            flow: dict[str, Any] = {"name": "flow", "cat": "flow", "id": number}
            found.append(flow | {"ph": "s", "pid": pid, "tid": tid, "ts": start})
            found.append(flow | {"ph": "f", "bp": "e", "pid": to_pid, "tid": to_tid, "ts": arrival})
    for counter in counted:
        points = zip(counter.time, counter.values, strict=True)
        of = {"ph": "C", "name": counter.name, "cat": "counter", "pid": pids[counter.process], "tid": 0}
        found += [of | {"ts": _microseconds(max(0.0, t - origin)), "args": {"value": value}} for t, value in points]
    found.sort(key=lambda event: event["ts"])
    lines = ",\n".join(json.dumps(event, allow_nan=False) for event in (*events, *found))
    write_text(Path(path), f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n')


def write_recording_trace(path: str | Path, recording: Recording) -> None:
    """Write a recording as a trace: its spans, arrows from producers to consumers, samples and counters.

    Args:
        path: the file, ``*.json``.
        recording: what ran.

    Raises:
        FileError: the file cannot be written.
    """
    plan = recording.plan or RecordedPlan((), ())
    names = [recording.graph.ops[segment.ops[0]].name if segment.ops else "" for segment in plan.segments]
    ops = [tuple(recording.graph.ops[v].name for v in segment.ops) for segment in plan.segments]
    spans: list[Span | Event] = []  # in the order of the recording, which flows rely on
    for one in recording.spans:
        name = "" if one.tensor is None else plan.tensors[one.tensor].name
        of = () if one.segment is None else ops[one.segment]
        shown = name if one.segment is None else names[one.segment]
        spans.append(Span(one.kind, one.where, one.request, one.segment, one.start_s, one.finish_s, shown, of))
    waited = dependencies(plan, recording.spans)
    write_chrome_trace(
        path,
        [*spans, *(Event(one.name, one.start_s, one.finish_s, one.why) for one in recording.events)],
        devices=[device.name for device in recording.devices],
        flows=[(before, after) for after, some in enumerate(waited) for before in some],
        counters=_counters(recording),
    )


def _counters(recording: Recording) -> Iterator[Counter]:
    """Yield the utilisation of each device, the numbers of waiting requests and of requests in flight, and all samples."""
    if recording.requests:
        edges = np.linspace(0.0, recording.wall_s, 1 + min(_MAX_WINDOWS, 1 + len(recording.spans)))
        for device in recording.devices:
            mine = np.array([(s.start_s, s.finish_s) for s in recording.spans if s.where == (device.name,)]).reshape(-1, 2)
            before = [np.clip(edge - mine[:, 0], 0.0, mine[:, 1] - mine[:, 0]).sum() for edge in edges]
            shares = np.diff(before) / np.maximum(np.diff(edges), 1e-12)
            yield Counter(f"utilization of {device.name}", "devices", edges.tolist(), [*shares.round(6).tolist(), 0.0])
        requests = recording.requests
        for name, begins, ends in (
            ("requests waiting", [one.arrived_s for one in requests], [one.begun_s for one in requests]),
            ("requests in flight", [one.begun_s for one in requests], [one.ended_s for one in requests]),
        ):
            changes = sorted([(t, 1) for t in begins] + [(t, -1) for t in ends])
            count = dict(zip([t for t, _ in changes], accumulate(change for _, change in changes), strict=True))
            yield Counter(name, "requests", list(count), list(count.values()))
    for series in recording.samples:
        name = series.name if series.device is None else f"{series.name} of {series.device}"
        yield Counter(f"{name} ({series.unit})", "meters", series.time_s, series.values)


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _named(pid: int, process: str) -> list[dict[str, Any]]:
    return [_metadata("process_name", pid, 0, name=process), _metadata("process_sort_index", pid, 0, sort_index=pid)]


def utilization(spans: Iterable[Span], *, devices: Sequence[str] = ()) -> dict[str, float]:
    """Return the share of the time from first start to last finish in which each track was busy; overlaps count once.

    Args:
        spans: in any order.
        devices: tracks to list first, even if nothing ran on them.

    Returns:
        Shares in [0, 1] by track; 0 if no time passed.
    """
    by_track: dict[str, list[Span]] = {device: [] for device in devices}
    for span in spans:
        by_track.setdefault(span.track, []).append(span)
    everything = [span for members in by_track.values() for span in members]
    begin, end = min((s.start for s in everything), default=0.0), max((s.finish for s in everything), default=0.0)
    shares = {}
    for track, members in by_track.items():
        busy, reached = 0.0, begin
        for span in sorted(members, key=lambda span: span.start):
            busy += max(0.0, span.finish - max(span.start, reached))
            reached = max(reached, span.finish)
        shares[track] = min(1.0, busy / (end - begin)) if end > begin else 0.0
    return shares


def _metadata(event: str, pid: int, tid: int, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": event, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _args(span: Span | Event) -> dict[str, Any]:
    """Return the details that a trace viewer shows for a selected span."""
    if isinstance(span, Event):
        return {"why": span.why}
    request = {"request": span.request} | ({"sequence": span.sequence} if span.sequence else {})
    if span.kind == "copy":
        return request
    more = [f"and {len(span.ops) - _MAX_OPS} more"] if len(span.ops) > _MAX_OPS else []
    return {**request, "segment": span.segment, "ops": [*span.ops[:_MAX_OPS], *more]}


def _lanes(spans: Sequence[Span | Event], devices: Sequence[str]) -> dict[tuple[_Kind, str, int], list[Span | Event]]:
    """Assign spans to lanes without overlaps, by kind, track and lane: first devices, then links, then events."""
    lanes: dict[tuple[_Kind, str, int], list[Span | Event]] = {("compute", device, 0): [] for device in devices}
    free: dict[tuple[_Kind, str], list[tuple[float, int]]] = {("compute", device): [(-math.inf, 0)] for device in devices}
    for span in sorted(spans, key=lambda span: (span.start, span.finish)):
        ready = free.setdefault((span.kind, span.track), [])
        lane = heapq.heappop(ready)[1] if ready and ready[0][0] <= span.start else len(ready)
        heapq.heappush(ready, (span.finish, lane))
        lanes.setdefault((span.kind, span.track, lane), []).append(span)
    return dict(sorted(lanes.items(), key=lambda item: _PROCESSES[item[0][0]][0]))
