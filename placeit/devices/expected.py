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
        expected: for the name of each expected device of a node, the present device of a node that it is assumed to equal.

    Raises:
        UsageError: a device is not on a node, or there are not two devices, whose links are needed.
    """
    if expected and len(cluster) < 2:
        raise UsageError(
            "Devices are expected beside two that are there: links to them are taken to be like those between two."
        )
    there, more = dict(zip(cluster.names, cluster.devices, strict=True)), []
    for name, like in expected.items():
        address = parse_device(name)
        if not address.node or like not in there or not there[like].where.node:
            nodes = ", ".join(one for one, device in there.items() if device.where.node)
            raise UsageError(
                f"'{name}' is expected to be like '{like}': both have to be devices of nodes, and the latter has to be there "
                f"({nodes or 'none is'})."
            )
        all_cores = () if address.cores else there[like].all_cores
        more.append(replace(there[like], name=name, address=address, all_cores=all_cores))
    return replace(cluster, devices=(*cluster.devices, *more))
