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
    """Return the costs on a cluster with expected devices, each at the costs of an existing device that it is like.

    A link between two devices that are like the same one is as slow as the slowest of its links.

    Args:
        costs: costs on two devices or more.
        cluster: these devices and the expected ones.
        expected: by name of an expected device, the device that it is like.
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
