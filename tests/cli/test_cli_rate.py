import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from placeit.workbench import Workbench
from tests.broken_executors import broken


@pytest.fixture
def three_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have three requests be the best, whatever was measured."""
    monkeypatch.setattr(Workbench, "best_in_flight", lambda *_: 3)


def test_requests_arrive_at_a_rate_and_their_times_are_shown(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], three_in_flight: None
) -> None:
    options = ("--rate", 200, "--arrivals", "poisson", "--requests", 30, "--seed", 3)
    result = cli("run", tiny, "-p", placement, *options, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert (data["rate"], data["arrivals"], data["arrived"], data["ended"], data["dropped"]) == (200, "poisson", 30, 30, 0)
    assert data["in_flight"] == 3
    latency = data["latency_s"]
    assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["worst"]
    assert data["achieved"] > 0
    assert data["output_error"]["max_rel"] < 1e-5
    assert set(data["utilization"]) == set(cores)
    shown = cli("run", tiny, "-p", placement, *options).stdout
    for word in ("arrived       30 requests, 200 per second, poisson", "achieved", "p50", "p95", "p99", "waiting", "in flight"):
        assert word in shown


def test_a_trace_under_load_has_the_segments_of_every_request(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path
) -> None:
    file = tmp_path / "t.json"
    data = json.loads(cli("run", tiny, "-p", placement, "--rate", 200, "--requests", 30, "--trace", file, "--json").stdout)
    assert data["trace_file"] == str(file)
    events = json.loads(file.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len({event["args"]["request"] for event in slices}) >= 30
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} >= set(cores)


def test_a_rate_that_cannot_be_sustained_is_said_in_a_sentence_with_the_busiest_device(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str]
) -> None:
    options = ("run", tiny, "-p", placement, "--rate", 1e6, "--requests", 2000, "--queue", 2)
    result = cli(*options, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["arrived"] == 2000 == data["ended"] + data["dropped"]
    assert data["dropped"] > 0
    assert not data["sustained"]
    assert data["busiest"] in cores
    assert data["reason"].startswith("1e+06 requests per second are more than this placement sustains: it served ")
    assert f"and {data['busiest']} was busy" in data["reason"]
    assert "more than this placement sustains" in cli(*options).stdout


def test_without_a_rate_as_many_requests_are_in_flight_as_can_be(
    cli: Any, tiny: Path, placement: Path, three_in_flight: None
) -> None:
    data = json.loads(cli("run", tiny, "-p", placement, "--requests", 30, "--json").stdout)
    assert (data["arrived"], data["ended"], data["dropped"], data["replicas"]) == (30, 30, 0, 1)
    assert (data["rate"], data["arrivals"], data["sustained"], data["reason"]) == (None, None, None, None)
    assert data["in_flight"] == 3
    assert data["waiting"]["most"] <= data["in_flight"]
    assert data["achieved"] > 0
    said = " ".join(cli("run", tiny, "-p", placement, "--seconds", 0.2).stdout.split())
    assert "requests, each when another had ended" in said


def test_wrong_outputs_are_said_to_be_wrong_under_load(
    cli: Any, tiny: Path, placement: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, "wrong", lambda plan: True)
    result = cli("run", tiny, "-p", placement, "--rate", 100, "--requests", 2)
    assert result.exit_code == 1
    assert "Its outputs are wrong" in result.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rate", 0), "must be positive"),
        (("--rate", "nan"), "must be positive"),
        (("--rate", 1, "--seconds", 0), "some time"),
        (("--rate", 1, "--seconds", 1, "--requests", 1), "either --seconds or --requests"),
        (("--rate", 1, "--runs", 3), "With --rate, several requests are in flight at once: --requests or --seconds says"),
        (("--rate", 1, "--csv", "t.csv"), "and --csv is about single ones"),
        (("--requests", 1, "--runs", 3), "With --requests, several requests are in flight at once"),
        (("--seconds", 0), "some time"),
        (("--arrivals", "poisson"), "--arrivals is about requests that arrive at a rate: give --rate as well"),
        (("--requests", 1, "--queue", 3), "--queue is about requests that arrive at a rate"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    cli: Any, tiny: Path, placement: Path, options: Sequence[object], said: str
) -> None:
    result = cli("run", tiny, "-p", placement, *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_latency_is_compared_at_the_pace_of_requests(cli: Any, tiny: Path, placement: Path, cores: Sequence[str]) -> None:
    devices = ",".join(cores)
    for command in (("compare", tiny, "-p", placement, "-d", devices), ("run", tiny, "-d", f"CPU,{devices}")):
        data = json.loads(cli(*command, "--runs", 2, "--rate", 500, "--json").stdout)
        assert (data["rate"], data["rounds"]) == (500, 2)
    said = " ".join(cli("compare", tiny, "-p", placement, "-d", devices, "--runs", 1, "--rate", 500).stdout.split())
    assert "runs start at 500 per second" in said
    data = json.loads(cli("compare", tiny, "-p", placement, "-d", devices, "--runs", 1, "--rate", 1e6, "--json").stdout)
    given = next(one for one in data["candidates"] if one["placement_file"] is not None)
    assert 0 < given["inner_s"] < given["measured_s"]
    said = " ".join(cli("compare", tiny, "-p", placement, "-d", devices, "--runs", 1, "--rate", 1e6).stdout.split())
    assert "takes longer than the 0.001 ms between two starts" in said or "takes longer than the 1" in said
