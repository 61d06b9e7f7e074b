"""The example for Ray Serve: its placement group is made of the devices of the plan."""

from __future__ import annotations

import json
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest

from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.session import Session
from tests.workload.nets import net, write_workload

pytest.importorskip("ray")
pytest.importorskip("fastapi", reason="needs Ray Serve: pip install 'ray[serve]'")

from placeit.devices.nodes import connection, local

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray Serve's own use of pydantic
    from examples import ray_serve

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_placement_group_has_a_bundle_for_each_node_of_the_plan() -> None:
    found = ray_serve.placement_group(["edge1/CPU@0-1", "edge1/cuda:0", "CPU@3", "edge1/ort:CPU@1", "edge2/CPU"])
    assert found["placement_group_bundles"] == [{"CPU": 2, "GPU": 1}, {"CPU": 1, "GPU": 0}, {"CPU": 1, "GPU": 0}]
    assert found["placement_group_bundle_label_selector"] == [{"placeit-node": "edge1"}, {}, {"placeit-node": "edge2"}]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[local.LocalCluster]:
    file = tmp_path / "cluster.json"
    started = local.start(local.names(2), file)
    try:
        connection.connect(started.address, token=started.token)
        yield started
    finally:
        connection.disconnect()
        started.stop(file)


@pytest.mark.slow
@pytest.mark.timeout(600, method="thread")
def test_a_plan_on_two_nodes_is_served_by_ray_serve(
    cluster: local.LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = (f"edge1/CPU@{allowed_cores()[0]}", f"head/CPU@{allowed_cores()[-1]}")
    wanted, entries, inputs = {}, [], {"x": np.full((1, 8), 0.5, np.float32)}
    for name, split in (("one", True), ("two", False)):
        with Session(net(tmp_path, name), ["CPU"], cache=None) as session:
            graph, wanted[name] = session.model.graph, session.reference(inputs)["y"]
        where = np.arange(len(graph)) * 2 // len(graph) if split else np.zeros(len(graph), int)
        placement = Placement(graph.names, where.astype(np.int32), devices, graph.hash, where.astype(np.int32))
        placement.save(tmp_path / f"{name}.json")
        entries.append(f"model: {name}/model.onnx, name: {name}, rate: 1, placement: {name}.json")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(ray_serve, "reach_nodes", lambda *_: None)  # it is connected
    try:
        ray_serve.main([str(write_workload(tmp_path, *entries)), "--port", str(port)], blocking=False)
        groups = connection.ray_module().util.placement_group_table().values()
        assert [sorted(group["bundles"].values(), key=str) for group in groups] == [[{"CPU": 1.0}, {"CPU": 1.0}]]
        assert [len({*group["bundles_to_node_id"].values()}) for group in groups] == [2]
        for name, expected in wanted.items():
            body = json.dumps({key: value.tolist() for key, value in inputs.items()}).encode()
            with urlopen(Request(f"http://127.0.0.1:{port}/{name}", body), timeout=60) as answer:
                np.testing.assert_allclose(json.load(answer)["y"], expected, rtol=1e-4, atol=1e-5)
    finally:
        ray_serve.serve.shutdown()
