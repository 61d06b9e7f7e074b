"""Features of nodes and edges that a policy reads: scaled as in gpNets, or as in GiPH's public code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem, once_per_problem
from placeit.learning.agents.giph.gpnet import EDGE_FEATURES, NODE_FEATURES, GpNets

__all__ = ["FEATURES", "criticality", "features"]

FEATURES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {name: (count, len(EDGE_FEATURES)) for name, count in (("costs", 3), ("paper", 4), ("schedule", len(NODE_FEATURES)))}
    | {"public": (5, 5)}
)
"""Numbers of features of a node and of an edge, by name. ``costs``, ``paper`` and ``schedule`` are the first columns of
:data:`~placeit.learning.agents.giph.gpnet.NODE_FEATURES`, of which the first four are the paper's. The paper does not say how
they are scaled. ``public`` are the paper's features and the criticality, scaled as in the public code."""

_SHARPNESS = 10.0  # of the softmax by which an op's criticality is divided between its consumers
_SQUASHED = [0, 2, 3]  # columns of nodes and of edges that gpNets scale logarithmically


def features(nets: GpNets, name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the current features of nodes and of edges, ``float32[N, F]`` and ``float32[M, G]``.

    With ``public``, each feature is scaled to [-1, 1] by its minimum and maximum over the nodes, or edges, of its problem. A
    feature that is equal everywhere is 0; the public code divides by zero there. The criticality does not depend on the
    placement.
    """
    if name != "public":
        return nets.nodes[:, : FEATURES[name][0]].copy(), nets.edges.copy()
    nodes, edges = nets.nodes[:, :4].astype(np.float64), nets.edges.astype(np.float64)
    for values in (nodes, edges):
        values[:, _SQUASHED] = np.sign(values[:, _SQUASHED]) * np.expm1(np.abs(values[:, _SQUASHED]))
    nodes[:, 1] = np.exp(-nodes[:, 1])  # seconds for a unit of work
    edges[:, 1] /= np.maximum(1 - edges[:, 1], 1e-6)  # seconds for a byte; 0 within a device
    of_nodes, of_edges = zip(*map(criticality, nets.problems), strict=True)
    first_op = np.cumsum([0, *map(len, of_nodes)])[:-1]
    nodes = np.column_stack([nodes, np.concatenate(of_nodes)[first_op[nets.graph] + nets.op]])
    edges = np.column_stack([edges, np.concatenate(of_edges)[nets.task_edge]])
    return _scaled(nodes, nets.graph), _scaled(edges, nets.graph[nets.src])


@once_per_problem
def criticality(problem: Problem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the criticality of each op and edge: ``float64[V]`` and ``float64[E]``.

    An op divides its criticality between its consumers in proportion to ``exp(10 bytes / maximum bytes)``; entries have
    criticality 1. Source: ``env/program.py`` of the public code, https://github.com/uidmice/placement-rl.
    """
    source, target = problem.edges.T
    max_bytes = np.zeros(len(problem))
    np.maximum.at(max_bytes, source, problem.edge_bytes)
    max_bytes[max_bytes == 0] = 1.0
    weight = np.exp(_SHARPNESS * problem.edge_bytes / max_bytes[source])
    share = weight / np.bincount(source, weight, len(problem))[source]
    of_op = np.where(np.bincount(target, minlength=len(problem)), 0.0, 1.0)
    for v in problem.order.tolist():
        leaving = problem.successors.row(v)
        np.add.at(of_op, target[leaving], of_op[v] * share[leaving])
    return of_op, share


def _scaled(values: NDArray[np.float64], problem: NDArray[np.int64]) -> NDArray[np.float32]:
    """Scale each column to [-1, 1] over the rows of each problem."""
    low, high = (np.full((problem.max(initial=-1) + 1, values.shape[1]), bound) for bound in (np.inf, -np.inf))
    np.minimum.at(low, problem, values)
    np.maximum.at(high, problem, values)
    width = high[problem] - low[problem]
    return np.where(width > 0, 2 * (values - low[problem]) / np.where(width > 0, width, 1.0) - 1, 0.0).astype(np.float32)
