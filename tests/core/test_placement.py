"""Placement files: what is written, what is read back, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.core.errors import FileError, PlacementError
from placeit.core.placement import Placement

OPS = ("x", "left branch", "y/é")
PLACEMENT = Placement(OPS, np.array([0, 1, 0], np.int32), ("CPU@0", "CPU@1"), "abc")


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Path]:
    """Write the placement with some fields replaced."""

    def write(**fields: Any) -> Path:
        path = tmp_path / "p.json"
        PLACEMENT.save(path)
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        return path

    return write


def test_a_saved_placement_reads_back_the_same_and_has_an_op_a_line(tmp_path: Path) -> None:
    PLACEMENT.save(tmp_path / "p.json")
    again = Placement.load(tmp_path / "p.json")
    assert again.as_dict() == PLACEMENT.as_dict()
    assert again.device_names == PLACEMENT.device_names
    assert again.graph_hash == "abc"
    assert len([line for line in (tmp_path / "p.json").read_text().splitlines() if line.startswith("    ")]) == 2 + len(OPS)


def test_ops_and_devices_are_matched_by_name_not_by_position(edited: Callable[..., Path]) -> None:
    path = edited(ops=dict(reversed(PLACEMENT.as_dict().items())), devices=["CPU@1", "CPU@0"])
    assert Placement.load(path).for_ops(OPS, ("GPU", "CPU@0", "CPU@1"), "abc").tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"devices": []}, "a list 'devices' of names"),
        ({"devices": ["CPU@0", 1]}, "a list 'devices' of names"),
        ({"devices": "CPU@0"}, "a list 'devices' of names"),
        ({"devices": ["CPU@0", "CPU@1", "CPU@0"]}, "lists the device 'CPU@0' twice"),
        ({"devices": ["CPU@0"]}, "unknown device 'CPU@1'"),
        ({"ops": {}}, "a mapping 'ops'"),
        ({"ops": ["x"]}, "a mapping 'ops'"),
        ({"ops": {"x": 0}}, "a mapping 'ops'"),
        ({"version": 4}, "version 4; this placeit reads version 1, 2 and 3"),
        ({"format": "other"}, "not a placeit-placement file"),
    ],
)
def test_what_is_no_placement_is_refused_with_the_name_of_the_file(
    edited: Callable[..., Path], fields: dict[str, Any], says: str
) -> None:
    path = edited(**fields)
    with pytest.raises((FileError, PlacementError)) as caught:
        Placement.load(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_an_op_that_is_placed_twice_is_refused(edited: Callable[..., Path]) -> None:
    path = edited()
    path.write_text(path.read_text().replace('"ops": {', '"ops": {"left branch": "CPU@0", '))
    with pytest.raises(FileError, match="'left branch' occurs twice"):
        Placement.load(path)


@pytest.mark.parametrize(
    ("ops", "devices", "graph", "says"),
    [
        (OPS, ("CPU@0", "CPU@1"), "other", "another model"),
        ((*OPS, "z"), ("CPU@0", "CPU@1"), "", "does not cover op 'z'"),
        (OPS[:2], ("CPU@0", "CPU@1"), "", "op 'y/é', which the model does not have"),
        (OPS, ("CPU@0",), "abc", "'left branch' on 'CPU@1', which is not one of the devices CPU@0"),
    ],
)
def test_a_placement_that_does_not_fit_says_why(ops: tuple[str, ...], devices: tuple[str, ...], graph: str, says: str) -> None:
    with pytest.raises(PlacementError, match=says):
        PLACEMENT.for_ops(ops, devices, graph)


def test_segments_are_saved_with_the_placement_as_version_2(tmp_path: Path) -> None:
    PLACEMENT.save(tmp_path / "old.json")
    assert json.loads((tmp_path / "old.json").read_text())["version"] == 1
    assert Placement.load(tmp_path / "old.json").segments is None
    segmented = replace(PLACEMENT, segments=np.array([0, 1, 2], np.int32))
    segmented.save(tmp_path / "new.json")
    assert json.loads((tmp_path / "new.json").read_text())["version"] == 2
    again = Placement.load(tmp_path / "new.json")
    assert again.as_dict() == PLACEMENT.as_dict()
    assert again.segments is not None
    assert again.segments.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "segments", ["0, 1", [0, 1], [0, 1, 1.0], [0, 1, True], [0, 1, -1], [0, 0, 1], [0, 2, 0], [1, 2, 1], [0, 1, 10**400], {}]
)
def test_segments_that_are_none_are_refused_with_the_name_of_the_file(edited: Callable[..., Path], segments: Any) -> None:
    with pytest.raises(PlacementError, match=r"p\.json: 'segments'"):
        Placement.load(edited(version=2, segments=segments))


def replicated() -> Placement:
    """Each op on the device of the other replica, and segments that differ."""
    first = replace(PLACEMENT, devices=np.zeros(3, np.int32), segments=np.array([0, 1, 1], np.int32))
    return replace(first, replicas=(replace(PLACEMENT, devices=np.ones(3, np.int32), segments=np.array([0, 0, 1], np.int32)),))


def test_replicas_are_saved_with_the_placement_as_version_3(tmp_path: Path) -> None:
    replicated().save(tmp_path / "p.json")
    assert json.loads((tmp_path / "p.json").read_text())["version"] == 3
    again = Placement.load(tmp_path / "p.json")
    assert [one.devices.tolist() for one in again.every] == [[0, 0, 0], [1, 1, 1]]
    assert [one.segments.tolist() for one in again.every if one.segments is not None] == [[0, 1, 1], [0, 0, 1]]
    assert [one.graph_hash for one in again.every] == ["abc", "abc"]
    assert again.counts() == {"CPU@0": 3, "CPU@1": 3}


@pytest.mark.parametrize(
    ("replicas", "says"),
    [
        ("two", "'replicas' is a list"),
        ([["x"]], "'replicas' is a list"),
        ([{}], "a mapping 'ops'"),
        ([{"ops": {"x": "CPU@1", "left branch": "CPU@1"}}], "places others than the first"),
        ([{"ops": dict.fromkeys(OPS, "CPU@7")}], "unknown device 'CPU@7'"),
        ([{"ops": dict.fromkeys(OPS, "CPU@0")}], "two of them use CPU@0"),
        ([{"ops": dict.fromkeys(OPS, "CPU@1"), "segments": [0, 1]}], "'segments' has a number for each op"),
    ],
)
def test_replicas_that_are_none_are_refused_with_the_name_of_the_file(tmp_path: Path, replicas: Any, says: str) -> None:
    path = tmp_path / "p.json"
    replicated().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"replicas": replicas}))
    with pytest.raises(PlacementError, match=rf"p\.json: .*{says}"):
        Placement.load(path)
