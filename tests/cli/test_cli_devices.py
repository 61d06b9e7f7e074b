import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.recorded_plugins import GPU, NPU, RecordedCore, recorded, thrown

__all__ = ["recorded"]

LINKED = """
devices:
  here: {runs_on: CORE, slowdown: 2}
  edge: {catalog: jetson-orin-nano}
links:
  - {between: [here, edge], bandwidth: 1 Gbit/s, latency: 1 ms}
"""


def test_everything_that_can_be_named_is_listed(cli: Any, cores: Sequence[str]) -> None:
    result = json.loads(cli("devices", "--no-links", "--json").stdout)
    by_name = {device["name"]: device for device in result["devices"]}
    assert {"CPU", *cores} <= by_name.keys()
    assert result["links"] == []
    cpu = by_name["CPU"]
    assert cpu["kind"] == "openvino"
    assert cpu["full_name"]
    assert cpu["memory_bytes"] > 0
    assert len(cpu["cores"]) >= len(cores)


def test_names_that_ask_for_a_runtime_are_listed_and_can_be_given(cli: Any, cores: Sequence[str]) -> None:
    listed = {device["name"]: device for device in json.loads(cli("devices", "--no-links", "--json").stdout)["devices"]}
    assert listed[cores[0]]["also"] == [f"ort:{cores[0]}", f"torch:{cores[0]}"]
    assert all(name in cli("devices", "--no-links").stdout for name in listed[cores[0]]["also"])
    for name in listed[cores[0]]["also"]:
        (device,) = json.loads(cli("devices", "--no-links", "--devices", name, "--json").stdout)["devices"]
        assert (device["name"], device["kind"], device["also"]) == (name, name.partition(":")[0], [])


def test_links_between_real_devices_are_measured(cli: Any, cores: Sequence[str]) -> None:
    result = json.loads(cli("devices", "--devices", ",".join(cores), "--json").stdout)
    assert [device["name"] for device in result["devices"]] == list(cores)
    assert {(link["src"], link["dst"]) for link in result["links"]} == {(a, b) for a in cores for b in cores if a != b}
    for link in result["links"]:
        assert link["latency_s"] >= 0
        assert link["bandwidth_bytes_per_s"] is None or link["bandwidth_bytes_per_s"] > 0
        assert link["origin"] == "measured"


def test_a_cluster_file_says_what_is_emulated_and_what_is_described(cli: Any, cores: Sequence[str], tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(LINKED.replace("CORE", cores[0]))
    result = cli("devices", "--devices", file)
    assert result.exit_code == 0
    assert f"emulated: {cores[0]} slowed 2x" in result.stdout
    assert "described" in result.stdout
    here, edge = json.loads(cli("devices", "--devices", file, "--json").stdout)["devices"]
    assert (here["emulated"], here["described"], edge["emulated"], edge["described"]) == (True, False, False, True)


@pytest.mark.parametrize("name", ["GPU.7", "CPU@4095", "nonsense", "AUTO", "CPU,CPU", ""])
def test_a_device_that_is_not_there_is_an_error(cli: Any, name: str) -> None:
    result = cli("devices", "--devices", name)
    assert result.exit_code in (1, 2)
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def lost() -> None:
    raise RuntimeError(thrown("[GPU] clFlush, error code: -36 CL_INVALID_COMMAND_QUEUE"))


LOST = "One op cannot be run: [GPU] clFlush, error code: -36 CL_INVALID_COMMAND_QUEUE"


def test_a_device_that_fails_is_listed_as_such_with_what_its_plugin_says(
    cli: Any, recorded: Callable[..., RecordedCore]
) -> None:
    recorded(GPU_0=replace(GPU, running=lost), GPU_1=GPU)
    result = cli("devices", "--no-links")
    assert result.exit_code == 0
    assert f"GPU.0 cannot be used: {LOST}" in result.stdout
    assert "GPU.1 cannot be used" not in result.stdout
    listed = {
        device["name"]: device["unusable"] for device in json.loads(cli("devices", "--no-links", "--json").stdout)["devices"]
    }
    assert listed["GPU.0"] == LOST
    assert (listed["CPU"], listed["GPU.1"]) == (None, None)


def test_naming_a_device_that_fails_is_an_error_whatever_was_measured_before(
    cli: Any, recorded: Callable[..., RecordedCore], cores: Sequence[str]
) -> None:
    recorded(GPU_0=GPU)
    assert cli("devices", "--devices", f"{cores[0]},GPU.0").exit_code == 0  # its links are in the cache now
    recorded(GPU_0=replace(GPU, running=lost))
    result = cli("devices", "--devices", f"{cores[0]},GPU.0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"error: GPU.0 cannot be used: {LOST}" in result.stderr


def test_links_of_devices_without_f32_are_measured_in_f16(cli: Any, recorded: Callable[..., RecordedCore]) -> None:
    core = recorded(NPU=NPU)
    result = cli("devices", "--devices", "CPU,NPU", "--json")
    assert result.exit_code == 0, result.stderr
    assert {(link["src"], link["dst"]) for link in json.loads(result.stdout)["links"]} == {("CPU", "NPU"), ("NPU", "CPU")}
    assert {config["INFERENCE_PRECISION_HINT"] for _, config in core.compiled} == {"f16"}
