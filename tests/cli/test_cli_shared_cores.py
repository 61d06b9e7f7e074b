"""Core sets that share cores are devices of one cluster, from their names to the trace of a run."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.backends import load
from placeit.core.address import format_cores
from placeit.core.placement import Placement
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.devices.plain import plain_devices
from placeit.planning.coarsen import coarsen

CORES = allowed_cores()[:2]
pytestmark = pytest.mark.two_cores
BOTH, ONE, OTHER = f"CPU@{format_cores(CORES)}", f"CPU@{CORES[0]}", f"CPU@{CORES[-1]}"
SHARED = f"{BOTH},{ONE},{OTHER}"


def answer(result: Any) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def place(tiny: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write a placement of the tiny model: its two branches on these devices, the rest on the third; every group a segment."""

    def write(names: str, left: int, right: int, rest: int) -> Path:
        graph, path = load(tiny).graph, tmp_path / f"{left}{right}{rest}.json"
        of = coarsen(graph).group_of
        branches = {of[graph.index["left"]]: left, of[graph.index["right"]]: right}
        devices = np.array([branches.get(group, rest) for group in of.tolist()], np.int32)
        Placement(graph.names, devices, tuple(names.split(",")), graph.hash, of).save(path)
        return path

    return write


@pytest.mark.usefixtures("steady")
def test_a_model_is_optimized_on_them_and_the_answer_is_run(cli: Any, tiny: Path, tmp_path: Path) -> None:
    placed = tmp_path / "placement.json"
    asked = ("--budget", "2", "--placer", "heft", "--json")
    found = answer(cli("optimize", tiny, "--devices", SHARED, "-o", placed, *asked))
    rows = {row["name"]: row for row in found["candidates"]}
    plain = [device.name for device in plain_devices(discover(SHARED), onnx=True)]
    assert {BOTH, ONE, OTHER, *plain} <= rows.keys()
    assert {name for name, row in rows.items() if row["plain"]} == set(plain)
    assert found["chosen"]["measured_s"] > 0
    assert found["output_error"]["max_rel"] < 1e-3
    report = answer(cli("run", tiny, "--devices", SHARED, "-p", placed, "--runs", "3", "--json"))
    assert report["output_error"]["max_rel"] < 1e-3
    assert sum(report["utilization"].values()) <= 2


@pytest.mark.parametrize(
    ("devices", "native"), [(f"{BOTH},{ONE}", True), (f"{ONE},ort:{ONE}", False), (f"CPU,{OTHER}", True), (SHARED, True)]
)
@pytest.mark.parametrize("left", [0, 1])
def test_devices_that_share_a_core_take_turns(
    cli: Any, tiny: Path, place: Callable[..., Path], tmp_path: Path, devices: str, native: bool, left: int
) -> None:
    placed, trace = place(devices, left, 1 - left, 0), tmp_path / "trace.json"
    report = answer(cli("run", tiny, "--devices", devices, "-p", placed, "--runs", "3", "--trace", trace, "--json"))
    assert report["native"] == native
    assert report["output_error"]["max_rel"] < 1e-3
    assert set(report["utilization"]) == set(devices.split(","))
    assert sum(report["utilization"].values()) <= 1 + 1e-3
    events = json.loads(trace.read_text())["traceEvents"]
    track = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [(track[e["tid"]], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["cat"] == "compute"]
    assert {name for name, *_ in spans} == set(devices.split(",")[:2])
    for (_, _, end), (_, start, _) in itertools.pairwise(sorted(spans, key=lambda span: span[1])):
        assert end <= start + 1e-3


def test_placements_on_them_are_compared(cli: Any, tiny: Path, place: Callable[..., Path]) -> None:
    one, other = place(SHARED, 1, 2, 0), place(SHARED, 0, 0, 0)
    found = answer(cli("compare", tiny, "-p", one, "-p", other, "--devices", SHARED, "--runs", "5", "--json"))
    rows = {row["name"]: row for row in found["candidates"]}
    assert {str(one), str(other), BOTH, ONE, OTHER} <= rows.keys()
    assert all(row["measured_s"] > 0 and row["output_error"]["max_rel"] < 1e-3 for row in rows.values())


def test_they_are_listed_and_profiled(cli: Any, tiny: Path) -> None:
    listed = answer(cli("devices", "--devices", SHARED, "--no-links", "--json"))["devices"]
    assert [device["cores"] for device in listed] == [list(CORES), list(CORES[:1]), list(CORES[1:])]
    found = answer(cli("profile", tiny, "--devices", SHARED, "--json"))
    assert all(group["seconds"].keys() == set(SHARED.split(",")) for group in found["groups"])
    assert all(group["load_s"][BOTH] == 0 for group in found["groups"])


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (f"{BOTH},{ONE},{ONE}", f"'{ONE}' is listed twice"),
        (f"{BOTH},CPU@4000", "may not use"),
        ("CPU,GPU,GPU.0,ort:GPU", "not on 'GPU'"),
        ("CPU,GPU,GPU.0", "'GPU' and 'GPU.0' are both the device GPU.0"),
        ("cuda:0,ort:cuda:0,torch:cuda:0", "'cuda:0' and 'ort:cuda:0' are both the device cuda:0"),
    ],
)
def test_what_is_no_such_cluster_says_why(cli: Any, tiny: Path, devices: str, said: str) -> None:
    for command in (("optimize",), ("profile",), ("devices",)):
        result = cli(*command, *((tiny,) if command != ("devices",) else ()), "--devices", devices)
        assert result.exit_code in (1, 2)
        assert said in " ".join(result.output.split())
