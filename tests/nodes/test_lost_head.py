"""Nodes whose cluster loses its head."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from placeit.devices.host import allowed_cores

pytest.importorskip("ray")
from placeit.devices.nodes import local

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, method="thread")]

FIRST, HERE = allowed_cores()[0], f"CPU@{allowed_cores()[-1]}"


def test_when_the_head_dies_futures_fail_with_the_reason_or_have_their_answers_from_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session runs in a separate process, which has to survive the death of the head."""
    monkeypatch.setitem(local._HEALTH, "RAY_gcs_rpc_server_reconnect_timeout_s", "5")
    file = tmp_path / "cluster.json"
    cluster = local.start(["head"], file)
    try:
        head = cluster.pids()
        local.start_node(cluster, "edge1", local.Place())
        command = [sys.executable, str(Path(__file__).with_name("outlive_head.py")), str(file), *map(str, head)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    finally:
        cluster.stop(file)
    assert cluster.pids() == []
    assert "edge1/CPU@" in told["why"]
    assert "is lost" in told["why"]
    assert told["unsettled"] == 0
    assert told["replaced"][0].startswith("head/CPU@")
    assert told["devices"] == [HERE]
