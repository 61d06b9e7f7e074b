"""A plug-in's kind of device adds device names to the command line: ``sleep:0``."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError, UsageError
from placeit.devices import discover, parse_device, parse_devices
from placeit.devices.clusterfile import read_cluster, write_cluster
from placeit.devices.discovery import available, resolve
from placeit.devices.host import allowed_cores
from tests.plugin_site import install_sample

CORE = f"CPU@{allowed_cores()[0]}"
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sample plug-in, installed for this test."""
    paths = install_sample(tmp_path / "site")
    for path in paths:
        monkeypatch.syspath_prepend(path)
    return paths


@pytest.fixture
def placeit(plugin: list[str], tmp_path: Path, cost_cache: Path) -> Callable[..., dict[str, Any]]:
    """Run ``placeit`` as a process, and return what it prints as JSON."""
    path = os.pathsep.join([*plugin, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "PLACEIT_CACHE": str(cost_cache)}

    def call(*args: object) -> dict[str, Any]:
        command = [sys.executable, "-m", "placeit", *map(str, args), "--json"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return call


def test_a_placement_on_a_plugins_device_and_a_core_is_run(
    placeit: Callable[..., dict[str, Any]], place_on: Callable[[Sequence[str]], Path], tiny: Path
) -> None:
    placed = place_on(["sleep:0", CORE])
    report = placeit("run", tiny, "--placement", placed, "--devices", f"sleep:0,{CORE}", "--runs", "3")
    there, back = f"{CORE} -> sleep:0", f"sleep:0 -> {CORE}"  # its own cable
    assert report["utilization"].keys() == {"sleep:0", CORE, there, back}
    assert report["latency_s"]["median"] > 0.001
    assert report["output_error"]["max_rel"] < 1e-3


def test_its_devices_are_listed_with_what_the_plugin_says_of_them(plugin: list[str], cli: Callable[..., Any]) -> None:
    listed = {device["name"]: device for device in json.loads(cli("devices", "--no-links", "--json").stdout)["devices"]}
    assert {"sleep:0", "sleep:1", "CPU"} <= listed.keys()
    board = listed["sleep:1"]
    assert (board["kind"], board["runs_on"], board["memory_bytes"]) == ("sleep", "sleep:1", 1e9)
    assert (board["full_name"], board["cores"]) == ("A board that sleeps", [])
    named = json.loads(cli("devices", "--devices", f"sleep:0,{CORE}", "--json").stdout)
    assert [device["name"] for device in named["devices"]] == ["sleep:0", CORE]
    assert {(link["src"], link["dst"]) for link in named["links"]} == {("sleep:0", CORE), (CORE, "sleep:0")}


def test_hardware_that_others_know_can_be_asked_for_with_the_kinds_prefix(plugin: list[str]) -> None:
    (device,) = discover(f"sleep:{CORE}").devices
    assert (device.name, device.kind, device.driver) == (f"sleep:{CORE}", "sleep", "sleep 1.0")
    assert device.address == Address("CPU", allowed_cores()[:1], runtime="sleep")
    assert device.cores == allowed_cores()[:1]


def test_its_names_are_parsed_and_go_through_cluster_files(plugin: list[str], tmp_path: Path) -> None:
    for text in ("sleep:0", "sleep:west.1", "edge/sleep:0", "sleep:CPU@0-1", "sleep:cuda:0", "sleep:GPU.1"):
        assert str(parse_device(text)) == text
    assert parse_device("edge/sleep:0") == Address("sleep:0", node="edge")
    assert parse_device("sleep:cuda:0") == Address("cuda:0", runtime="sleep")
    file = tmp_path / "cluster.yaml"
    file.write_text(f"devices:\n  board: {{runs_on: 'sleep:0', slowdown: 2}}\n  core: {{runs_on: {CORE}}}\n")
    cluster = read_cluster(file)
    assert [(device.kind, str(device.address)) for device in cluster.devices] == [("sleep", "sleep:0"), ("openvino", CORE)]
    assert cluster.devices[0].full_name == "A board that sleeps"
    write_cluster(cluster, tmp_path / "again.yaml")
    assert read_cluster(tmp_path / "again.yaml").devices == cluster.devices


@pytest.mark.parametrize(
    ("names", "error", "said"),
    [
        ("sleep:7", DeviceError, "no device 'sleep:7' on this machine. Devices that 'sleep' finds: sleep:0, sleep:1."),
        ("sleep:0,sleep:0", UsageError, "listed twice"),
        ("sleep:CPU@4000", DeviceError, "may not use"),
        ("sleep:", UsageError, "'sleep:'"),
        ("sleep:HETERO", UsageError, "virtual"),
        ("edge/sleep:0", DeviceError, "connected to no Ray cluster"),
        ("slep:0", UsageError, "'slep:0' is not a device"),
    ],
)
def test_a_name_that_is_wrong_says_why(plugin: list[str], names: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as caught:
        discover(names)
    assert said in str(caught.value)


def test_a_plugin_that_cannot_be_loaded_is_left_out_of_the_list_with_a_warning_and_an_error_by_name(
    plugin: list[str], cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "placeit_round_robin.sleep", None)
    listed = cli("devices", "--no-links", "--json")
    assert "CPU" in {device["name"] for device in json.loads(listed.stdout)["devices"]}
    assert "kind 'sleep' are not listed" in listed.stderr
    refused = cli("devices", "--devices", "sleep:0")
    assert refused.exit_code != 0
    assert "'sleep' (placeit_round_robin.sleep:KIND) cannot be loaded" in refused.stderr


def test_two_kinds_may_number_their_hardware_alike(plugin: list[str]) -> None:
    assert len(parse_devices("sleep:0,sleep:1,cuda:0,edge/sleep:0")) == 4


def test_without_the_plugin_its_names_are_no_devices() -> None:
    with pytest.raises(UsageError, match="'sleep:0' is not a device"):
        parse_device("sleep:0")


@pytest.mark.parametrize(
    "wrong",
    [
        Device("board", "sleep", Address("sleep:0")),
        Device("sleep:0", "other", Address("sleep:0")),
        Device("sleep:0", "sleep"),
        Device("CPU", "sleep", Address("CPU")),
    ],
    ids=["name", "kind", "no address", "hardware of others"],
)
def test_devices_that_could_not_be_asked_for_by_name_are_the_plugins_error(
    plugin: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wrong: Device
) -> None:
    from placeit_round_robin import sleep

    monkeypatch.setattr(sleep.SleepKind, "devices", lambda self: [wrong])
    with pytest.raises(UsageError, match="plug-in's kind of device 'sleep' lists"):
        resolve([Address("sleep:0")])
    assert not [device for device in available() if device.kind == "sleep"]
    assert "Devices of the kind 'sleep' are not listed" in caplog.text


def test_a_kind_may_say_which_hardware_its_names_accept(plugin: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from placeit_round_robin import sleep

    monkeypatch.setattr(sleep.SleepKind, "hardware", ("CPU",))
    assert [str(parse_device(name)) for name in ("sleep:0", "sleep:CPU@0")] == ["sleep:0", "sleep:CPU@0"]
    with pytest.raises(UsageError, match=r"sleep does not run on 'GPU\.0'"):
        parse_device("sleep:GPU.0")
