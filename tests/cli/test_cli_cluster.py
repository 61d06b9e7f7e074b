"""``placeit cluster`` and ``--ray-address``, without a cluster; ``tests/nodes`` has one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from placeit.devices.nodes import local


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def remember(file: Path, folder: Path) -> Path:
    """Write what remembers a cluster of which nothing runs any more, and return its folder."""
    folder.mkdir()
    kept = {
        "mark": "0" * 32,
        "address": "127.0.0.1:1",
        "folder": str(folder),
        "nodes": ["head"],
        "processes": [[os.getppid(), 1]],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept))
    return folder


def test_ending_a_cluster_where_none_is_up_is_no_error(cli: Any) -> None:
    assert "No cluster was up." in cli("cluster", "down").stdout
    assert json.loads(cli("cluster", "down", "--json").stdout).items() >= {"address": None, "ended": 0}.items()


def test_a_file_that_remembers_no_cluster_is_named(cli: Any) -> None:
    local.state_file().parent.mkdir(parents=True)
    local.state_file().write_text("{")
    done = cli("cluster", "down")
    assert done.exit_code == 1
    assert "cluster.json, which remembers the cluster" in " ".join(done.stderr.split())


def test_what_a_crashed_cluster_has_left_is_cleaned_up_and_processes_that_took_its_numbers_live(
    cli: Any, tmp_path: Path
) -> None:
    folder = remember(local.state_file(), tmp_path / "gone")
    assert json.loads(cli("cluster", "down", "--json").stdout).items() >= {"address": "127.0.0.1:1", "ended": 0}.items()
    assert not folder.exists()
    assert not local.state_file().exists()


def test_a_cluster_of_a_command_is_ended_if_the_command_was_killed_and_left_to_it_otherwise(cli: Any, tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    files = [local.state_file().with_name(f"command-{pid}.json") for pid in (ended.pid, os.getpid())]
    folders = [remember(file, tmp_path / file.stem) for file in files]
    assert json.loads(cli("cluster", "down", "--json").stdout).items() >= {"address": None, "ended": 0}.items()
    assert [file.exists() for file in files] == [False, True]
    assert [folder.exists() for folder in folders] == [False, True]


@pytest.mark.parametrize("command", [["devices"], ["devices", "--devices", "edge1/CPU"]])
def test_an_address_that_nobody_answers_at_is_an_error(cli: Any, command: list[str]) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = cli(*command, "--ray-address", f"127.0.0.1:{port}")
    assert done.exit_code == 1
    assert f"No server answers at 127.0.0.1:{port}" in " ".join(done.stderr.split())


def test_an_address_without_a_port_is_an_error(cli: Any) -> None:
    assert cli("devices", "--ray-address", "somewhere").exit_code == 2


@pytest.mark.parametrize("command", ["optimize", "profile"])
def test_what_goes_to_no_node_cannot_be_compressed(cli: Any, command: str) -> None:
    done = cli(command, "model.onnx", "--devices", "CPU", "--compress", "fp16")
    assert done.exit_code == 2
    assert "no device is on one" in " ".join(done.stderr.split())
