"""Bound the requests per second of a placement by its busiest resource.

At best, many requests in flight keep one resource busy all the time. So no order of work takes less, per request, than the
seconds that one request keeps the busiest resource busy. The resources are

- each device: ``compute``, and ``cut`` once for each tensor that enters the device or leaves it. (For one request,
  :mod:`placeit.simulator.simulate` charges ``cut`` to each consumer of a device: the segments of a plan are few, and read a
  tensor once each.);
- each set of devices of which only one runs at a time (``Problem.conflicts``): their busy seconds, summed;
- each ordered pair of devices, a ``channel``: ``latency + bytes / bandwidth`` of every tensor that goes that way, once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit import _core
from placeit.core.conflicts import exclusive
from placeit.core.problem import Problem
from placeit.simulator.tables import as_batch, compiled

__all__ = [
    "Bottleneck",
    "ThroughputCost",
    "bottleneck",
    "min_seconds",
    "relative_throughput",
]


class ThroughputCost:
    """Lower bound of the seconds per request of placements: ``cost(placements: int32[B, V]) -> float64[B]``.

    An infeasible placement (an op where it cannot run, weights that exceed a device's memory) costs ``inf``.

    Args:
        problem: the problem whose placements are valued.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._compiled = compiled(problem)

    @property
    def model(self) -> _core.CostModel:
        """The cost function for compiled searches."""
        return _core.CostModel.capacity(self._compiled)

    def __call__(self, placements: ArrayLike) -> NDArray[np.float64]:
        """Return ``float64[B]`` seconds per request of ``int[B, V]`` placements; ``int[V]`` is a batch of one.

        Raises:
            PlacementError: wrong shape, or a device number that does not exist.
        """
        array = as_batch(self.problem, placements)
        out = np.empty(len(array))
        _core.seconds_per_request(self._compiled, array, out)
        return out


@dataclass(frozen=True)
class Bottleneck:
    """The resource that limits how many requests a placement serves.

    Attributes:
        name: the busiest resource: a device, ``CPU@0, CPU@0-1`` for devices that share cores, ``CPU@0 -> CPU@1`` for a link.
        seconds: seconds that one request keeps it busy: the least seconds per request.
        busy: seconds that one request keeps each resource busy, by name; links only if a tensor crosses them.
    """

    name: str
    seconds: float
    busy: dict[str, float]


def bottleneck(problem: Problem, placement: ArrayLike) -> Bottleneck:
    """Return the resource that limits a placement, ``int[V]``: of several, the first of devices, conflicting devices, links.

    Raises:
        PlacementError: the placement is infeasible.
    """
    width, names = problem.devices, problem.device_names
    groups = [", ".join(names[d] for d in np.flatnonzero(clique)) for clique in exclusive(problem.conflicts)]
    seconds = np.empty(width + len(groups) + width * width)
    _core.busy_seconds(compiled(problem), np.array(problem.check(placement)), seconds)
    links = [f"{src} -> {dst}" for src in names for dst in names]
    labels = [*names, *groups, *links]
    always = width + len(groups)
    busy = {label: float(s) for i, (label, s) in enumerate(zip(labels, seconds, strict=True)) if i < always or s > 0}
    name = max(busy, key=lambda label: busy[label])
    return Bottleneck(name, busy[name], busy)


def relative_throughput(seconds_per_request: ArrayLike, rate: float) -> NDArray[np.float64]:
    """Return the served share of requests that arrive at a rate (per second): ``min(1, 1 / (seconds * rate))``.

    Source: Ni et al., Generalizable Resource Allocation in Stream Processing via Deep Reinforcement Learning (AAAI 2020),
    section 3.3. An infeasible placement (``inf``) serves none.
    """
    load = np.asarray(seconds_per_request, np.float64) * rate
    return np.asarray(1.0 / np.maximum(load, 1.0), np.float64)


def min_seconds(problem: Problem) -> float:
    """Return a lower bound of the seconds per request: the longest op, or an even share of all work, whichever is more."""
    fastest = problem.compute.min(axis=1)
    return max(float(fastest.max()), float(fastest.sum()) / problem.devices)
