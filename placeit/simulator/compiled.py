"""Problems as the compiled functions of :mod:`placeit._core` read them."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.conflicts import cliques
from placeit.core.problem import Problem

__all__ = ["compiled", "shared"]

_TABLES: WeakKeyDictionary[Problem, _core.Tables] = WeakKeyDictionary()


def compiled(problem: Problem) -> _core.Tables:
    """Return a problem as compiled functions read it; built once per problem."""
    known = _TABLES.get(problem)
    if known is None:
        known = _TABLES[problem] = _build(problem)
    return known


def shared(problem: Problem) -> NDArray[np.bool_]:
    """Return the sets of several devices of which only one runs at a time, ``bool[C, D]``."""
    groups = cliques(problem.conflicts)
    return np.ascontiguousarray(groups[groups.sum(axis=1) > 1])


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
        cliques=shared(problem),
        order=np.ascontiguousarray(problem.order),
    )
