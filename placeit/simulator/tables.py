"""Convert problems and placements for the compiled functions of :mod:`placeit._core`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit import _core
from placeit.core.conflicts import exclusive
from placeit.core.problem import Problem, once_per_problem
from placeit.core.problem_checks import device_numbers

__all__ = ["as_batch", "compiled"]


@once_per_problem
def compiled(problem: Problem) -> _core.Tables:
    """Return a problem's tables for compiled functions; they are built once per problem."""
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


def as_batch(problem: Problem, placements: ArrayLike) -> NDArray[np.int32]:
    """Return ``int32[B, V]``; ``int[V]`` is a batch of one. Raises PlacementError."""
    return device_numbers(
        "Placements of this problem are rows of", np.atleast_2d(placements), *problem.compute.shape, rows=True
    )
