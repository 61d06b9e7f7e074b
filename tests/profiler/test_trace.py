from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placeit.core.errors import FileError
from placeit.profiler.trace import utilization, write_chrome_trace
from placeit.runtime.spans import Event, Span


def on(where: str, name: str, start: float, finish: float) -> Span:
    """A span of a device, or of ``a -> b``."""
    ends = tuple(where.split(" -> "))
    return Span("copy" if len(ends) > 1 else "compute", ends, 0, None, start, finish, name)


times = st.floats(0, 100).map(lambda seconds: round(seconds, 6))


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    return [
        on(
            draw(st.sampled_from(["CPU@0", "GPU", "CPU@0 -> GPU"])),
            draw(st.text(max_size=3)),
            *sorted((draw(times), draw(times))),
        )
        for _ in range(draw(st.integers(0, 12)))
    ]


def trace(path: Path, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    write_chrome_trace(path, *args, **kwargs)
    data = json.loads(path.read_text())
    assert data["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = data["traceEvents"]
    return events


def test_a_trace_has_a_track_per_device_and_link_in_two_processes(tmp_path: Path) -> None:
    events = trace(
        tmp_path / "t.json",
        [
            on("CPU@0 -> CPU@1", "x", 10.5, 10.75),
            Span("compute", ("CPU@0",), 2, 3, 10.0, 10.5, "conv", ("conv", "bias")),
            on("CPU@1", "relu", 10.75, 11.0),
        ],
        devices=("CPU@1", "CPU@0", "GPU"),
    )
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(1, 1): "CPU@1", (1, 2): "CPU@0", (1, 3): "GPU", (2, 4): "CPU@0 -> CPU@1"}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["devices", "links"]
    slices = [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"], e["args"]) for e in events if e["ph"] == "X"]
    assert slices == [
        ("conv", 1, 2, 0.0, 500_000.0, {"request": 2, "segment": 3, "ops": ["conv", "bias"]}),
        ("x", 2, 4, 500_000.0, 250_000.0, {"request": 0}),
        ("relu", 1, 1, 750_000.0, 250_000.0, {"request": 0, "segment": None, "ops": []}),
    ]


@given(everything=spans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_trace_keeps_the_rules_of_the_format(tmp_path: Path, everything: list[Span]) -> None:
    events = trace(tmp_path / "t.json", everything)
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == len(everything)
    assert all(isinstance(e[key], int) for e in events for key in ("pid", "tid"))
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in slices)
    assert [e["ts"] for e in slices] == sorted(e["ts"] for e in slices)
    tracks = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in slices} == tracks
    assert {e["tid"] for e in events if e["name"] == "thread_sort_index"} == {tid for _, tid in tracks}
    for track in tracks:
        reached = 0.0
        for e in slices:
            if (e["pid"], e["tid"]) == track:
                assert e["ts"] >= reached - 1e-3, "spans of one track never overlap"
                reached = e["ts"] + e["dur"]


def test_spans_that_overlap_on_a_track_are_drawn_in_further_lanes(tmp_path: Path) -> None:
    events = trace(tmp_path / "t.json", [on("CPU", "a", 0, 2), on("CPU", "b", 1, 3), on("CPU", "c", 2, 4)])
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [(e["name"], names[e["tid"]]) for e in events if e["ph"] == "X"] == [("a", "CPU"), ("b", "CPU (2)"), ("c", "CPU")]


def test_an_empty_trace_is_a_valid_file(tmp_path: Path) -> None:
    assert trace(tmp_path / "t.json", []) == []


def test_a_trace_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="missing"):
        write_chrome_trace(tmp_path / "missing" / "t.json", [])


@pytest.mark.parametrize(("start", "finish"), [(1.0, 0.5), (float("nan"), 1.0), (0.0, float("inf"))])
def test_a_span_that_ends_before_it_starts_is_a_mistake(start: float, finish: float) -> None:
    with pytest.raises(ValueError, match="'op' on CPU"):
        on("CPU", "op", start, finish)


def test_a_device_may_be_called_like_a_link(tmp_path: Path) -> None:
    events = trace(tmp_path / "t.json", [Span("compute", ("a -> b",), 0, 0, 0.0, 1.0, "op")])
    assert [event["cat"] for event in events if event["ph"] == "X"] == ["compute"]
    with pytest.raises(ValueError, match="is a copy span"):
        Span("copy", ("a",), 0, None, 0.0, 1.0)


def test_utilization_is_the_busy_share_of_each_track() -> None:
    some = [on("a", "x", 0, 4), on("a", "y", 3, 5), on("a", "z", 3, 3.5), on("b", "x", 8, 10)]
    assert utilization(some, devices=("c", "b")) == {"c": 0.0, "b": 0.2, "a": 0.5}


def test_spans_that_take_no_time_have_no_utilization() -> None:
    assert utilization([on("a", "x", 1, 1)]) == {"a": 0.0}
    assert utilization([]) == {}


@given(spans())
def test_utilization_is_a_share_and_counts_overlaps_once(everything: list[Span]) -> None:
    shares = utilization(everything)
    assert all(0 <= share <= 1 for share in shares.values())
    assert utilization(everything * 2) == pytest.approx(shares)


def test_what_happened_to_a_server_is_on_a_track_of_its_own(tmp_path: Path) -> None:
    lost, decided = Event("lost", 11.0, 11.0, "a is lost."), Event("decision", 11.0, 11.5, "b")
    events = trace(tmp_path / "t.json", [lost, on("a", "x", 10, 11), decided])
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["devices", "events"]
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == ["a", "server"]
    shown = [(e["ph"], e["name"], e["pid"], e["ts"], e.get("dur"), e["args"]) for e in events if e["ph"] != "M"]
    assert shown[1:] == [
        ("i", "lost", 3, 1_000_000.0, None, {"why": "a is lost."}),
        ("X", "decision", 3, 1_000_000.0, 500_000.0, {"why": "b"}),
    ]
