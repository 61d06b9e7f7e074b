"""Tables of what segments, ops and groups take."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from placeit.core.placement import Placement


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_run_says_what_segments_and_the_ops_in_them_take(cli: Any, tiny: Path, placement: Path, tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    result = cli("run", tiny, "-p", placement, "--runs", 3, "--csv", table, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["csv_file"] == str(table)
    rows = rows_of(table)
    assert list(rows[0]) == ["row", "segment", "device", "name", "type", "ops", "kernel", "seconds"]
    placed = Placement.load(placement).as_dict()
    segments = {row["segment"]: row for row in rows if row["row"] == "segment"}
    ops = [row for row in rows if row["row"] == "op"]
    assert sum(row["seconds"] != "" for row in segments.values()) == data["segments"]
    assert len({row["name"] for row in ops}) == len(ops)
    for row in ops:
        assert row["device"] == placed[row["name"]] == segments[row["segment"]]["device"]
    for row in segments.values():
        members = [op for op in ops if op["segment"] == row["segment"]]
        assert len(members) == (int(row["ops"]) if row["seconds"] else 0)
    stem = next(row for row in ops if row["name"] == "stem")
    assert stem["type"] == "Convolution"
    assert stem["kernel"]
    assert float(stem["seconds"]) >= 0


def test_other_runtimes_have_rows_of_segments_only(cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    device = f"ort:{cores[0]}"
    placed = Placement.load(_all_on(tiny, device, tmp_path / "p.json"))
    result = cli("run", tiny, "-p", tmp_path / "p.json", "--runs", 2, "--csv", tmp_path / "t.csv")
    assert result.exit_code == 0, result.stderr
    assert {row["row"] for row in rows_of(tmp_path / "t.csv")} == {"segment"}
    assert placed.counts() == {device: 8}


def test_profile_has_a_row_for_each_group_and_device(cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path) -> None:
    table = tmp_path / "costs.csv"
    result = cli("profile", tiny, "-d", ",".join(cores), "--csv", table, "--json")
    assert result.exit_code == 0, result.stderr
    rows = rows_of(table)
    data = json.loads(result.stdout)
    assert len(rows) == len(data["groups"]) * len(cores)
    assert {row["device"] for row in rows} == set(cores)
    for row in rows:
        group = next(group for group in data["groups"] if group["name"] == row["group"])
        assert float(row["seconds"]) == group["seconds"][row["device"]]
        assert float(row["cut_s"]) == group["cut_s"][row["device"]]
        assert int(row["ops"]) == group["ops"]


def _all_on(model: Path, device: str, path: Path) -> Path:
    import numpy as np

    from placeit.backends import load

    graph = load(model).graph
    Placement(graph.names, np.zeros(len(graph), np.int32), (device,), graph.hash).save(path)
    return path
