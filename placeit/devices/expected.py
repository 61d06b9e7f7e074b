"""Devices of nodes that have not joined the Ray cluster yet, and are used when they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.devices.names import parse_device

__all__ = ["with_expected"]


def with_expected(cluster: Cluster, expected: Mapping[str, str]) -> Cluster:
    """Return a cluster with expected devices added.

    Args:
        cluster: the present devices.
        expected: the present device of a node that each expected device of a node is assumed to equal, by the expected
            device's name.

    Raises:
        UsageError: a device is not on a node, or fewer than two devices are present, whose link stands for missing links.
    """
    if expected and len(cluster) < 2:
        raise UsageError("Expected devices need two present devices: links to them are assumed to equal the link of these two.")
    present, added = dict(zip(cluster.names, cluster.devices, strict=True)), []
    for name, like in expected.items():
        address = parse_device(name)
        if not address.node or like not in present or not present[like].where.node:
            nodes = ", ".join(name for name, device in present.items() if device.where.node)
            raise UsageError(
                f"'{name}' cannot be expected to equal '{like}': both have to be devices of nodes, and the second has to be "
                f"present (present devices of nodes: {nodes or 'none'})."
            )
        all_cores = () if address.cores else present[like].all_cores
        added.append(replace(present[like], name=name, address=address, all_cores=all_cores))
    return replace(cluster, devices=(*cluster.devices, *added))
