"""Costs of devices that are not there yet."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from placeit.core.cluster import Cluster, Link
from placeit.planning.segments import Costs

__all__ = ["as_expected"]


def as_expected(costs: Costs, cluster: Cluster, expected: Mapping[str, str]) -> Costs:
    """Return the costs on a cluster that has devices which are expected as well: those of the device that each is like.

    A link between two devices that go by the same one is as slow as any of its links.

    Args:
        costs: of two devices or more.
        cluster: these and the expected ones.
        expected: by name of an expected device, the one that it is like.
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
