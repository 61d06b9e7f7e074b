"""``--patience`` of commands that run models on nodes, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from placeit.core.errors import DeviceError
from placeit.devices.nodes import connection


@pytest.mark.parametrize("command", ["optimize", "profile"])
def test_patience_is_that_of_the_connection(cli: Any, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(address: str, *, patience: float, **settings: object) -> None:
        raise DeviceError(f"{address} with {patience}")

    monkeypatch.setattr(connection, "connect", connect)
    nodes = "--devices", "edge1/CPU", "--ray-address", "10.0.0.1:6379"
    assert "10.0.0.1:6379 with 12.5" in cli(command, "model.onnx", *nodes, "--patience", "12.5").stderr
    assert "10.0.0.1:6379 with 5.0" in cli(command, "model.onnx", *nodes).stderr


def test_patience_with_no_node_or_too_little_is_an_error(cli: Any) -> None:
    done = cli("profile", "model.onnx", "--devices", "CPU", "--patience", "12.5")
    assert done.exit_code == 2
    assert "no device is on one" in " ".join(done.stderr.split())
    assert cli("profile", "model.onnx", "--devices", "edge1/CPU", "--patience", "0.5").exit_code == 2
