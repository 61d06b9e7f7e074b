"""The problems of PlaceBench, each of which is a model's graph, a cluster and an objective."""

from __future__ import annotations

import functools
import gzip
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from placeit.bench.clusters import CLUSTERS, on_grid
from placeit.core.errors import ProblemError, UsageError
from placeit.core.extras import import_extra
from placeit.core.nearest import nearest
from placeit.core.problem import CostFunction, Problem
from placeit.core.weights import counted_once
from placeit.devices.described import roofline_seconds
from placeit.placers.bound import lower_bound
from placeit.simulator.depth import served
from placeit.simulator.scheduler import EXECUTED_RULES, Rules
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.throughput_bound import ThroughputCost

__all__ = [
    "IN_FLIGHT",
    "OBJECTIVES",
    "VERSION",
    "VERSIONS",
    "BenchProblem",
    "built",
    "known",
    "load",
    "names",
    "stated",
    "stored",
]

VERSIONS = (1, 2)
"""Versions of PlaceBench. Any change of problems, costs or rules is a new version.

In version 1, a weight that several ops read counts for each of them; in version 2, it counts once on each device.
"""

VERSION = VERSIONS[-1]
"""The current version."""

IN_FLIGHT = 8
"""Number of requests in flight, for throughput."""


def stated(rules: Rules) -> dict[str, Any]:
    """Return the rules in the format of submissions."""
    return {"links": rules.links, "queue": rules.queue, "in_flight": IN_FLIGHT}


OBJECTIVES: Mapping[str, str] = {
    "latency": "seconds until the last op has finished",
    "throughput": f"seconds per request with {IN_FLIGHT} requests in flight",
    "memory": "latency, where a device holds an even share of the weights and the largest op's",
}
"""The objectives, with the meaning of their values."""


@dataclass(frozen=True, eq=False)
class BenchProblem:
    """A problem of PlaceBench, or of a file (:func:`placeit.bench.read_problems`). Lower values are better.

    Attributes:
        name: ``MODEL/CLUSTER/OBJECTIVE``, or ``NAME/OBJECTIVE`` for problems of files.
        problem: the ops, the devices and all costs.
        rules: the rules of links and queues.
        unit: unit of values; empty for files that state none.
    """

    name: str
    problem: Problem
    rules: Rules = EXECUTED_RULES
    unit: str = "s"

    @property
    def objective(self) -> str:
        """A key of :data:`OBJECTIVES`, or ``bottleneck``: the seconds of the busiest device or link."""
        return self.name.rpartition("/")[2]

    def cost(self) -> CostFunction:
        """Return the cost function that placers minimise: the makespan, or the seconds of the busiest device or link."""
        if self.objective in ("throughput", "bottleneck"):
            return ThroughputCost(self.problem)
        return SimulatedCost(self.problem, rules=self.rules)

    def value(self, placement: ArrayLike) -> float:
        """Return the value of a placement, ``int[V]``. Raises PlacementError if it is not feasible."""
        place = self.problem.check(placement)
        if self.objective == "throughput":
            return served(self.problem, place, IN_FLIGHT).seconds
        return float(self.cost()(place)[0])

    def bound(self) -> float:
        """Return a lower bound of the values of all placements, without memory limits.

        For latency, :func:`placeit.placers.bound.lower_bound`: the critical path, or the work divided among the devices. For
        throughput, the work divided among the devices, the longest op, or the critical path over the requests in flight. For
        the bottleneck, the work divided among the devices, or the longest op.
        """
        p, cost = self.problem, self.cost()
        if not isinstance(cost, ThroughputCost):
            return lower_bound(p)
        apart = Problem.from_arrays(p.compute, np.zeros((0, 2), np.int32), [], p.bandwidth, p.latency)
        return max(lower_bound(apart), p.critical_path / IN_FLIGHT if self.objective == "throughput" else 0.0)

    def data(self) -> Any:
        """Return the problem as ``torch_geometric.data.Data``, with ops as nodes, and dependencies as edges.

        ``x`` is ``float64[V, D]``, the seconds of each op on each device; ``edge_attr`` is ``float64[E, 1]``, bytes, and
        ``edge_tensor`` numbers the tensors; ``weights``, ``shared``, ``memory``, ``bandwidth`` and ``latency`` are as in the
        problem.

        Raises:
            UsageError: PyTorch Geometric is not installed.
        """
        torch = import_extra("A problem as graph data", "learn", "torch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # importing it compiles TorchScript functions
            geometric = import_extra("A problem as graph data", "learn", "torch_geometric.data")
        p = self.problem
        arrays = {"x": p.compute, "edge_index": p.edges.T.astype(np.int64), "edge_attr": p.edge_bytes[:, None]}
        arrays |= {"weights": p.param_bytes}
        arrays |= {name: getattr(p, name) for name in ("edge_tensor", "memory", "bandwidth", "latency")}
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        return geometric.Data(**tensors, shared=p.shared, num_nodes=len(p), name=self.name)


def names(pattern: str = "*", version: int = VERSION) -> list[str]:
    """Return the names of the problems that match a pattern, such as ``*/gpus4/*``.

    Raises:
        UsageError: no problem matches, or the version does not exist.
    """
    found = [name for name in known(version) if fnmatchcase(name, pattern)]
    if not found:
        raise UsageError(f"No problem of PlaceBench {version} matches '{pattern}'{nearest(pattern, known(version))}.")
    return found


def load(name: str, version: int = VERSION) -> BenchProblem:
    """Return a problem by name.

    Raises:
        UsageError: the problem or the version does not exist.
        ProblemError: the problem differs from the published one, because this installation is damaged.
    """
    if name not in known(version):
        others = [str(other) for other in VERSIONS if name in known(other)]
        there = f"; version {others[-1]} has it" if others else nearest(name, known(version))
        raise UsageError(f"There is no problem '{name}' in PlaceBench {version}{there}.")
    found = built(name, stored()["graphs"][name.partition("/")[0]], version)
    if found.problem.key != known(version)[name]["key"]:
        raise ProblemError(f"'{name}' has other costs than in PlaceBench {version}: install placeit anew.")
    return found


def known(version: int = VERSION) -> Mapping[str, Mapping[str, Any]]:
    """Return the problems of a version by name, with their ``key`` and ``bound``. Raises UsageError if it does not exist."""
    if version not in VERSIONS:
        newer = ": install a newer placeit" if version > VERSION else ""
        raise UsageError(f"This placeit has PlaceBench {VERSIONS[0]} to {VERSION}, not {version}{newer}.")
    found: Mapping[str, Mapping[str, Any]] = stored()["problems"][str(version)]
    return found


@functools.cache
def stored() -> dict[str, Any]:
    """Return the set in the package: its ``graphs``, by model, and its ``problems``, by version and name."""
    data: dict[str, Any] = json.loads(gzip.decompress(resources.files("placeit.bench").joinpath("set.json.gz").read_bytes()))
    return data


def built(name: str, graph: Mapping[str, Any], version: int = VERSION) -> BenchProblem:
    """Build a problem of a version from a stored graph.

    Costs are by the roofline model (:func:`placeit.devices.described.roofline_seconds`).
    """
    _, where, objective = name.split("/")
    cluster = CLUSTERS[where]
    devices, (bandwidth, latency) = cluster.devices, cluster.links()
    edges = np.array(graph["edges"], np.int32).reshape(-1, 3)
    read, shared = np.array(graph["weights"], np.float64), graph["shared"] if version > 1 else ()
    weights = counted_once(read, shared)
    seconds = [roofline_seconds(graph["flops"], graph["bytes"], device) for device in devices]
    memory = np.array([device.memory_bytes for device in devices])
    if objective == "memory":
        memory = np.minimum(memory, np.ceil(weights.sum() / len(devices) + read.max()))
    problem = Problem.from_arrays(
        on_grid(np.stack(seconds, axis=1)),
        edges[:, :2],
        np.array(graph["tensors"], np.float64)[edges[:, 2]],
        bandwidth,
        latency,
        edge_tensor=edges[:, 2],
        param_bytes=weights,
        shared=shared,
        memory=memory,
        op_names=graph["ops"],
        device_names=list(cluster.catalogue),
        kinds=graph["kinds"],
    )
    return BenchProblem(name, problem)
