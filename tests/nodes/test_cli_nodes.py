"""The command line on nodes of this machine, each command in a separate process, as users type it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openvino
import pytest

from placeit.devices.host import allowed_cores
from tests.cli.test_cli_workload import plan
from tests.small_models import inception_like
from tests.workload.nets import net

pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, method="thread")]

THERE = [f"head/CPU@{allowed_cores()[0]}", f"edge1/CPU@{allowed_cores()[-1]}"]
TIMEOUT_S = 240  # for a command to end: Python and Ray take long to be imported where cores are busy


class Home:
    """Where commands keep what they remember; all processes that they start can be told by it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        said = {"XDG_STATE_HOME": str(self.folder), "PLACEIT_CACHE": str(self.folder / "cache")}
        return subprocess.Popen(
            [sys.executable, "-m", "placeit", *map(str, arguments)],
            env=os.environ | said | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def told(self, *arguments: object) -> Any:
        """What a command prints with ``--json``."""
        with self.begin(*arguments, "--json") as command:
            out, err = command.communicate(timeout=TIMEOUT_S)
        assert command.returncode == 0, err
        return json.loads(out)

    def refused(self, *arguments: object, **environment: str) -> str:
        """What a command says that ends with exit code 1."""
        with self.begin(*arguments, **environment) as command:
            try:
                _, err = command.communicate(timeout=TIMEOUT_S)
            finally:
                command.kill()
        assert command.returncode == 1, err
        return " ".join(err.split())

    def processes(self) -> dict[int, str]:
        """Those that commands have started and that run now: their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if f"XDG_STATE_HOME={self.folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue  # no process, or one that has ended since
        return {pid: command for pid, command in found.items() if command}

    def remembered(self) -> list[str]:
        """The names of the files that remember clusters."""
        return sorted(file.name for file in self.folder.glob("placeit/*.json"))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    left = made.processes()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == {}
    assert made.remembered() == []


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A cluster of two nodes that was started, and is ended, on the command line."""
    made = Home(tmp_path_factory.mktemp("up"))
    try:
        assert made.told("cluster", "up", "--nodes", 2)["nodes"] == ["head", "edge1"]
        yield made
    finally:
        assert made.told("cluster", "down")["ended"] > 0
    assert made.processes() == {}
    assert made.remembered() == []


@pytest.fixture(scope="module")
def address(up: Home) -> str:
    return str(json.loads((up.folder / "placeit" / "cluster.json").read_text())["address"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.xml"
    openvino.save_model(inception_like().ov_model, path, compress_to_fp16=False)
    return path


def test_devices_of_all_nodes_and_the_links_between_every_two(up: Home, address: str) -> None:
    told = up.told("devices", "--ray-address", address)
    assert {"head/CPU", "edge1/CPU", *THERE} <= {device["name"] for device in told["devices"]}
    assert all(device["driver"].startswith("OpenVINO ") for device in told["devices"])
    ends = {(link["src"], link["dst"]) for link in told["links"]}
    assert ends == {("head/CPU", "edge1/CPU"), ("edge1/CPU", "head/CPU")}
    assert all(link["bandwidth_bytes_per_s"] > 0 and link["latency_s"] > 0 for link in told["links"])


def test_a_model_is_placed_on_nodes_and_runs_there(up: Home, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "placement.json"
    told = up.told("optimize", model, "--devices", ",".join(THERE), "--budget", 4, "--output", file)
    assert set(THERE) <= {device for one in told["candidates"] for device in one["devices"]}
    assert set(json.loads(file.read_text())["devices"]) <= set(THERE)
    ran = up.told("run", model, "--placement", file, "--devices", ",".join(THERE), "--runs", 5)
    assert ran["output_error"]["max_rel"] < 1e-3


def test_with_an_address_and_no_devices_a_model_is_placed_on_all_nodes(
    up: Home, model: Path, address: str, tmp_path: Path
) -> None:
    file = tmp_path / "placement.json"
    told = up.told("optimize", model, "--ray-address", address, "--budget", 3, "--output", file)
    assert {device for one in told["candidates"] for device in one["devices"]} >= {"head/CPU", "edge1/CPU"}


def test_what_no_node_has_is_an_error_and_nothing_of_it_stays_on_the_nodes(up: Home) -> None:
    assert "core 4000" in up.refused("devices", "--devices", "edge1/CPU@4000")
    assert not [command for command in up.processes().values() if "DeviceActor" in command]


def test_a_wrong_token_is_an_error(up: Home, address: str, home: Home, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("ab" * 32)
    said = home.refused("devices", "--ray-address", address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token))
    assert "the token does not match" in said
    assert up.told("devices", "--ray-address", address, "--no-links")["devices"]


def test_a_command_starts_a_cluster_of_its_own_that_no_other_finds_and_ends_it(home: Home) -> None:
    with home.begin("devices", "--devices", ",".join(THERE), "--json") as command:
        until(lambda: home.remembered() == [f"command-{command.pid}.json"])  # before that, it may be a draft
        out, err = command.communicate(timeout=TIMEOUT_S)
    assert command.returncode == 0, err
    assert [device["name"] for device in json.loads(out)["devices"]] == THERE
    assert home.processes() == {}


def test_an_error_ends_the_cluster_that_a_command_has_started(home: Home) -> None:
    assert "core 4000" in home.refused("devices", "--devices", "edge1/CPU@4000")
    assert home.processes() == {}


def test_what_a_killed_command_has_started_ends_with_cluster_down(home: Home) -> None:
    with home.begin("devices", "--devices", ",".join(THERE)) as command:
        until(lambda: any("raylet" in line for line in home.processes().values()))
        command.kill()
        command.communicate(timeout=TIMEOUT_S)
    told = home.told("cluster", "down")
    assert told["address"] is None
    assert told["ended"] > 0
    assert home.processes() == {}


def until(true: Any) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_plan_on_nodes_is_served_on_one_cluster_and_another_plan_is_applied(home: Home, tmp_path: Path) -> None:
    for name in ("one", "two"):
        net(tmp_path, name)
    first = plan(tmp_path, "first", tmp_path, THERE, one=THERE[0], two=THERE[0])
    second = plan(tmp_path, "second", tmp_path, THERE, one=THERE[1], two=THERE[0])
    with home.begin("serve", first, "-d", ",".join(THERE), "--control", "--port", 0, "--no-grpc") as server:
        assert server.stderr is not None
        try:
            url = next(line.split()[1] for line in server.stderr if line.startswith("http: "))
            told = home.told("apply", second, "--to", url)
            assert [model["outcome"] for model in told["models"]] == ["moved", "unchanged"]
        finally:
            server.terminate()
        server.communicate(timeout=TIMEOUT_S)
    assert server.returncode == 0
    assert home.processes() == {}
