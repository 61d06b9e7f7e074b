"""Costs of devices that are expected to join a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from placeit.core.cluster import Cluster, Link
from placeit.planning.segments import Costs

__all__ = ["as_expected"]


def as_expected(costs: Costs, cluster: Cluster, expected: Mapping[str, str]) -> Costs:
    """Extend costs to expected devices, each of which has the costs of an existing device.

    The link between two devices with the costs of one existing device is as slow as the slowest link of that device.

    Args:
        costs: costs on two or more existing devices.
        cluster: the existing and the expected devices.
        expected: for each expected device, the name of the existing device whose costs it has.
    """
    if not expected:
        return costs
    there, links = costs.cluster.names, costs.cluster.links
    of = [there.index(expected.get(name, name)) for name in cluster.names]
    known = dict[tuple[str, str], Link]()
    for (a, i), (b, j) in itertools.permutations(zip(cluster.names, of, strict=True), 2):
        if i != j:
            known[a, b] = links[there[i], there[j]]
        else:
            its = [link for pair, link in links.items() if there[i] in pair]
            known[a, b] = Link(min(link.bandwidth for link in its), max(link.latency for link in its))
    load, read = np.broadcast_to(costs.load, costs.core.shape), np.broadcast_to(costs.read, costs.dispatch.shape)
    return replace(
        costs,
        core=costs.core[:, of],
        cut=costs.cut[:, of],
        dispatch=costs.dispatch[of],
        cluster=replace(cluster, links=known),
        load=load[:, of],
        read=read[of],
        host=costs.hosts[[*of, len(there)]],
    )
