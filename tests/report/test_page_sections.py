"""What a page has of recordings that lack something, or have more than one run of single requests."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from placeit.core.placement import Placement, Serving
from placeit.profiler.recorded import RecordedEvent
from placeit.profiler.recording import Recording
from placeit.report.layers import draw
from placeit.report.page.document import render
from placeit.serving.latency import LatencyLimit, OperatingPoint
from placeit.tuning import Configuration, Tuned
from tests.report.made_recordings import a_front, a_recording, a_search


def sections(page: str) -> list[str]:
    return re.findall(r"<h2[^>]*>([^<]*)</h2>", page)


def overlapping(recording: Recording) -> Recording:
    """The same requests, each of which arrives with the one before it."""
    before = [0.0, *(one.arrived_s for one in recording.requests)]
    requests = tuple(replace(one, arrived_s=at) for one, at in zip(recording.requests, before, strict=False))
    return replace(recording, requests=requests)


def test_requests_that_wait_for_each_other_are_requests_under_load() -> None:
    page = render(overlapping(a_recording(10)))
    assert "Requests under load" in sections(page)
    assert "5 requests" in page
    assert "at most 1 waited" in page


def test_requests_one_after_the_other_are_no_load() -> None:
    assert "Requests under load" not in sections(render(a_recording(10)))


def test_what_happened_to_a_server_is_listed() -> None:
    lost = RecordedEvent("lost <CPU@1>", 0.01, 0.02, "its node is gone")
    page = render(replace(a_recording(10), events=(lost,)))
    assert "lost &lt;CPU@1&gt;" in page
    assert "its node is gone" in page


def test_a_recording_of_costs_alone_shows_graph_costs_and_environment() -> None:
    whole = a_recording(10)
    times = {"CPU@0": 0.003, "CPU@1": None}
    costs = {"groups": [{"name": "<g>", "kind": "Relu", "ops": 2, "seconds": times, "cut_s": times}]}
    bare = Recording(
        whole.made, whole.versions, whole.environment, whole.model, whole.devices, whole.links, whole.graph, costs=costs
    )
    page = render(bare)
    assert sections(page) == ["Task graph and ops", "Costs", "Environment"]
    assert "Nothing ran" in page
    assert "&lt;g&gt;" in page
    assert "3.00 ms" in page


def test_a_front_of_latency_and_energy_is_drawn_and_listed() -> None:
    page = render(replace(a_recording(10), search=a_search() | {"pareto": a_front()}))
    assert sections(page)[:2] == ["Candidates", "Latency and energy"]
    for said in ("annealing (chosen)", "&lt;front 1&gt;", "measured, energy modelled", "simulated", "p.CPU@0.json"):
        assert said in page
    assert "Latency and energy" not in sections(render(replace(a_recording(10), search=a_search() | {"pareto": None})))
    assert "Latency and energy" not in sections(render(replace(a_recording(10), search=a_search() | {"pareto": [{}, 3]})))


def tuned(*, chosen: bool = True) -> dict[str, object]:
    """What a recording keeps of a server that was tuned: two configurations that were measured, and one that failed."""
    points = tuple(OperatingPoint(at, 0.01, 0.02, 0.03, (0.015, 0.025), 99, kept=at < 20) for at in (10.0, 20.0))
    one = Placement(("op",), np.zeros(1, np.int32), ("CPU@0",), serving=Serving(2, 8))
    several = (
        Configuration("<whole>, 2 in flight", "whole", one, 33.3, 30.0, (29.0, 31.0), points, host=7e-5),
        Configuration("split, 1 in flight", "split", one, None, 25.0, (24.0, math.inf), points[:1]),
        Configuration("lost", "lost", one, failed="there is no memory"),
    )
    chose = several[0] if chosen else None
    return Tuned("m.onnx", LatencyLimit(95, 0.02), None, several, 6, chose, interrupted=False).to_dict()


def test_latencies_of_a_tuned_server_are_drawn_and_listed() -> None:
    page = render(replace(a_recording(10), tuning=tuned()))
    assert sections(page)[0] == "Latency by rate"
    for said in (
        "The limit is 20.0 ms for p95",
        "&lt;whole&gt;, 2 in flight is chosen",
        "15.0 ms .. 25.0 ms",
        "33.3",
        "70.0 us",
        "there is no memory",
    ):
        assert said in page
    assert "Nothing is chosen: none keeps" in render(replace(a_recording(10), tuning=tuned(chosen=False)))
    for damaged in ({}, {"limit": {}}, {"limit": {"percentile": 95, "seconds": 1}, "configurations": [3, {"points": [{}]}]}):
        render(replace(a_recording(10), tuning=damaged))


def test_measured_joules_decide_and_those_of_the_model_have_a_column() -> None:
    search = a_search() | {"objective": "energy", "objective_unit": "J", "energy": {"source": "measured"}}
    assert "joules by the model" not in render(replace(a_recording(10), search=search))
    rows = [{**row, "joules_measured": 2.5, "joules_modelled": 1.25} for row in search["candidates"]]  # type: ignore[attr-defined]
    page = render(replace(a_recording(10), search=search | {"candidates": rows}))
    for said in ("joules by the model", "1.25 J", "Energy of runs is by meters."):
        assert said in page


@pytest.mark.parametrize("search", [{}, {"candidates": [None, {}], "chosen": 3, "best_single": {"devices": []}}, {"reason": 1}])
def test_a_search_without_what_it_should_have_is_left_out(search: dict[str, object]) -> None:
    assert "Timeline" in sections(render(replace(a_recording(10), search=search)))


def test_a_graph_without_edges_and_one_of_a_single_op_are_drawn() -> None:
    assert draw(3, []).x.tolist() == [0, 0, 0]
    assert sorted(draw(3, []).y.tolist()) == [-1, 0, 1]
    assert "Task graph and ops" in sections(render(a_recording(1, requests=1)))


def test_an_op_is_right_of_all_that_it_reads_and_as_near_as_can_be() -> None:
    drawing = draw(5, [(0, 1), (1, 3), (2, 3), (0, 3), (3, 4)])
    assert drawing.x.tolist() == [0, 1, 1, 2, 3]
    assert [line[[0, -1], 0].tolist() for line in drawing.lines] == [[0, 1], [1, 2], [1, 2], [0, 2], [2, 3]]
    for layer in range(4):
        places = sorted(drawing.y[drawing.x == layer])
        assert all(high - low >= 1 for low, high in itertools.pairwise(places))


def test_a_page_of_a_very_large_graph_has_the_most_expensive_ops_and_stays_below_its_size() -> None:
    page = render(a_recording(9_000, requests=1))
    assert "The 8000 most expensive of 9001 ops are shown." in page
    assert len(page.encode()) < 5e6
