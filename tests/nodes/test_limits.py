"""Where nodes end: without memory, and without the head of their cluster."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from small_models import ops

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.errors import DeviceError
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.nodes.actor import DeviceActor
from placeit.runtime.nodes.device import NodeDevice
from placeit.runtime.runtime import Runtime

pytest.importorskip("ray")
from placeit.devices.nodes import connection, local

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280, method="thread")]

FIRST, HERE = allowed_cores()[0], f"CPU@{allowed_cores()[-1]}"


def _heavy(megabytes: int) -> OpenVinoModel:
    """A product with a large matrix."""
    weights = np.random.default_rng(0).standard_normal((1000, megabytes * 250), np.float32)
    given = ops.parameter([1, 1000], ov.Type.f32, name="in")
    product = ops.matmul(given, ops.constant(weights), False, False)
    return describe(ov.Model([ops.result(ops.reduce_sum(product, ops.constant([1])))], [given], "heavy"), Path("heavy"))


def test_a_node_that_runs_out_of_memory_while_it_loads_is_an_error_and_nothing_is_left(tmp_path: Path) -> None:
    def limit(actor: DeviceActor) -> None:
        with Path("/proc/self/statm").open() as stat:
            used = int(stat.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))

    file = tmp_path / "cluster.json"
    started = local.start(["head"], file)
    try:
        connection.connect(started.address, token=started.token)
        model, cluster = _heavy(200), discover([f"head/CPU@{FIRST}", HERE])
        with Runtime(model, coarsen(model.graph), cluster) as runtime:
            device, groups = runtime.devices[0], len(runtime.grouping.groups)
            assert isinstance(device, NodeDevice)
            connection.ray_module().get(device._actor.__ray_call__.remote(limit), timeout=60)
            segmenter, begin = Segmenter(runtime.grouping, Costs.zero(groups, cluster)), time.monotonic()
            with pytest.raises(DeviceError, match="memory"):
                runtime.executor(segmenter.plan([0] * groups))
            assert time.monotonic() - begin < 60
            with runtime.executor(segmenter.plan([1] * groups)) as executor:
                executor.run(model.random_inputs(0), timeout=60)
        deadline = time.monotonic() + 60
        while Path(f"/proc/{device.pid}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        connection.disconnect()
        started.stop(file)
    assert started.pids() == []


def test_when_the_head_dies_futures_fail_with_the_reason_or_have_their_answers_from_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, as that survives it."""
    monkeypatch.setitem(local._HEALTH, "RAY_gcs_rpc_server_reconnect_timeout_s", "5")
    file = tmp_path / "cluster.json"
    cluster = local.start(["head"], file)
    try:
        head = cluster.pids()
        local.start_node(cluster, "edge1", local.Place())
        command = [sys.executable, str(Path(__file__).with_name("outlive_head.py")), str(file), *map(str, head)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=200, check=False)
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
