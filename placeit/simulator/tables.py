"""Problems as the compiled functions of the simulator read them."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from placeit.core.conflicts import cliques
from placeit.core.problem import Problem
from placeit.simulator.queues import EDGE, OP, Records

__all__ = ["LINK", "Tables", "link_records", "tables"]

LINK = np.dtype([("latency", "f8"), ("bandwidth", "f8")])


class Tables(NamedTuple):
    """A problem as the kernels read it."""

    compute: NDArray[np.float64]  # [V, D] seconds
    op: Records  # OP[V + 1]
    edge: Records  # EDGE[E]
    link: Records  # LINK[D, D]
    entries: NDArray[np.int32]  # ops without in-edges, ascending
    cut: NDArray[np.float64]  # [E, D] by position, or [0, D] if it is zero everywhere
    memory: NDArray[np.float64]  # [D]
    conflict: NDArray[np.bool_]  # [D * D] whether two devices never run at the same time; [0] if all may
    clique: NDArray[np.bool_]  # [C, D] sets of several devices of which only one runs at a time


_TABLES: WeakKeyDictionary[Problem, Tables] = WeakKeyDictionary()


def tables(problem: Problem) -> Tables:
    """Return a problem as the kernels of :mod:`placeit.simulator.kernel` read it; built once per problem."""
    known = _TABLES.get(problem)
    if known is None:
        known = _TABLES[problem] = _build(problem)
    return known


def link_records(latency: NDArray[np.float64], bandwidth: NDArray[np.float64]) -> Records:
    """Return ``LINK[D, D]`` from seconds and bytes per second of each ordered pair, ``float64[D, D]``."""
    link = np.zeros(latency.shape, LINK)
    link["latency"], link["bandwidth"] = latency, bandwidth
    return link


def conflict_table(conflicts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return ``bool[D, D]`` as the rules take it: row by row, or empty if no devices conflict."""
    return conflicts.flatten() if conflicts.any() else np.zeros(0, np.bool_)


def _build(problem: Problem) -> Tables:
    ops, count = len(problem), len(problem.edges)
    groups = cliques(problem.conflicts)
    out, into = problem.successors, problem.predecessors
    op = np.zeros(ops + 1, OP)
    op["first"], op["in_first"] = out.ptr, into.ptr
    op["indegree"][:-1] = np.diff(into.ptr)
    op["order"][:-1] = problem.order
    op["param_bytes"][:-1] = problem.param_bytes

    edge = np.zeros(count, EDGE)
    edge["tail"], edge["head"] = problem.edges[out.edge].T
    edge["tensor"] = problem.edge_tensor[out.edge]
    edge["size"] = problem.edge_bytes[out.edge]
    position = np.empty(count, np.int32)
    position[out.edge] = np.arange(count)
    edge["into"] = position[into.edge]
    # edges of one tensor form a chain, in edge order
    by_tensor = np.argsort(edge["tensor"], kind="stable")
    linked = np.diff(edge["tensor"][by_tensor].astype(np.int64)) == 0
    edge["opens"] = True
    edge["opens"][by_tensor[1:][linked]] = False
    edge["following"] = -1
    edge["following"][by_tensor[:-1][linked]] = by_tensor[1:][linked]
    edge["shared"] = -1
    shared_of: dict[int, int] = {}
    for p in np.flatnonzero(edge["opens"] & (edge["following"] >= 0)).tolist():
        producer = int(edge["tail"][p])
        number = shared_of[producer] = shared_of.get(producer, -1) + 1
        while p >= 0:
            edge["shared"][p] = number
            p = int(edge["following"][p])
    pairs = edge["tensor"].astype(np.int64) * ops + edge["head"]
    edge["enters"][np.unique(pairs, return_index=True)[1]] = True

    return Tables(
        compute=problem.compute.copy(),
        op=op,
        edge=edge,
        link=link_records(problem.latency, problem.bandwidth),
        entries=np.flatnonzero(np.diff(into.ptr) == 0).astype(np.int32),
        cut=problem.cut[out.edge] if problem.cut.any() else np.zeros((0, problem.devices)),
        memory=problem.memory.copy(),
        conflict=conflict_table(problem.conflicts),
        clique=groups[groups.sum(axis=1) > 1],
    )
