"""Sets of placement problems to train and test on, as GiPH uses them, and an endless stream of fresh ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from itertools import count, islice
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args
from zlib import crc32

import numpy as np

from placeit.errors import UsageError
from placeit.problem import Problem
from placeit.workloads.device_networks import DeviceNetwork, DeviceNetworkParameters, problem_of, random_device_network
from placeit.workloads.parameters import Choices, draw_parameters
from placeit.workloads.task_graphs import TaskGraph, TaskGraphParameters, random_task_graph

__all__ = [
    "GRAPH_CHOICES",
    "MAX_TASKS",
    "NETWORK_CHOICES",
    "Case",
    "DatasetKind",
    "Split",
    "cases",
    "draw_problem",
    "giph_dataset",
    "random_problem_stream",
]

DatasetKind: TypeAlias = Literal["single", "multi"]
Split: TypeAlias = Literal["train", "test"]

GRAPH_CHOICES: Choices = MappingProxyType(
    {
        "tasks": (10, 15, 20, 30, 40, 60, 80),
        "alpha": (0.1, 0.2, 0.3, 0.5, 1.0, 2.0),
        "connection": (0.05, 0.1, 0.2, 0.4),
        "mean_bytes": (100.0, 1000.0),
        "compute_heterogeneity": (0.2, 0.4, 0.6),
        "bytes_heterogeneity": (0.2, 0.4, 0.6),
    }
)
"""Values of :class:`TaskGraphParameters` that random task graphs are drawn from unless told otherwise."""

NETWORK_CHOICES: Choices = MappingProxyType(
    {
        "devices": (4, 5, 6, 8, 10, 12, 16, 20),
        "speed_heterogeneity": (0.2, 0.4, 0.6),
        "bandwidth_heterogeneity": (0.2, 0.4),
        "support": (0.2, 0.3, 0.5),
    }
)
"""Values of :class:`DeviceNetworkParameters` that random device networks are drawn from unless told otherwise."""

MAX_TASKS = 100
"""Most tasks of a random task graph unless told otherwise."""


@dataclass(frozen=True, eq=False)
class Case:
    """A problem and what it was generated from.

    Attributes:
        problem: the problem.
        parameters: what was drawn for it, as JSON can hold it.
    """

    problem: Problem
    parameters: Mapping[str, Any]


def draw_problem(
    rng: np.random.Generator,
    *,
    graphs: Choices = GRAPH_CHOICES,
    networks: Choices = NETWORK_CHOICES,
    max_tasks: int | None = MAX_TASKS,
) -> Problem:
    """Draw parameters, a task graph and a device network, and return the problem of placing one on the other.

    Args:
        rng: what is drawn from.
        graphs: values of :class:`TaskGraphParameters`.
        networks: values of :class:`DeviceNetworkParameters`.
        max_tasks: most tasks, at least 3; None for no limit. A curriculum raises it from draw to draw.

    Raises:
        UsageError: a parameter that does not exist, has no values or is out of range.
        ProblemError: graphs with more types of hardware than networks.
    """
    graph, _ = _draw_graph(rng, graphs, max_tasks)
    network, _ = _draw_network(rng, networks)
    return problem_of(graph, network)


def random_problem_stream(
    seed: int,
    *,
    graphs: Choices = GRAPH_CHOICES,
    networks: Choices = NETWORK_CHOICES,
    max_tasks: int | None = MAX_TASKS,
) -> Iterator[Problem]:
    """Yield fresh problems without end, each of a graph and a network of its own; see :func:`draw_problem`."""
    rng = np.random.default_rng(seed)
    while True:
        yield draw_problem(rng, graphs=graphs, networks=networks, max_tasks=max_tasks)


_SIZES: Mapping[DatasetKind, int] = {"single": 150, "multi": 500}
_POOL_NETWORKS, _POOL_GRAPHS = 10, 120


def giph_dataset(
    kind: DatasetKind,
    seed: int = 0,
    *,
    train: int | None = None,
    test: int | None = None,
    graphs: Choices = GRAPH_CHOICES,
    networks: Choices = NETWORK_CHOICES,
    max_tasks: int | None = MAX_TASKS,
) -> tuple[list[Problem], list[Problem]]:
    """Return the problems that GiPH trains and tests on, generated afresh (its section 5).

    - ``single``: one device network, 150 task graphs to train and 150 others to test.
    - ``multi``: 500 pairs out of 10 device networks and 120 task graphs to train, and as many out of other networks and graphs
      to test.

    Args:
        kind: which problems.
        seed: the same seed gives the same problems; more problems begin with the fewer.
        train: how many to train on; None for the paper's number.
        test: how many to test on; None for the paper's number.
        graphs: values of :class:`TaskGraphParameters`, for ``single`` and ``multi``.
        networks: values of :class:`DeviceNetworkParameters`, for ``single`` and ``multi``.
        max_tasks: most tasks of a graph, for ``single`` and ``multi``; None for no limit.

    Raises:
        UsageError: no such kind, more problems than there are, or parameters that are wrong.
    """

    def problems(split: Split, size: int | None) -> list[Problem]:
        available = cases(kind, split, seed, graphs=graphs, networks=networks, max_tasks=max_tasks)
        wanted = _SIZES[kind] if size is None else size
        found = [case.problem for case in islice(available, wanted)]
        if len(found) < wanted:
            raise UsageError(f"There are {len(found)} problems of kind '{kind}' to {split} with, fewer than {wanted}.")
        return found

    return problems("train", train), problems("test", test)


def cases(
    kind: DatasetKind,
    split: Split,
    seed: int = 0,
    *,
    graphs: Choices = GRAPH_CHOICES,
    networks: Choices = NETWORK_CHOICES,
    max_tasks: int | None = MAX_TASKS,
) -> Iterator[Case]:
    """Generate the problems of :func:`giph_dataset` one by one, with what they were generated from.

    There is no end to ``single``; the others end when no pair is left.

    Raises:
        UsageError: no such kind or split, or parameters that are wrong.
    """
    if kind not in get_args(DatasetKind):
        raise UsageError(f"There is no dataset '{kind}'; there are {', '.join(get_args(DatasetKind))}.")
    if split not in get_args(Split):
        raise UsageError(f"There is no split '{split}'; there are {', '.join(get_args(Split))}.")
    if seed < 0:
        raise UsageError(f"The seed of a dataset is {seed}; it must not be negative.")
    if kind == "single":
        return _single(split, seed, graphs, networks, max_tasks)
    return _multi(split, seed, graphs, networks, max_tasks)


def _single(split: Split, seed: int, graphs: Choices, networks: Choices, max_tasks: int | None) -> Iterator[Case]:
    network, network_parameters = _draw_network(_rng(seed, "single", "network"), networks)
    for i in count():
        graph, graph_parameters = _draw_graph(_rng(seed, "single", split, i), graphs, max_tasks)
        yield Case(problem_of(graph, network), {"graph": graph_parameters, "network": network_parameters})


def _multi(split: Split, seed: int, graphs: Choices, networks: Choices, max_tasks: int | None) -> Iterator[Case]:
    @cache
    def graph(i: int) -> tuple[TaskGraph, dict[str, Any]]:
        return _draw_graph(_rng(seed, "multi", split, "graph", i), graphs, max_tasks)

    @cache
    def network(i: int) -> tuple[DeviceNetwork, dict[str, Any]]:
        return _draw_network(_rng(seed, "multi", split, "network", i), networks)

    for pair in _rng(seed, "multi", split, "pairs").permutation(_POOL_NETWORKS * _POOL_GRAPHS).tolist():
        (g, graph_parameters), (n, network_parameters) = graph(pair // _POOL_NETWORKS), network(pair % _POOL_NETWORKS)
        numbers = {"graph_number": pair // _POOL_NETWORKS, "network_number": pair % _POOL_NETWORKS}
        yield Case(problem_of(g, n), {**numbers, "graph": graph_parameters, "network": network_parameters})


def _draw_graph(rng: np.random.Generator, choices: Choices, max_tasks: int | None) -> tuple[TaskGraph, dict[str, Any]]:
    parameters = draw_parameters(TaskGraphParameters, choices, rng)
    return random_task_graph(parameters, rng, max_tasks=max_tasks), asdict(parameters)


def _draw_network(rng: np.random.Generator, choices: Choices) -> tuple[DeviceNetwork, dict[str, Any]]:
    parameters = draw_parameters(DeviceNetworkParameters, choices, rng)
    return random_device_network(parameters, rng), asdict(parameters)


def _rng(seed: int, *key: str | int) -> np.random.Generator:
    """Return a generator for one purpose: what is drawn for others, before or after, does not change what it gives."""
    words = [crc32(part.encode()) if isinstance(part, str) else part for part in key]
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=words))
