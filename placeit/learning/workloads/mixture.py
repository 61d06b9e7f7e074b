"""Problems of every kind, for training policies that place any graph on any devices."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import islice
from types import MappingProxyType

import numpy as np

from placeit.core.problem import Problem
from placeit.learning.workloads.datasets import GRAPH_CHOICES, MAX_TASKS, NETWORK_CHOICES, cases, draw_problem
from placeit.learning.workloads.device_networks import problem_of
from placeit.learning.workloads.parameters import Choices
from placeit.learning.workloads.recurrent import grouped_graph, random_recurrent_cell, recurrent_network
from placeit.learning.workloads.registry import Case, Dataset, Split

__all__ = ["ANY", "draw_any_problem"]

_WIDE_GRAPHS: Choices = MappingProxyType(
    {**GRAPH_CHOICES, "mean_bytes": (10.0, 100.0, 1000.0, 3000.0), "compute_heterogeneity": (0.4, 0.9)}
)
_WIDE_NETWORKS: Choices = MappingProxyType(
    {**NETWORK_CHOICES, "devices": (2, 3, 4, 8), "speed_heterogeneity": (0.0, 0.4, 0.8), "support": (0.8, 1.0)}
)
_SENSOR_FUSION = 500  # cases of the data set ``sensor-fusion`` from which problems are drawn


def draw_any_problem(rng: np.random.Generator, max_tasks: int) -> Problem:
    """Draw a problem of a random kind.

    Half of the problems are GiPH's random problems, and a quarter have few devices that can run nearly every op. An eighth are
    recurrent-cell graphs, each on a random network, and an eighth are cases of the training part of ``sensor-fusion`` (seed 0).
    So a policy that is trained on these problems knows the scene of seed 0, from which the test part is also drawn.

    Args:
        rng: random generator.
        max_tasks: maximum number of tasks of the random problems, at least 3.
    """
    kind = rng.random()
    if kind < 0.5:
        return draw_problem(rng, max_tasks=max_tasks)
    if kind < 0.75:
        return draw_problem(rng, graphs=_WIDE_GRAPHS, networks=_WIDE_NETWORKS, max_tasks=max_tasks)
    if kind < 0.875:
        graph = grouped_graph(random_recurrent_cell(rng), int(rng.integers(20, 31)), int(rng.integers(80, 151)), rng)
        return problem_of(graph, recurrent_network(rng))
    return _sensor_fusion()[int(rng.integers(_SENSOR_FUSION))]


@functools.cache
def _sensor_fusion() -> tuple[Problem, ...]:
    return tuple(case.problem for case in islice(cases("sensor-fusion", "train"), _SENSOR_FUSION))


def _cases(split: Split | None, seed: int) -> Iterator[Case]:  # noqa: ARG001
    rng = np.random.default_rng([seed, 1])
    while True:
        yield Case(draw_any_problem(rng, MAX_TASKS), {})


ANY = Dataset(cases=_cases, parts=False, draw=draw_any_problem, mixed=True)
"""Problems on which the policies that ship with placeit were trained."""
