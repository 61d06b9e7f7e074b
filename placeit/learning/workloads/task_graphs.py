"""Random task graphs (GiPH, Appendix B.2, after Topcuoglu et al. 2002)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import UsageError
from placeit.learning.workloads.parameters import check_range

__all__ = ["TaskGraph", "TaskGraphParameters", "random_task_graph"]


_MAX_TASKS = 10_000
"""Limit on tasks: edges are drawn in a matrix of all pairs of tasks."""


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """A computation, independent of devices: ``V`` tasks and ``E`` data links.

    Attributes:
        compute: ``float64[V]``, the paper's C_i, in units of compute.
        edges: ``int32[E, 2]``, producer and consumer.
        edge_bytes: ``float64[E]``, the paper's B_ij.
        requires: ``int32[V]``, the type of hardware that each task needs.
        names: unique, ``V`` of them.
        kinds: names of the kinds of tasks, ``V`` of them; empty if not known.
        output_shapes: shape of each task's output, ``V`` of them; empty if not known.
    """

    compute: NDArray[np.float64]
    edges: NDArray[np.int32]
    edge_bytes: NDArray[np.float64]
    requires: NDArray[np.int32]
    names: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    output_shapes: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.compute)


@dataclass(frozen=True)
class TaskGraphParameters:
    """Parameters of :func:`random_task_graph`; in brackets the paper's symbols.

    Attributes:
        tasks: expected number of tasks between entry and exit [M].
        alpha: shape; the larger alpha, the wider and shorter the graph.
        connection: probability of an edge between two tasks of different levels [p_c].
        mean_compute: mean compute requirement of a task [C].
        mean_bytes: mean amount of data on an edge [B].
        compute_heterogeneity: compute is uniform on [C (1 - x), C (1 + x)] [eps_C].
        bytes_heterogeneity: data is uniform on [B (1 - x), B (1 + x)] [eps_B].
        hardware_types: number of types of hardware, of which each task requires one, uniformly.
        level_spread: depth and widths are uniform on their mean times [1 - x, 1 + x]; the paper does not give this range.

    Raises:
        UsageError: a parameter is out of its range.
    """

    tasks: int = 20
    alpha: float = 1.0
    connection: float = 0.1
    mean_compute: float = 100.0
    mean_bytes: float = 1000.0
    compute_heterogeneity: float = 0.4
    bytes_heterogeneity: float = 0.4
    hardware_types: int = 5
    level_spread: float = 0.5

    def __post_init__(self) -> None:
        check_range(self, "tasks", 1, 100_000)
        check_range(self, "alpha", 0.001, 1000)
        check_range(self, "connection", 0, 1)
        check_range(self, "mean_compute", 0, above=True)
        check_range(self, "mean_bytes", 0)
        check_range(self, "compute_heterogeneity", 0, 1)
        check_range(self, "bytes_heterogeneity", 0, 1)
        check_range(self, "hardware_types", 1, 10_000)
        check_range(self, "level_spread", 0, 1)


def random_task_graph(parameters: TaskGraphParameters, rng: np.random.Generator, *, max_tasks: int | None = None) -> TaskGraph:
    """Draw a task graph with one entry and one exit (GiPH, Appendix B.2).

    Between entry and exit there are levels. Their number is uniform with mean sqrt(M) / alpha, and the width of each is uniform
    with mean alpha sqrt(M), both at least one. Any two tasks of different levels are linked with probability p_c, entry and
    exit included. A task without a parent in the previous level gets a random one, and a task without a child is linked to the
    exit, so that the longest path goes through every level. Tasks are numbered level by level.

    Differs from the paper, which also calls M the number of tasks, though the levels and their widths determine this number.
    Here M is the expected number of tasks if alpha sqrt(M) >= 1; a long graph (alpha = 0.1) has at least one task on each of
    its sqrt(M) / alpha levels, and so more than M tasks. Entry and exit take time like other tasks.

    Args:
        parameters: parameters of the generator.
        rng: random generator.
        max_tasks: maximum number of tasks, entry and exit included, at least 3; None for no limit. Levels, then random tasks of
            wide levels, are left out of a larger graph.

    Raises:
        UsageError: ``max_tasks`` is less than 3, or the graph would have more than 10,000 tasks.
    """
    sizes = _level_sizes(parameters, rng, max_tasks)
    level = np.repeat(np.arange(len(sizes)), sizes)
    first = np.concatenate([[0], np.cumsum(sizes)])
    count = len(level)
    if count > _MAX_TASKS:
        raise UsageError(
            f"A random task graph with tasks={parameters.tasks} and alpha={parameters.alpha:g} has {count:,} tasks; at most "
            f"{_MAX_TASKS:,} can be generated. Give a lower 'max_tasks' (--max-tasks), fewer tasks or an alpha closer to 1."
        )
    linked = rng.random((count, count)) < parameters.connection
    linked &= level[:, None] < level[None, :]
    for v in range(1, count):
        before = slice(first[level[v] - 1], first[level[v]])
        if not linked[before, v].any():
            linked[rng.integers(before.start, before.stop), v] = True
    linked[: count - 1, count - 1] |= ~linked[: count - 1].any(axis=1)
    edges = np.argwhere(linked).astype(np.int32)
    return TaskGraph(
        compute=_vary(parameters.mean_compute, parameters.compute_heterogeneity, count, rng),
        edges=edges,
        edge_bytes=_vary(parameters.mean_bytes, parameters.bytes_heterogeneity, len(edges), rng),
        requires=rng.integers(parameters.hardware_types, size=count).astype(np.int32),
        names=tuple(f"task{v}" for v in range(count)),
    )


def _level_sizes(parameters: TaskGraphParameters, rng: np.random.Generator, max_tasks: int | None) -> NDArray[np.int64]:
    """Return the number of tasks of each level, entry and exit included."""
    root, spread = math.sqrt(parameters.tasks), parameters.level_spread
    depth = int(_whole_around(root / parameters.alpha, spread, 1, rng)[0])
    room = math.inf
    if max_tasks is not None:
        if max_tasks < 3:
            raise UsageError(f"'max_tasks' is {max_tasks}; a task graph has an entry, an exit and a task between: 3 at least.")
        room = max_tasks - 2
        depth = min(depth, max_tasks - 2)
    widths = _whole_around(root * parameters.alpha, spread, depth, rng)
    excess = int(max(0, widths.sum() - room))
    if excess:
        spare = np.repeat(np.arange(depth), widths - 1)
        widths -= np.bincount(rng.choice(spare, excess, replace=False), minlength=depth)
    return np.concatenate([[1], widths, [1]])


def _whole_around(mean: float, spread: float, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw integers of at least 1, uniform around the mean; random rounding preserves the mean."""
    drawn = np.floor(_vary(mean, spread, size, rng) + rng.random(size))
    return np.maximum(1, drawn).astype(np.int64)


def _vary(mean: float, heterogeneity: float, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return rng.uniform(mean * (1 - heterogeneity), mean * (1 + heterogeneity), size)
