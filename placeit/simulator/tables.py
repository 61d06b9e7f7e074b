"""Convert problems to the tables that the compiled functions of :mod:`placeit._core` read."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from placeit import _core
from placeit.core.conflicts import exclusive
from placeit.core.problem import Problem

__all__ = ["compiled"]

_TABLES: WeakKeyDictionary[Problem, _core.Tables] = WeakKeyDictionary()


def compiled(problem: Problem) -> _core.Tables:
    """Return a problem's tables for compiled functions; they are built once per problem."""
    tables = _TABLES.get(problem)
    if tables is None:
        tables = _TABLES[problem] = _build(problem)
    return tables


def _build(problem: Problem) -> _core.Tables:
    return _core.Tables(
        compute=np.ascontiguousarray(problem.compute),
        edges=np.ascontiguousarray(problem.edges),
        edge_bytes=np.ascontiguousarray(problem.edge_bytes),
        edge_tensor=np.ascontiguousarray(problem.edge_tensor),
        latency=np.ascontiguousarray(problem.latency),
        bandwidth=np.ascontiguousarray(problem.bandwidth),
        cut=np.ascontiguousarray(problem.cut),
        param_bytes=np.ascontiguousarray(problem.param_bytes),
        memory=np.ascontiguousarray(problem.memory),
        conflicts=np.ascontiguousarray(problem.conflicts),
        cliques=exclusive(problem.conflicts),
        host=np.ascontiguousarray(problem.host),
        order=np.ascontiguousarray(problem.order),
        tied=np.array([(w, size, v) for w, (size, ops) in enumerate(problem.shared) for v in ops], float).reshape(-1, 3),
    )
