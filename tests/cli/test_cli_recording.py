"""Recordings on the command line: ``placeit profile -p``, ``run --record`` and ``optimize --record``."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from placeit.core.errors import ExecutionError
from placeit.core.interrupts import INTERRUPTED
from placeit.core.placement import Placement
from placeit.measuring.measure import Race
from placeit.profiler.recording import read_recording
from placeit.workbench import running

pytestmark = pytest.mark.usefixtures("steady")

DESCRIBED = """
devices:
  a: {catalog: jetson-orin-nano}
  b: {catalog: raspberry-pi-5}
links:
  - {between: [a, b], bandwidth: 1 Gbit/s, latency: 1 ms}
"""


def test_profiling_a_placement_records_its_runs_and_prints_a_summary(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path
) -> None:
    run, trace, table = (tmp_path / name for name in ("run.json", "trace.json", "table.csv"))
    result = cli("profile", tiny, "-p", placement, "--runs", 4, "-o", run, "--trace", trace, "--csv", table, "--wide")
    assert result.exit_code == 0, result.stderr
    recording = read_recording(run)
    assert len(recording.requests) == 4
    assert [device.name for device in recording.devices] == list(cores)
    assert recording.costs is not None
    assert {group["name"] for group in recording.costs["groups"]} == set(recording.graph.groups)
    assert recording.predicted is not None
    assert re.search(r"critical path +computing [\d.]+ %, cuts [\d.]+ %, transfers [\d.]+ %, waiting [\d.]+ %", result.stdout)
    assert all(text in result.stdout for text in ("waiting for data", "idle", "Convolution", "FLOP/s", "B/s"))
    arrows = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "s"]
    assert bool(arrows) == (len(cores) > 1)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert sum(row["row"] == "span" for row in rows) == len(recording.spans)
    assert {row["name"] for row in rows if row["row"] == "op"} >= {"stem", "left", "right"}
    assert any(float(row["flops_per_s"]) > 0 for row in rows if row["type"] == "Convolution" and row["flops_per_s"])


def test_ctrl_c_ends_the_runs_and_keeps_a_recording_of_those_that_ended(
    cli: Any, tiny: Path, placement: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(race: Race, **_: object) -> None:
        real(race, rounds=3)
        raise KeyboardInterrupt

    real = Race.run
    monkeypatch.setattr(Race, "run", interrupted)
    run = tmp_path / "run.json"
    result = cli("profile", tiny, "-p", placement, "-o", run, "--json")
    assert result.exit_code == INTERRUPTED
    assert json.loads(result.stdout)["interrupted"] is True
    assert len(read_recording(run).requests) == 3


def test_requests_at_a_rate_are_recorded(cli: Any, tiny: Path, placement: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    result = cli("run", tiny, "-p", placement, "--rate", 500, "--requests", 40, "--record", run, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["recording_file"] == str(run)
    recording = read_recording(run)
    assert len(recording.requests) == 40 - json.loads(result.stdout)["dropped"]
    assert all(request.ended_s <= recording.wall_s for request in recording.requests)


def test_single_runs_are_recorded(cli: Any, tiny: Path, placement: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    result = cli("run", tiny, "-p", placement, "--runs", 3, "--record", run)
    assert result.exit_code == 0, result.stderr
    assert str(run) in result.stdout
    assert len(read_recording(run).requests) == 3


def test_a_search_records_its_races_and_runs_of_the_answer(cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path) -> None:
    run, output = tmp_path / "run.json", tmp_path / "p.json"
    result = cli(
        "optimize", tiny, "-d", ",".join(cores), "--budget", 2, "--placer", "heft", "-o", output, "--record", run, "--json"
    )
    assert result.exit_code == 0, result.stderr
    found, recording = json.loads(result.stdout), read_recording(run)
    assert recording.requests
    assert recording.search is not None
    assert {key: recording.search[key] for key in ("chosen", "reason", "candidates")} == {
        key: found[key] for key in ("chosen", "reason", "candidates")
    }
    assert recording.search["curves"] == {}  # nothing learned
    for race in recording.search["races"]:
        assert list(race["samples_s"]) == race["candidates"]
        assert max(map(len, race["samples_s"].values())) <= race["rounds"]


@pytest.mark.parametrize(("error", "code"), [(ExecutionError("a device failed"), 0), (KeyboardInterrupt(), INTERRUPTED)])
def test_a_search_whose_answer_cannot_be_recorded_is_kept(
    cli: Any,
    tiny: Path,
    cores: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(running, "measure", fail)
    run, output = tmp_path / "run.json", tmp_path / "p.json"
    asked = ("-d", cores[0], "--budget", 2, "--placer", "heft")
    result = cli("optimize", tiny, *asked, "-o", output, "--record", run)
    assert result.exit_code == code
    assert ("a device failed" in result.stderr) == (code == 0)
    assert Placement.load(output)
    recording = read_recording(run)
    assert recording.plan is None
    assert recording.search is not None


def test_a_search_on_described_devices_records_the_plan_and_what_is_predicted(cli: Any, tiny: Path, tmp_path: Path) -> None:
    cluster, run = tmp_path / "cluster.yaml", tmp_path / "run.json"
    cluster.write_text(DESCRIBED)
    result = cli("optimize", tiny, "-d", cluster, "--placer", "heft", "-o", tmp_path / "p.json", "--record", run)
    assert result.exit_code == 0, result.stderr
    recording = read_recording(run)
    assert recording.requests == ()
    assert recording.plan is not None
    assert recording.predicted is not None
    assert recording.search is not None


@pytest.mark.parametrize("path", ["missing/run.json", "."])
def test_a_recording_that_cannot_be_written_is_an_error_before_anything_runs(
    cli: Any, tiny: Path, placement: Path, path: str
) -> None:
    for command in (("profile", "-o"), ("run", "--record"), ("optimize", "--record")):
        given = ("-p", placement) if command[0] != "optimize" else ("-o", "p.json")
        result = cli(command[0], tiny, *given, command[1], path)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: Cannot write")
        assert len(result.stderr.splitlines()) == 1
        assert list(Path().iterdir()) == []


def test_options_of_runs_need_a_placement(cli: Any, tiny: Path) -> None:
    for option in ("--runs", "--duration", "--warmup", "--trace"):
        result = cli("profile", tiny, option, 3)
        assert result.exit_code == 2
        assert f"{option} is about the runs of a placement" in result.stderr
