"""Inputs arrive at a device or a node: their way, and the way back, is a part of the choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import ClusterError
from placeit.core.problem import Problem
from placeit.simulator.arrivals import SimulatedReplica, Stream, serve_streams
from placeit.simulator.simulate import simulate
from placeit.workload.arriving import arrival_device, with_arrivals
from placeit.workload.entries import Workload
from placeit.workload.optimize import optimize_workload
from tests.workload.nets import described, net, write_workload


def cluster(latency: float) -> Cluster:
    found = described(near=2e5, far=1e6)
    return replace(found, links=dict.fromkeys(found.links, Link(1e6, latency, "described")))


def replica(device: str, scale: float = 1.0) -> SimulatedReplica:
    problem = Problem.from_arrays([[0.010]], np.empty((0, 2), int), [], [[1.0]], [[0.0]], device_names=[device])
    return SimulatedReplica(problem, np.zeros(1, np.int32), 2, scale)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_request_takes_the_links_there_and_back(scale: float) -> None:
    for device, way in (("near", 0.0), ("far", 2 * 0.001 * scale + 0.003 + 0.001)):
        made = with_arrivals(replica(device, scale), "near", cluster(0.001), input_bytes=3000, output_bytes=1000)
        assert scale * float(simulate(made.problem, made.placement)[0]) == pytest.approx(0.010 * scale + way)


def test_a_node_is_the_one_of_its_devices_by_any_name() -> None:
    board = Device("board", "CPU", address=Address("CPU", (0,), node="edge1"))
    found = Cluster((*described(near=1e6).devices, board, replace(board, name="edge2/CPU", address=None)))
    assert [arrival_device(at, found) for at in ("edge1", "edge2", "near", "board")] == ["board", "edge2/CPU", "near", "board"]
    with pytest.raises(ClusterError, match="'edge3'"):
        arrival_device("edge3", found)


def test_what_arrives_does_not_wait_for_the_device_there_but_for_its_link() -> None:
    busy = Stream([replica("near", scale=100.0)], np.array([0.0]))  # for a second
    slow = with_arrivals(replica("far"), "near", cluster(0.0), input_bytes=50_000, output_bytes=0)  # 50 ms on the link
    (_, one, other) = serve_streams([busy, Stream([slow], np.array([0.0])), Stream([slow], np.array([0.0]))])
    assert sorted([one.ended[0], other.ended[0]]) == pytest.approx([0.060, 0.110])


def test_a_model_stays_where_its_inputs_arrive_if_the_way_is_long(tmp_path: Path) -> None:
    net(tmp_path, "m", 32, 2)
    for at, latency, device in ((None, 1.0, "far"), ("near", 1.0, "near"), ("near", 1e-6, "far"), ("far", 1.0, "far")):
        more = "" if at is None else f", arrives_at: {at}"
        path = write_workload(tmp_path, f"model: m/model.onnx, name: m, rate: 1{more}")
        found = optimize_workload(path, cluster(latency), budget=2, cache=None)
        assert found.chosen is not None
        assert found.chosen.options[0].placement.counts()[device] > 0
    found.save(tmp_path / "placed.yaml")
    assert Workload.load(tmp_path / "placed.yaml").entries[0].arrives_at == "far"
    path = write_workload(tmp_path, "model: m/model.onnx, name: m, rate: 1, arrives_at: far, devices: [near]")
    with pytest.raises(ClusterError, match=r"The model 'm' of the workload: 'arrives_at' is 'far'.* name one of near, or let"):
        optimize_workload(path, cluster(1.0), budget=2, cache=None)
