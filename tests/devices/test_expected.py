"""Devices of nodes that are not there yet."""

from __future__ import annotations

import pytest

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import UsageError
from placeit.devices.expected import with_expected


def cluster(*names: str) -> Cluster:
    return Cluster(tuple(Device(name, address=Address("CPU", (0,), *name.split("/")[:-1])) for name in names))


def test_a_device_that_is_expected_is_like_another_one_but_on_its_own_node() -> None:
    made = with_expected(cluster("CPU@0", "edge1/CPU@0"), {"edge2/CPU@0-1": "edge1/CPU@0"})
    assert made.names == ("CPU@0", "edge1/CPU@0", "edge2/CPU@0-1")
    assert made.devices[2].address == Address("CPU", (0, 1), "edge2")


@pytest.mark.parametrize(
    ("there", "name", "like", "said"),
    [
        (["edge1/CPU@0"], "edge2/CPU@0", "edge1/CPU@0", "need two present devices"),
        (["CPU@0", "edge1/CPU@0"], "CPU@1", "edge1/CPU@0", "both have to be devices of nodes"),
        (["CPU@0", "edge1/CPU@0"], "edge2/CPU@0", "CPU@0", r"has to be present \(present devices of nodes: edge1/CPU@0\)"),
        (["CPU@0", "CPU@1"], "edge2/CPU@0", "edge3/CPU@0", r"has to be present \(present devices of nodes: none\)"),
    ],
)
def test_a_device_that_cannot_be_expected_is_an_error(there: list[str], name: str, like: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        with_expected(cluster(*there), {name: like})
