"""Devices of other nodes go everywhere by their addresses, until something is to run there: that needs a connection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import placeit
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import DeviceError
from placeit.devices import discover, parse_device
from placeit.devices.clusterfile import read_cluster, write_cluster
from placeit.devices.host import allowed_cores
from placeit.devices.plain import plain_devices
from placeit.planning.coarsen import coarsen
from placeit.profiler.links import probe
from placeit.runtime.runtime import Runtime
from tests.small_models import inception_like
from tests.steady import STEADY

CORE = allowed_cores()[0]
FILE = """
devices:
  near: {{runs_on: CPU@{core}}}
  far: {{runs_on: {runs_on}, memory: 1 GiB}}
links:
  - {{between: [near, far], bandwidth: 1 Gbit/s, latency: 50 us, measured: true}}
"""
REFUSED = "connected to no Ray cluster, whose nodes could be used: give --ray-address"


def read(tmp_path: Path, runs_on: str = f"edge1/CPU@{CORE}") -> Cluster:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE.format(core=CORE, runs_on=runs_on))
    return read_cluster(path, check=False)


@pytest.mark.parametrize("runs_on", ["edge1/CPU", "edge1/CPU@0-1", "edge1/GPU.0", "edge1/ort:cuda:1"])
def test_a_cluster_file_about_other_machines_keeps_their_addresses(tmp_path: Path, runs_on: str) -> None:
    cluster = read(tmp_path, runs_on)
    near, far = cluster.devices
    assert far.address == parse_device(runs_on)
    assert (far.address.node, far.cores) == ("edge1", far.address.cores)
    assert near.address == Address("CPU", (CORE,))
    write_cluster(cluster, tmp_path / "again.yaml")
    again = read_cluster(tmp_path / "again.yaml", check=False)
    assert (again.devices, again.links) == (cluster.devices, cluster.links)


def test_a_cluster_file_may_name_the_same_core_of_two_nodes_and_not_one_core_set_of_a_node_twice(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("devices: {a: {runs_on: x/CPU@0}, b: {runs_on: y/CPU@0}, c: {runs_on: CPU@0}}")
    assert [device.where.node for device in read_cluster(path, check=False).devices] == ["x", "y", ""]
    assert not read_cluster(path, check=False).conflicts().any()
    path.write_text("devices: {a: {runs_on: x/CPU@0}, b: {runs_on: x/CPU@0}}")
    with pytest.raises(DeviceError, match="'a' and 'b' are both x/CPU@0"):
        read_cluster(path, check=False)


def test_a_placement_for_devices_of_other_nodes_can_be_simulated(tmp_path: Path) -> None:
    cluster = read(tmp_path)
    problem = placeit.Problem.from_arrays(
        compute=np.array([[1.0, 2.0], [2.0, 1.0]]),
        edges=np.array([[0, 1]]),
        edge_bytes=np.array([125e6]),
        bandwidth=cluster.bandwidth(),
        latency=cluster.latency(),
    )
    (seconds,) = placeit.simulate(problem, np.array([[0, 1]]))
    assert seconds == pytest.approx(1.0 + 1.0 + 50e-6 + 1.0)


def _runtime(cluster: Cluster) -> object:
    model = inception_like()
    return Runtime(model, coarsen(model.graph), cluster)


@pytest.mark.parametrize(
    "use",
    [
        _runtime,
        lambda cluster: probe(Cluster(cluster.devices)),
        lambda cluster: placeit.optimize(inception_like(), cluster, budget=1.0, cache=None, policy=STEADY),
    ],
    ids=["Runtime", "probe", "optimize"],
)
def test_whatever_is_to_run_there_says_that_nothing_leads_there(tmp_path: Path, use: Callable[[Cluster], object]) -> None:
    cluster = read(tmp_path)
    with pytest.raises(DeviceError, match=REFUSED):
        use(cluster)


@pytest.mark.parametrize("name", ["edge1/CPU", "edge1/CPU@0", "edge1/cuda:0", "edge1/ort:CPU@0"])
def test_nobody_looks_for_them_on_this_machine(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeviceError, match=REFUSED):
        discover(name)
    path = tmp_path / "cluster.yaml"
    path.write_text(f"devices: {{far: {{runs_on: '{name}'}}}}")
    with pytest.raises(DeviceError, match=f"cluster.yaml: .*{REFUSED}"):
        read_cluster(path)


def test_the_whole_cpu_is_never_made_of_core_sets_of_several_nodes(tmp_path: Path) -> None:
    cluster = read(tmp_path)
    assert plain_devices(cluster) == []
    links = {pair: Link(1e9, 1e-6) for pair in (("a", "b"), ("b", "a"))}
    there = (Device("a", address=Address("CPU", (0,), "edge1")), Device("b", address=Address("CPU", (1,), "edge1")))
    assert plain_devices(Cluster(there, links)) == []
