import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from placeit.backends import load
from placeit.profiler.recording import read_recording

DESCRIBED = """
devices:
  a: {catalog: jetson-orin-nano}
  b: {catalog: raspberry-pi-5}
links:
  - {between: [a, b], bandwidth: 1 Gbit/s, latency: 1 ms}
"""


def test_every_group_has_a_cost_on_every_device(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    result = cli("profile", tiny, "--devices", ",".join(cores), "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["graph"] == {"ops": 8, "edges": 8, "groups": 4}
    assert [device["name"] for device in data["devices"]] == list(cores)
    assert sum(group["ops"] for group in data["groups"]) == 8
    for group in data["groups"]:
        assert list(group["seconds"]) == list(group["cut_s"]) == list(cores)
        assert all(value >= 0 for value in (*group["seconds"].values(), *group["cut_s"].values()))
    for device in data["devices"]:
        total = device["dispatch_s"] + device["host_s"] + sum(group["seconds"][device["name"]] for group in data["groups"])
        assert abs(device["whole_model_s"] - total) <= 1e-9


def test_the_table_names_groups_devices_and_links(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    text = cli("profile", tiny, "--devices", ",".join(cores)).stdout
    assert all(name in text for name in ("left", "right", "Convolution", "dispatch of a segment"))
    assert all(f"cut {core}" in text for core in cores)
    assert ("bandwidth" in text) == (len(cores) > 1)


def test_the_file_is_a_recording_of_the_costs_that_json_prints(cli: Any, tiny: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(DESCRIBED)
    file = tmp_path / "costs.json"
    result = cli("profile", tiny, "-d", cluster, "--output", file, "--json")
    assert result.exit_code == 0, result.stderr
    recording = read_recording(file)
    assert {"schema": "placeit.profile/1", **(recording.costs or {})} == json.loads(result.stdout)
    assert [op.name for op in recording.graph.ops] == list(load(tiny).graph.names)
    assert recording.plan is None
    assert recording.requests == recording.spans == recording.states == ()
    assert [device["described"] for device in json.loads(result.stdout)["devices"]] == [True, True]


def test_described_devices_are_marked_in_the_table(cli: Any, tiny: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(DESCRIBED)
    assert "a is described: it exists in simulation only." in cli("profile", tiny, "-d", cluster).stdout


def test_a_cost_cache_that_cannot_be_written_is_a_warning(
    cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path / "file" / "cache"))
    result = cli("profile", tiny, "--devices", cores[0], "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["groups"]
    assert result.stderr.count("warning: ") == 1
    assert str(tmp_path / "file") in result.stderr


def test_nothing_is_cached_if_that_is_asked_for(
    cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path / "cache"))
    assert cli("profile", tiny, "--devices", cores[0], "--no-cache").exit_code == 0
    assert not (tmp_path / "cache").exists()


def test_how_old_costs_are_and_how_busy_the_machine_was_is_shown(
    cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path / "cache"))
    first = json.loads(cli("profile", tiny, "--devices", cores[0], "--json").stdout)["profiled"]
    assert not first["cached"]
    assert 0 <= first["age_s"] < 60
    assert first["other_load_cores"] is None or first["other_load_cores"] >= 0
    _rewrite(tmp_path / "cache", whole=[1e-9, 1.5], age_days=3, load=1.26)
    again = cli("profile", tiny, "--devices", cores[0], "--json")
    found = json.loads(again.stdout)["profiled"]
    assert found["cached"]
    assert found["age_s"] >= 3 * 86400
    assert found["other_load_cores"] == 1.26
    assert again.stderr.count("warning") == 0
    assert "measured 3 days ago (from the cache" in cli("profile", tiny, "--devices", cores[0]).stdout
    assert "while other processes kept 1.3 cores busy" in cli("profile", tiny, "--devices", cores[0]).stdout


@pytest.mark.parametrize("command", ["profile", "optimize"])
def test_costs_that_do_not_hold_any_more_are_measured_again_and_that_is_said(
    cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path / "cache"))
    cli("profile", tiny, "--devices", cores[0])
    (before,) = _rewrite(tmp_path / "cache", whole=[0.3, 0.4], age_days=3, load=2.0)
    output = ["--output", tmp_path / "p.json", "--budget", 20] if command == "optimize" else []
    result = cli(command, tiny, "--devices", cores[0], "--json", *output)
    assert result.exit_code == 0, result.stderr
    assert "warning: The costs in the cache, 3 days old, are no longer valid" in " ".join(result.stderr.split())
    (after,) = [json.loads(path.read_text()) for path in (tmp_path / "cache").glob("*.json") if path.name == before.name]
    assert after["value"]["whole"][0][1] < 0.3


def _rewrite(folder: Path, *, whole: list[float], age_days: float, load: float) -> list[Path]:
    """Change what the cache holds for groups, and return the files."""
    found = []
    for path in folder.glob("*.json"):
        entry = json.loads(path.read_text())
        if entry["key"]["what"] == "group costs":
            entry["value"]["whole"] = [whole]
            path.write_text(json.dumps(entry | {"written": entry["written"] - age_days * 86400, "load": load}))
            found.append(path)
    return found
