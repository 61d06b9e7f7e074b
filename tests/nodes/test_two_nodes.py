"""Models of open sizes on two nodes and in this process: tensors cross with the sizes that they have in each request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from open_models import LENGTHS, OPEN, Arrays, assert_close, at_one_size, attention, divided, values

from placeit.core.errors import PlaceitError
from placeit.core.narrowing import narrowed
from placeit.devices.host import allowed_cores
from placeit.runtime.nodes.device import NodeDevice
from placeit.runtime.nodes.wire import Frame, Kind
from placeit.runtime.serving import Server
from placeit.session import Session
from placeit.workbench.options import Inputs

pytest.importorskip("ray")
from placeit.devices.nodes import connection, local

PATIENCE_S = 240.0  # for an answer: nodes are processes of their own, and cores may be busy
CORES = allowed_cores()
DEVICES = [f"head/CPU@{CORES[0]}", f"edge1/CPU@{CORES[-1]}", f"CPU@{CORES[0]}"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[local.LocalCluster]:
    file = tmp_path_factory.mktemp("cluster") / "cluster.json"
    started = local.start(local.names(2), file)
    try:
        yield started
    finally:
        connection.disconnect()
        started.stop(file)
    assert started.pids() == []


def opened(path: Path) -> Session:
    return Session(path, DEVICES, inputs=Inputs(shapes=OPEN), cache=None)


@pytest.mark.parametrize(("compress", "worst"), [("none", 1e-4), ("int8", 0.1)])
def test_requests_of_all_sizes_are_served_side_by_side(
    cluster: local.LocalCluster, compress: connection.Compression, worst: float, tmp_path: Path
) -> None:
    path = attention(tmp_path)
    connection.connect(cluster.address, token=cluster.token, compress=compress)
    with opened(path) as session, session.serve(divided(session, 6), in_flight=3) as server:
        asked = [values(length, seed) for seed, length in enumerate(LENGTHS * 2)]
        answers = [server.submit(inputs) for inputs in asked]
        for inputs, answer in zip(asked, answers, strict=True):
            found = answer.result(PATIENCE_S)
            for name, wanted in at_one_size(path, inputs).items():
                assert found[name].shape == wanted.shape
                np.testing.assert_allclose(found[name], wanted, rtol=worst, atol=worst)
    connection.disconnect()


def test_a_tensor_of_sizes_out_of_range_ends_the_connection_that_it_came_from(
    cluster: local.LocalCluster, tmp_path: Path
) -> None:
    path = attention(tmp_path)
    inputs: Arrays = values(5)
    connection.connect(cluster.address, token=cluster.token)
    with opened(path) as session, session.serve(divided(session, 3)) as server:
        assert_close(server.submit(inputs).result(PATIENCE_S), at_one_size(path, inputs))
        device = narrowed(NodeDevice, session.runtime.devices[0])
        ahead = next(iter(device.routes.values()))
        number, buffer = ahead.feeds[device][0]
        assert buffer.array().shape == (1, 5)
        device.connection.send(Frame(Kind.DATA, epoch=ahead.epoch + 1, target=number, sizes=(1, 65)), memoryview(b"x"))
        with pytest.raises(PlaceitError, match=f"{DEVICES[0]} is lost"):
            _use_up(server, inputs)
    connection.disconnect()


def _use_up(server: Server, inputs: Arrays) -> None:
    while True:
        server.submit(inputs).result(PATIENCE_S)
