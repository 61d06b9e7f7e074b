"""GiPH's data sets of placement problems for training and testing, and an endless stream of random problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import cache, partial
from itertools import count
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args
from zlib import crc32

import numpy as np

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.learning.workloads.churn import churn
from placeit.learning.workloads.device_networks import DeviceNetwork, DeviceNetworkParameters, problem_of, random_device_network
from placeit.learning.workloads.parameters import Choices, draw_parameters
from placeit.learning.workloads.recurrent import grouped_graph, random_recurrent_cell, recurrent_network
from placeit.learning.workloads.registry import Case, Dataset, Split, some_problems
from placeit.learning.workloads.sensor_fusion import SensorFusionCase, random_scene, sensor_fusion_case, sensor_fusion_trace
from placeit.learning.workloads.task_graphs import TaskGraph, TaskGraphParameters, random_task_graph

__all__ = [
    "CHURN",
    "CHURN_NETWORK_CHOICES",
    "GRAPH_CHOICES",
    "MAX_TASKS",
    "MULTI",
    "NETWORK_CHOICES",
    "RANDOM",
    "RECURRENT",
    "SENSOR_FUSION",
    "SINGLE",
    "Case",
    "DatasetKind",
    "Split",
    "cases",
    "churn_cases",
    "draw_problem",
    "giph_dataset",
    "random_cases",
    "random_problem_stream",
    "sensor_fusion_cases",
]

DatasetKind: TypeAlias = Literal["single", "multi", "recurrent", "sensor-fusion"]

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
"""Default values of :class:`TaskGraphParameters` from which random task graphs are drawn."""

NETWORK_CHOICES: Choices = MappingProxyType(
    {
        "devices": (4, 5, 6, 8, 10, 12, 16, 20),
        "speed_heterogeneity": (0.2, 0.4, 0.6),
        "bandwidth_heterogeneity": (0.2, 0.4),
        "support": (0.2, 0.3, 0.5),
    }
)
"""Default values of :class:`DeviceNetworkParameters` from which random device networks are drawn."""

CHURN_NETWORK_CHOICES: Choices = MappingProxyType({**NETWORK_CHOICES, "devices": (20,)})
"""Default values of :class:`DeviceNetworkParameters` for networks that change: GiPH's starts with 20 devices (section 5.1)."""

MAX_TASKS = 100
"""Default limit on the number of tasks of a random task graph."""


def draw_problem(
    rng: np.random.Generator,
    *,
    graphs: Choices = GRAPH_CHOICES,
    networks: Choices = NETWORK_CHOICES,
    max_tasks: int | None = MAX_TASKS,
) -> Problem:
    """Draw parameters, a task graph and a device network, and return the problem of placing one on the other.

    Args:
        rng: random generator.
        graphs: values of :class:`TaskGraphParameters`.
        networks: values of :class:`DeviceNetworkParameters`.
        max_tasks: maximum number of tasks, at least 3; None for no limit. A curriculum raises it from draw to draw.

    Raises:
        UsageError: a parameter does not exist, has no values, or is out of its range.
        ProblemError: graphs have more types of hardware than networks.
    """
    return _draw_case(rng, graphs, networks, max_tasks).problem


def random_problem_stream(
    seed: int,
    *,
    graphs: Choices = GRAPH_CHOICES,
    networks: Choices = NETWORK_CHOICES,
    max_tasks: int | None = MAX_TASKS,
) -> Iterator[Problem]:
    """Yield an endless sequence of problems, each with a new graph and network; see :func:`draw_problem`."""
    return (case.problem for case in random_cases(seed, graphs=graphs, networks=networks, max_tasks=max_tasks))


def random_cases(
    seed: int = 0,
    *,
    graphs: Choices = GRAPH_CHOICES,
    networks: Choices = NETWORK_CHOICES,
    max_tasks: int | None = MAX_TASKS,
) -> Iterator[Case]:
    """Yield the problems of :func:`random_problem_stream` with the parameters drawn for them."""
    rng = _rng(seed, "random")
    while True:
        yield _draw_case(rng, graphs, networks, max_tasks)


def churn_cases(
    seed: int = 0,
    *,
    graphs: Choices = GRAPH_CHOICES,
    networks: Choices = CHURN_NETWORK_CHOICES,
    max_tasks: int | None = MAX_TASKS,
) -> Iterator[Case]:
    """Yield an endless sequence of problems: one random task graph on a network that changes.

    See :func:`placeit.learning.workloads.churn.churn`. The network loses up to four of its devices.
    """
    graph, graph_parameters = _draw_graph(_rng(seed, "churn", "graph"), graphs, max_tasks)
    first, network_parameters = _draw_network(_rng(seed, "churn", "network"), networks)
    for network in churn(first, _rng(seed, "churn", "changes"), min_devices=len(first) - 4):
        yield Case(problem_of(graph, network), {"graph": graph_parameters, "first_network": network_parameters})


_SIZES: Mapping[DatasetKind, int] = {"single": 150, "multi": 500, "recurrent": 150, "sensor-fusion": 450}
_POOL_NETWORKS, _POOL_GRAPHS = 10, 120  # of ``multi``
_CELLS, _STEPS, _BATCH, _GROUPS = 10, (20, 30), (80, 150), 40  # of ``recurrent``
_HALF_TIME_S = 1800.0  # end of the training part of ``sensor-fusion``


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
    """Generate the problems that GiPH trains and tests on (its section 5).

    - ``single``: one device network, with 150 task graphs for training and 150 others for testing.
    - ``multi``: 500 pairs of 10 device networks and 120 task graphs for training, and 500 pairs of other networks and graphs
      for testing.
    - ``recurrent``: ten recurrent cell designs (:mod:`placeit.learning.workloads.recurrent`), with 30 graphs each, on one
      network of 8 devices. A graph is the cell, unrolled 20 to 30 times for a batch of 80 to 150, and merged into 40 groups,
      each of which requires a type of hardware, drawn as for random graphs. Half of the graphs are for training and half for
      testing.
    - ``sensor-fusion``: 450 cases of the first half hour of traffic for training, and 450 of the second half hour for testing
      (:mod:`placeit.learning.workloads.sensor_fusion`).

    Differs from the paper, which does not say how its 500 pairs are divided.

    Args:
        kind: name of the data set.
        seed: seed of all random draws. The same seed gives the same problems, whatever their number.
        train: number of problems for training; None for the paper's number.
        test: number of problems for testing; None for the paper's number.
        graphs: values of :class:`TaskGraphParameters`, for ``single`` and ``multi``.
        networks: values of :class:`DeviceNetworkParameters`, for ``single`` and ``multi``.
        max_tasks: maximum number of tasks of a graph, for ``single`` and ``multi``; None for no limit.

    Raises:
        UsageError: the data set does not exist or has too few problems, or a parameter is not valid.
    """

    def problems(split: Split, size: int | None) -> list[Problem]:
        available = cases(kind, split, seed, graphs=graphs, networks=networks, max_tasks=max_tasks)
        return some_problems(available, kind, split, _SIZES[kind] if size is None else size)

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
    """Yield the problems of :func:`giph_dataset` with their parameters.

    ``single`` is endless; the others end when no pair, no size of a cell or no moment is left.

    Raises:
        UsageError: the data set or the split does not exist, or a parameter is not valid.
    """
    if kind not in get_args(DatasetKind):
        raise UsageError(f"There is no dataset '{kind}'; there are {', '.join(get_args(DatasetKind))}.")
    if split not in get_args(Split):
        raise UsageError(f"There is no split '{split}'; there are {', '.join(get_args(Split))}.")
    match kind:
        case "single":
            return _single(split, seed, graphs, networks, max_tasks)
        case "multi":
            return _multi(split, seed, graphs, networks, max_tasks)
        case "recurrent":
            return _recurrent(split, seed)
        case "sensor-fusion":
            return _sensor_fusion(split, seed)


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


def _recurrent(split: Split, seed: int) -> Iterator[Case]:
    network = recurrent_network(_rng(seed, "recurrent", "network"))
    rng = _rng(seed, "recurrent", "cells")
    cells = [random_recurrent_cell(rng) for _ in range(_CELLS)]
    sizes = np.stack(np.meshgrid(np.arange(_STEPS[0], _STEPS[1] + 1), np.arange(_BATCH[0], _BATCH[1] + 1)), -1).reshape(-1, 2)
    cell_sizes = [rng.permutation(sizes)[split == "test" :: 2] for _ in cells]  # each size of a cell is in only one part
    for i in range(_CELLS * min(map(len, cell_sizes))):
        steps, batch = cell_sizes[i % _CELLS][i // _CELLS].tolist()
        cell, rng = cells[i % _CELLS], _rng(seed, "recurrent", split, i)
        graph = grouped_graph(cell, steps, batch, rng, groups=_GROUPS)
        parameters = {"cell_number": i % _CELLS, "cell": asdict(cell), "steps": steps, "batch": batch, "groups": _GROUPS}
        yield Case(problem_of(graph, network), parameters)


def _sensor_fusion(split: Split, seed: int) -> Iterator[Case]:
    for case in sensor_fusion_cases(split, seed):
        relocation = {
            "migration_bytes": case.migration_bytes.tolist(),
            "static_bytes": case.static_bytes.tolist(),
            "startup_s": [[None if s == np.inf else s for s in row] for row in case.startup_s.tolist()],
        }
        yield Case(case.problem, asdict(case.sighting) | relocation)


def sensor_fusion_cases(split: Split, seed: int = 0) -> Iterator[SensorFusionCase]:
    """Yield the cases of the data set ``sensor-fusion`` with their relocation costs, in random order.

    There are about 5000, one for each moment of that half of the trace.
    """
    scene = random_scene(_rng(seed, "sensor-fusion", "scene"))
    sightings = sensor_fusion_trace(scene, _rng(seed, "sensor-fusion", "traffic"))
    half = [sighting for sighting in sightings if (sighting.time_s < _HALF_TIME_S) == (split == "train")]
    for i in _rng(seed, "sensor-fusion", split).permutation(len(half)).tolist():
        yield sensor_fusion_case(scene, half[i])


def _draw_case(rng: np.random.Generator, graphs: Choices, networks: Choices, max_tasks: int | None) -> Case:
    graph, graph_parameters = _draw_graph(rng, graphs, max_tasks)
    network, network_parameters = _draw_network(rng, networks)
    return Case(problem_of(graph, network), {"graph": graph_parameters, "network": network_parameters})


def _draw_graph(rng: np.random.Generator, choices: Choices, max_tasks: int | None) -> tuple[TaskGraph, dict[str, Any]]:
    parameters = draw_parameters(TaskGraphParameters, choices, rng)
    return random_task_graph(parameters, rng, max_tasks=max_tasks), asdict(parameters)


def _draw_network(rng: np.random.Generator, choices: Choices) -> tuple[DeviceNetwork, dict[str, Any]]:
    parameters = draw_parameters(DeviceNetworkParameters, choices, rng)
    return random_device_network(parameters, rng), asdict(parameters)


def _rng(seed: int, *key: str | int) -> np.random.Generator:
    """Return a generator for one purpose, independent of the draws for other purposes."""
    if seed < 0:
        raise UsageError(f"The seed {seed} is negative; workloads are generated from seeds of at least 0.")
    words = [crc32(part.encode()) if isinstance(part, str) else part for part in key]
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=words))


def _without_parts(draw: Callable[..., Iterator[Case]], split: Split | None, seed: int, **choices: Any) -> Iterator[Case]:  # noqa: ARG001
    return draw(seed, **choices)


RANDOM = Dataset(
    cases=partial(_without_parts, random_cases),
    parts=False,
    draw=lambda rng, max_tasks: draw_problem(rng, max_tasks=max_tasks),
    graphs=GRAPH_CHOICES,
    networks=NETWORK_CHOICES,
)
CHURN = Dataset(cases=partial(_without_parts, churn_cases), parts=False, graphs=GRAPH_CHOICES, networks=CHURN_NETWORK_CHOICES)
SINGLE = Dataset(cases=partial(cases, "single"), size=_SIZES["single"], graphs=GRAPH_CHOICES, networks=NETWORK_CHOICES)
MULTI = Dataset(cases=partial(cases, "multi"), size=_SIZES["multi"], graphs=GRAPH_CHOICES, networks=NETWORK_CHOICES)
RECURRENT = Dataset(cases=partial(cases, "recurrent"), size=_SIZES["recurrent"])
SENSOR_FUSION = Dataset(cases=partial(cases, "sensor-fusion"), size=_SIZES["sensor-fusion"])
