from __future__ import annotations

import numpy as np
import pytest

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import ClusterError

TWO = (Device("a"), Device("b"))


def test_matrices_follow_device_order_and_have_a_free_diagonal() -> None:
    cluster = Cluster(TWO, {("a", "b"): Link(1e9, 1e-3), ("b", "a"): Link(2e9, 2e-3)})
    np.testing.assert_array_equal(cluster.bandwidth(), [[np.inf, 1e9], [2e9, np.inf]])
    np.testing.assert_array_equal(cluster.latency(), [[0, 1e-3], [2e-3, 0]])
    assert cluster.names == ("a", "b")
    assert len(cluster) == 2


def test_links_that_are_not_known_yet_are_listed_and_have_no_matrix() -> None:
    cluster = Cluster(TWO, {("a", "b"): Link(1e9, 1e-3)})
    assert cluster.missing_links() == [("b", "a")]
    with pytest.raises(ClusterError, match="b -> a is unknown"):
        cluster.bandwidth()


@pytest.mark.parametrize(
    ("devices", "links", "said"),
    [
        ((), {}, "at least one device"),
        ((Device("a"), Device("a")), {}, "named 'a'"),
        (TWO, {("a", "c"): Link(1.0, 0.0)}, "unknown device 'c'"),
        (TWO, {("a", "b"): Link(0.0, 0.0)}, "bandwidth 0.0"),
        (TWO, {("a", "b"): Link(-1.0, 0.0)}, "bandwidth -1.0"),
        (TWO, {("a", "b"): Link(float("nan"), 0.0)}, "bandwidth nan"),
        (TWO, {("a", "b"): Link(1.0, -1.0)}, "latency -1.0"),
        (TWO, {("a", "b"): Link(1.0, float("inf"))}, "latency inf"),
    ],
)
def test_a_cluster_that_makes_no_sense_is_refused(
    devices: tuple[Device, ...], links: dict[tuple[str, str], Link], said: str
) -> None:
    with pytest.raises(ClusterError) as caught:
        Cluster(devices, links)
    assert said in str(caught.value)


def test_a_device_says_whether_it_is_real_emulated_or_described() -> None:
    assert not Device("a").emulated
    assert not Device("a").described
    assert Device("a", slowdown=1.5).emulated
    assert Device("a", "described").described


def test_devices_that_share_cores_or_hardware_conflict() -> None:
    addresses = {
        "wide": Address("CPU", (0, 1)),
        "a": Address("CPU", (0,)),
        "b": Address("CPU", (1,)),
        "beside": Address("CPU", (2, 3)),
        "all": Address("CPU", runtime="ort"),
        "elsewhere": Address("CPU", (0, 1), node="edge1"),
        "gpu": Address("GPU.0"),
        "the same gpu": Address("GPU"),
        "another": Address("GPU.1"),
    }
    cluster = Cluster((*(Device(name, address=where) for name, where in addresses.items()), Device("x", "described")))
    conflicts = cluster.conflicts()
    found = {tuple(sorted((cluster.names[i], cluster.names[j]))) for i, j in np.argwhere(conflicts)}
    with_all = {("a", "all"), ("all", "b"), ("all", "beside"), ("all", "wide")}
    assert found == {("a", "wide"), ("b", "wide"), ("gpu", "the same gpu")} | with_all
    assert (conflicts == conflicts.T).all()


def core_sets(*cores: tuple[int, ...]) -> Cluster:
    return Cluster(tuple(Device(str(i), address=Address("CPU", some)) for i, some in enumerate(cores)))


def test_devices_that_are_apart_have_each_core_once() -> None:
    assert core_sets((0,), (0, 1), (1,)).apart() == [1]
    assert core_sets((0,), (1,)).apart() == [0, 1]
    assert core_sets((0, 1), (1, 2), (3,), (3,)).apart() == [0, 2]
    assert Cluster((Device("edge", "described"), Device("a", address=Address("CPU", (0,))))).apart() == [0, 1]
