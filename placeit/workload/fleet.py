"""Fleets: many nodes of few classes at sites that a tree of links joins, and the requests that arrive at the sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import WorkloadError
from placeit.workload.entries import Workload

__all__ = ["Demand", "Fleet", "Sites", "total"]


@dataclass(frozen=True, eq=False)
class Sites:
    """Sites, and the links that join each of them to its parent: a star, a tree, or a single site.

    Attributes:
        names: names of the sites.
        parent: ``int32[S]``, the site at the other end of each site's link; -1 for the root, which has no link.
        latency: ``float64[S]``, seconds from one end of the link to the other.
        bandwidth: ``float64[S]``, bytes per second of the link.
        depth: ``int32[S]``, number of links between each site and the root.

    Raises:
        WorkloadError: two sites have the same name, or the links do not form a tree.
    """

    names: Sequence[str]
    parent: NDArray[np.int32]
    latency: NDArray[np.float64]
    bandwidth: NDArray[np.float64]
    depth: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        _check_unique(self.names, "site")
        count = len(self.names)
        depth, ancestor = np.zeros(count, np.int32), self.parent
        for _ in range(count):
            depth += ancestor >= 0
            ancestor = np.where(ancestor < 0, -1, self.parent[ancestor])
        if (ancestor >= 0).any():
            circle = ", ".join(self.names[site] for site in np.flatnonzero(ancestor >= 0)[:5])
            raise WorkloadError(f"The links of the sites form a circle ({circle}): let one of them have no parent.")
        if len(roots := np.flatnonzero(self.parent < 0)) > 1:
            one, other = (self.names[root] for root in roots[:2])
            raise WorkloadError(f"No link joins the sites '{one}' and '{other}': give one of them a parent.")
        object.__setattr__(self, "depth", depth)

    def links(self, one: NDArray[np.int32], other: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the links on the way between pairs of sites, ``int32[K, L]`` with -1 where there are fewer.

        A link has the number of the site below it.

        Args:
            one: ``int32[K]``, the first site of each pair.
            other: ``int32[K]``, the second site of each pair.
        """
        links = []
        while (apart := one != other).any():
            up = apart & (self.depth[one] >= self.depth[other])
            down = apart & ~up
            links.append(np.where(up, one, np.where(down, other, -1)))
            one, other = np.where(up, self.parent[one], one), np.where(down, self.parent[other], other)
        return np.stack(links, axis=1) if links else np.full((len(one), 1), -1, np.int32)

    def inner(self) -> NDArray[np.intp]:
        """Return the sites that other sites have as their parent."""
        return np.unique(self.parent[self.parent >= 0])


@dataclass(frozen=True, eq=False)
class Fleet:
    """Nodes, each of which serves one request at a time, for the models that it holds.

    Attributes:
        sites: the sites of the nodes.
        names: names of the nodes.
        site: ``int32[N]``, the site of each node.
        classes: names of the classes of nodes.
        node_class: ``int32[N]``, the class of each node.
        memory: ``float64[N]``, bytes of weights that each node can hold.

    Raises:
        WorkloadError: two nodes have the same name.
    """

    sites: Sites
    names: Sequence[str]
    site: NDArray[np.int32]
    classes: Sequence[str]
    node_class: NDArray[np.int32]
    memory: NDArray[np.float64]

    def __post_init__(self) -> None:
        _check_unique(self.names, "node")


@dataclass(frozen=True, eq=False)
class Demand:
    """The models that a fleet serves, their costs, and their *sources*: the sites where requests of a model arrive.

    Attributes:
        workload: the models, with their limits and weights. Their rates are not used: each source has a rate.
        seconds: ``float64[M, C]``, seconds of a request on a node of each class; infinite where a model cannot run.
        weights: ``float64[M]``, bytes of weights.
        sent: ``float64[M]``, bytes of a request's inputs and outputs.
        between: ``float64[M]``, bytes that are sent from one part to the next if a model is split.
        model: ``int32[Q]``, the model of each source.
        site: ``int32[Q]``, the site of each source.
        hop: seconds of latency, and bytes per second, between nodes of one site.

    Raises:
        WorkloadError: a model has a number of requests under way in place of a rate.
    """

    workload: Workload
    seconds: NDArray[np.float64]
    weights: NDArray[np.float64]
    sent: NDArray[np.float64]
    between: NDArray[np.float64]
    model: NDArray[np.int32]
    site: NDArray[np.int32]
    hop: tuple[float, float]

    def __post_init__(self) -> None:
        for entry in self.workload:
            if entry.rate is None:
                raise WorkloadError(f"The model '{entry.name}' of a fleet needs a 'rate' in place of 'in_flight'.")

    @property
    def limits(self) -> NDArray[np.float64]:
        """The limits on latency, ``float64[M]`` seconds; infinite without a limit."""
        return np.array([entry.limited.seconds for entry in self.workload])

    @property
    def late(self) -> float:
        """The share of requests that may be late by the strictest limit."""
        return min(1.0 - entry.limited.percentile / 100 for entry in self.workload)


def _check_unique(names: Sequence[str], what: str) -> None:
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise WorkloadError(f"The {what} '{twice}' appears twice: give one of them another name.")


def total(index: NDArray[Any], values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the sum of the values with each index below ``count``, ``float64[count]``; 0 for an index without values."""
    return np.bincount(index, values, count).astype(np.float64)
