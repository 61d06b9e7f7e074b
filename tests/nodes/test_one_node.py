"""What is tried with each change: a node beside this process, and its loss."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from small_models import inception_like

from placeit.core.cluster import Cluster
from placeit.core.errors import ExecutionError, UsageError
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.nodes.device import NodeDevice
from placeit.runtime.runtime import Runtime

pytest.importorskip("ray")
from placeit.devices.nodes import connection, local

THERE, HERE = f"head/CPU@{allowed_cores()[0]}", f"CPU@{allowed_cores()[-1]}"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[connection.Nodes]:
    file = tmp_path_factory.mktemp("cluster") / "cluster.json"
    started = local.start(local.names(1), file)
    try:
        yield connection.connect(started.address, token=started.token)
    finally:
        connection.disconnect()
        started.stop(file)
    assert started.pids() == []


@pytest.fixture
def cluster(nodes: connection.Nodes) -> Cluster:
    return discover([THERE, HERE])


def test_a_killed_device_fails_what_needs_it_says_so_and_leaves_the_others_running(
    cluster: Cluster, nodes: connection.Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    monkeypatch.setattr(nodes, "on_lost", [lambda name, _: lost.append(name)])
    model = inception_like()
    with Runtime(model, coarsen(model.graph), cluster) as runtime:
        groups, values = len(runtime.grouping.groups), model.random_inputs(0)
        segmenter, expected = Segmenter(runtime.grouping, Costs.zero(groups, cluster)), model.reference(None, "f32")(values)
        with runtime.executor(segmenter.plan([g % 2 for g in range(groups)], merge=False)) as executor:
            for name, value in executor.run(values, timeout=60).items():
                np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-4)
            victim = runtime.devices[0]
            assert isinstance(victim, NodeDevice)
            os.kill(victim.pid, signal.SIGKILL)
            with pytest.raises(ExecutionError, match=f"{THERE} is lost"):
                executor.times(1_000_000, timeout=60)
        assert lost == [THERE]
        with runtime.executor(segmenter.plan([1] * groups)) as executor:
            for name, value in executor.run(values, timeout=60).items():
                np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", ":6379", "localhost:x", "localhost:70000"])
def test_what_is_no_address_is_an_error(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        connection.connect(address)
