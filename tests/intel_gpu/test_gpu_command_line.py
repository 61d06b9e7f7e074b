"""The command line on the CPU and Intel GPUs, from the devices to an exported placement."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.intel_gpu import on_all
from placeit.core.placement import Placement
from placeit.devices.openvino import openvino_core
from placeit.session import Session

Cli = Callable[..., Any]
_SHORT = ("--placer", "heft", "--budget", 5)


@pytest.fixture
def split(session: Session, tmp_path: Path) -> Path:
    """A placement with the stem and the sum on the CPU, and the layers beside each other on the first and the last GPU."""
    on_all(session).save(tmp_path / "split.json")
    return tmp_path / "split.json"


def test_devices_shows_names_memory_drivers_and_links_of_gpus(cli: Cli, devices: Sequence[str], known_costs: None) -> None:
    found = cli("devices", "-d", ",".join(devices))
    assert [device["name"] for device in found["devices"]] == list(devices)
    for device in found["devices"][1:]:
        assert device["kind"] == "openvino"
        assert "Intel" in device["full_name"]
        assert device["memory_bytes"] > 0
        assert device["driver"]
    pairs = {(link["src"], link["dst"]) for link in found["links"]}
    assert pairs == {(src, dst) for src in devices for dst in devices if src != dst}
    assert all(link["origin"] == "measured" and link["latency_s"] >= 0 for link in found["links"])


def test_profile_measures_every_group_on_every_device(cli: Cli, mlp: Path, devices: Sequence[str], known_costs: None) -> None:
    assert cli("inspect", mlp)["graph"]["groups"] == 4
    profiled = cli("profile", mlp, "-d", ",".join(devices))
    assert [device["name"] for device in profiled["devices"]] == list(devices)
    assert all(device["whole_model_s"] > 0 for device in profiled["devices"])
    assert all(group["seconds"].keys() == set(devices) for group in profiled["groups"])


@pytest.mark.parametrize("objective", ["latency", "throughput", "total-cost", "energy"])
def test_optimize_answers_by_each_objective_with_a_placement_that_runs(
    cli: Cli, mlp: Path, devices: Sequence[str], known_costs: None, objective: str, tmp_path: Path
) -> None:
    where: str | Path = ",".join(devices)
    if objective == "energy":
        lines = [f"  d{number}: {{runs_on: {name}, busy_power: 15 W}}\n" for number, name in enumerate(devices)]
        where = tmp_path / "cluster.yaml"
        where.write_text("devices:\n" + "".join(lines))
    answer = cli("optimize", mlp, "-d", where, "--objective", objective, "-o", "answer.json", *_SHORT)
    assert answer["objective"] == objective
    assert answer["chosen"]["measured_s"] > 0
    assert answer["chosen"]["output_error"]["max_rel"] < 1e-4
    assert not [candidate["failed"] for candidate in answer["candidates"] if candidate["failed"]]
    ran = cli(
        "run", mlp, "-p", "answer.json", "-d", where, *(["--requests", 4] if objective == "throughput" else ["--runs", 2])
    )
    assert ran["failed"] is None


def test_optimize_in_float16_keeps_its_tolerance(cli: Cli, mlp: Path, gpu: str) -> None:
    answer = cli("optimize", mlp, "-d", f"CPU,{gpu}", "--precision", "f16", "-o", "answer.json", *_SHORT)
    assert answer["chosen"]["output_error"]["max_rel"] < 2e-2
    assert not [candidate["failed"] for candidate in answer["candidates"] if candidate["failed"]]


def test_pins_put_ops_on_gpus(cli: Cli, mlp: Path, devices: Sequence[str], known_costs: None) -> None:
    pins = {"left": devices[1], "right": devices[-1]}
    options = [word for op, device in pins.items() for word in ("--pin", f"{op}={device}")]
    answer = cli("optimize", mlp, "-d", ",".join(devices), *options, "-o", "answer.json", *_SHORT)
    assert answer["pins"] == pins
    where = Placement.load("answer.json").as_dict()
    assert {op: where[op] for op in pins} == pins
    assert cli("run", mlp, "-p", "answer.json", "--runs", 2)["failed"] is None


def test_run_traces_what_ran_on_each_device(cli: Cli, mlp: Path, split: Path, devices: Sequence[str]) -> None:
    ran = cli("run", mlp, "-p", split, "--runs", 3, "--trace", "trace.json")
    assert ran["output_error"]["max_rel"] < 1e-4
    assert all(ran["utilization"][device] > 0 for device in devices)
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    tracks = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    busy = {event["tid"] for event in events if event["ph"] == "X"}
    assert busy >= {tracks[device] for device in devices}


def test_requests_at_a_rate_are_all_answered(cli: Cli, mlp: Path, split: Path) -> None:
    ran = cli("run", mlp, "-p", split, "--rate", 20, "--requests", 20)
    assert (ran["arrived"], ran["ended"], ran["dropped"], ran["errors"]) == (20, 20, 0, 0)
    assert ran["in_flight"] > 1
    assert ran["output_error"]["max_rel"] < 1e-4


def test_compare_races_a_placement_against_each_device(
    cli: Cli, mlp: Path, split: Path, devices: Sequence[str], known_costs: None
) -> None:
    compared = cli("compare", mlp, "-p", split, "-d", ",".join(devices), "--runs", 3)
    assert {row["name"] for row in compared["candidates"]} >= {str(split), *devices}
    for row in compared["candidates"]:
        assert row["failed"] is None
        assert row["measured_s"] > 0


def test_an_exported_placement_runs_on_gpus_by_hetero(cli: Cli, mlp: Path, split: Path, devices: Sequence[str]) -> None:
    exported = cli("export", mlp, "-p", split, "-o", "placed.xml")
    assert exported["device"].split(":")[0] == "HETERO"
    assert set(exported["device"].split(":")[1].split(",")) == set(devices)
    x = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    core, exact = openvino_core(), {"INFERENCE_PRECISION_HINT": "f32"}
    ours = core.compile_model(core.read_model("placed.xml"), exported["device"], exact)([x])[0]
    np.testing.assert_allclose(ours, core.compile_model(str(mlp), "CPU", exact)([x])[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("GPU,{0}", "are both the device"),
        ("CPU,GPU.9", "There is no device 'GPU.9' on this machine"),
        ("ort:{0}", "ONNX Runtime runs on the CPU and on NVIDIA GPUs"),
        ("{0}@0", "only the CPU has core sets"),
    ],
)
def test_names_that_are_no_devices_are_refused(cli: Cli, mlp: Path, gpu: str, names: str, says: str) -> None:
    result = cli("optimize", mlp, "-d", names.format(gpu), fails=True)
    assert says in " ".join(result.stderr.split())


def test_bfloat16_on_a_gpu_that_lacks_it_is_an_error(cli: Cli, mlp: Path, gpu: str) -> None:
    if "BF16" in openvino_core().get_property(gpu, "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("needs a GPU without bfloat16")
    result = cli("optimize", mlp, "-d", gpu, "--precision", "bf16", "--budget", 1, fails=True)
    assert gpu in result.stderr


def test_replicas_on_a_gpu_and_a_core_serve_beside_each_other(cli: Cli, mlp: Path, pair: Sequence[str]) -> None:
    answer = cli("optimize", mlp, "-d", ",".join(pair), "--objective", "throughput", "-o", "answer.json", *_SHORT)
    both = [candidate for candidate in answer["candidates"] if candidate["replicas"] == 2]
    assert both
    assert all(candidate["failed"] is None for candidate in both)
