import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

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
        total = device["dispatch_s"] + sum(group["seconds"][device["name"]] for group in data["groups"])
        assert abs(device["whole_model_s"] - total) <= 1e-9


def test_the_table_names_groups_devices_and_links(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    text = cli("profile", tiny, "--devices", ",".join(cores)).stdout
    assert all(name in text for name in ("left", "right", "Convolution", "dispatch of a segment"))
    assert all(f"cut {core}" in text for core in cores)
    assert ("bandwidth" in text) == (len(cores) > 1)


def test_the_file_holds_what_json_prints(cli: Any, tiny: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(DESCRIBED)
    file = tmp_path / "costs.json"
    result = cli("profile", tiny, "-d", cluster, "--output", file, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(file.read_text()) == json.loads(result.stdout)
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
