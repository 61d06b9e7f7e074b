"""Traces of recordings, held to the published Chrome trace event format, as Perfetto reads it.

Source: "Trace Event Format": complete, instant, counter, flow and metadata events, and the JSON object format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from placeit.core.errors import FileError
from placeit.profiler.recorded import RecordedRequest, RecordedSpan
from placeit.profiler.recording import Recording
from placeit.profiler.trace import write_recording_trace
from tests.recorded_run import RECORDING

Event = Mapping[str, Any]
_FIELDS = {"X": {"dur"}, "i": {"s"}, "C": {"args"}, "M": {"args"}, "s": {"id"}, "f": {"id", "bp"}}
_NAMES = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def validated(path: Path) -> list[Event]:
    """Read a trace, and check it as the format has it: fields of each phase, nesting, and flows that bind to slices."""
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data.keys() == {"traceEvents", "displayTimeUnit"}
    assert data["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = data["traceEvents"]
    for event in events:
        assert event["ph"] in _FIELDS, event
        assert event.keys() >= {"name", "ph", "ts", "pid", "tid"} | _FIELDS[event["ph"]], event
        assert isinstance(event["name"], str)
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "M":
            assert event["name"] in _NAMES
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    assert timed == sorted(timed)
    slices = [event for event in events if event["ph"] == "X"]
    for track in {(one["pid"], one["tid"]) for one in slices}:
        mine = [one for one in slices if (one["pid"], one["tid"]) == track]
        assert all(before["ts"] + before["dur"] <= after["ts"] + 1e-6 for before, after in pairwise(mine))
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) + len(ends) == sum(event["ph"] in "sf" for event in events)
    for number, start in starts.items():
        assert (start["name"], start["cat"]) == (ends[number]["name"], ends[number]["cat"])
        assert start["ts"] <= ends[number]["ts"]
        assert ends[number]["bp"] == "e"
    return events


def binds_to(flow: Event, events: list[Event]) -> Event:
    """The slice that encloses the end of an arrow: the one that began last on its track."""
    own = [one for one in events if one["ph"] == "X" and (one["pid"], one["tid"]) == (flow["pid"], flow["tid"])]
    around = [one for one in own if one["ts"] <= flow["ts"] < one["ts"] + max(one["dur"], 1e-6)]
    return around[-1]


def arrows(events: list[Event]) -> list[tuple[str, str]]:
    starts = [event for event in events if event["ph"] == "s"]
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    return [(binds_to(one, events)["name"], binds_to(ends[one["id"]], events)["name"]) for one in starts]


def written(recording: Recording, folder: Path) -> list[Event]:
    write_recording_trace(folder / "t.json", recording)
    return validated(folder / "t.json")


def test_threads_are_named_after_devices_and_links_and_spans_after_ops(tmp_path: Path) -> None:
    events = written(RECORDING, tmp_path)
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(threads.values()) == ["CPU@0", "CPU@1", "CPU@0 -> CPU@1", "server"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        "devices",
        "links",
        "events",
        "requests",
        "meters",
    ]
    slices = {e["name"]: (threads[e["pid"], e["tid"]], e["ts"], e["dur"], e["args"]) for e in events if e["ph"] == "X"}
    of = {"request": 0, "segment": 0, "ops": ["conv <b>1</b>", "relu"]}
    assert slices["conv <b>1</b>"] == ("CPU@0", 0.0, 1e6, of)
    assert slices["relu"] == ("CPU@0 -> CPU@1", 1e6, 1e6, {"request": 0})
    assert [e["args"] for e in events if e["ph"] == "i"] == [{"why": "nothing is wrong"}]


def test_arrows_lead_from_producers_to_consumers_also_where_spans_touch(tmp_path: Path) -> None:
    assert arrows(written(RECORDING, tmp_path)) == [("conv <b>1</b>", "relu"), ("relu", "fc")]
    first, _, last = RECORDING.spans
    touching = (
        first,
        replace(last, where=("CPU@0",), start_s=1.0, finish_s=2.0),
    )  # on one device, the one right after the other
    assert arrows(written(replace(RECORDING, spans=touching), tmp_path)) == [("conv <b>1</b>", "fc")]


def test_counters_show_utilisation_requests_and_meters(tmp_path: Path) -> None:
    requests = (RecordedRequest(0, 0.0, 0.0, 4.0), RecordedRequest(0, 1.0, 3.0, 5.0))
    more = RecordedSpan("compute", ("CPU@0",), 1, 0, None, 3.0, 5.0)
    recording = replace(RECORDING, requests=requests, spans=(*RECORDING.spans, more), wall_s=5.0)
    counted: dict[str, list[tuple[float, float]]] = {}
    for event in written(recording, tmp_path):
        if event["ph"] == "C":
            counted.setdefault(event["name"], []).append((event["ts"] / 1e6, event["args"]["value"]))
    assert counted["utilization of CPU@0"] == [(0.0, 1.0), (1.0, 0.0), (2.0, 0.0), (3.0, 1.0), (4.0, 1.0), (5.0, 0.0)]
    assert counted["utilization of CPU@1"] == [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (3.0, 1.0), (4.0, 0.0), (5.0, 0.0)]
    assert counted["requests waiting"] == [(0.0, 0), (1.0, 1), (3.0, 0)]
    assert counted["requests in flight"] == [(0.0, 1), (3.0, 2), (4.0, 1), (5.0, 0)]
    assert counted["process CPU (cores)"] == [(1.0, 1.5), (2.0, 0.5)]
    assert counted["power of package-0 (W)"] == [(1.0, 40.0), (2.0, 50.0)]


def test_a_long_segment_names_its_first_ops_with_each_span(tmp_path: Path) -> None:
    ops = tuple(replace(RECORDING.graph.ops[2], name=f"op {v}") for v in range(50))
    assert RECORDING.plan is not None
    segments = (replace(RECORDING.plan.segments[0], ops=tuple(range(50))), RECORDING.plan.segments[1])
    graph, plan = replace(RECORDING.graph, ops=ops), replace(RECORDING.plan, segments=segments)
    named = [e["args"]["ops"] for e in written(replace(RECORDING, graph=graph, plan=plan), tmp_path) if e["name"] == "op 0"]
    assert named == [[*(f"op {v}" for v in range(20)), "and 30 more"]]


def test_a_recording_without_runs_is_a_trace_without_slices(tmp_path: Path) -> None:
    nothing = replace(RECORDING, plan=None, requests=(), spans=(), events=(), samples=())
    assert {event["ph"] for event in written(nothing, tmp_path)} == {"M"}


def test_where_no_trace_can_be_written_an_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="Cannot write"):
        write_recording_trace(tmp_path / "missing" / "t.json", RECORDING)
