"""Problems as the compiled functions of :mod:`placeit._core` read them."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from placeit import _core
from placeit.core.conflicts import cliques
from placeit.core.problem import Problem

__all__ = ["compiled"]

_TABLES: WeakKeyDictionary[Problem, _core.Tables] = WeakKeyDictionary()


def compiled(problem: Problem) -> _core.Tables:
    """Return a problem as compiled functions read it; built once per problem."""
    known = _TABLES.get(problem)
    if known is None:
        known = _TABLES[problem] = _build(problem)
    return known


def _build(problem: Problem) -> _core.Tables:
    groups = cliques(problem.conflicts)
    return _core.Tables(
        compute=problem.compute,
        edges=problem.edges,
        edge_bytes=problem.edge_bytes,
        edge_tensor=problem.edge_tensor,
        latency=problem.latency,
        bandwidth=problem.bandwidth,
        cut=problem.cut,
        param_bytes=problem.param_bytes,
        memory=problem.memory,
        conflicts=problem.conflicts,
        cliques=np.ascontiguousarray(groups[groups.sum(axis=1) > 1]),
        order=problem.order,
    )
