"""How many requests a placement can serve: the bound that its busiest resource sets.

At best, many requests in flight keep one resource busy all the time. So no order of work takes less, per request, than the
seconds for which one request keeps the busiest resource. The resources are

- each device: ``compute``, and ``cut`` as :mod:`placeit.simulator.simulate` charges it;
- each set of devices of which only one runs at a time (``Problem.conflicts``): what they do, in sum;
- each ordered pair of devices, a ``channel``: ``latency + bytes / bandwidth`` of every tensor that goes that way, once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit import _core
from placeit.core.kernels import jit
from placeit.core.problem import Problem
from placeit.simulator.compiled import compiled, shared
from placeit.simulator.cost_functions import as_batch
from placeit.simulator.kernel import WEIGHTS_ONLY
from placeit.simulator.one_request import transfer_seconds
from placeit.simulator.queues import int64
from placeit.simulator.state import CHANNEL
from placeit.simulator.tables import Tables, tables

__all__ = [
    "CAPACITY",
    "Bottleneck",
    "ThroughputCost",
    "bottleneck",
    "busiest_ops",
    "busy_kernel",
    "least_seconds",
    "relative_throughput",
]

CAPACITY = -1
"""In place of the number of a queue discipline: there is no queue, only what keeps resources busy."""


class ThroughputCost:
    """The least seconds per request of placements: ``cost(placements: int32[B, V]) -> float64[B]``.

    An infeasible placement (an op where it cannot run, weights that exceed a device's memory) costs ``inf``.

    Args:
        problem: whose placements are valued.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._compiled = compiled(problem)

    @property
    def model(self) -> _core.CostModel:
        """The cost as compiled searches take it."""
        return _core.CostModel.capacity(self._compiled)

    @property
    def kernel_arguments(self) -> tuple[Tables, NDArray[np.float64], int, int, int]:
        """What compiled searches take in place of a simulator's: see :attr:`SimulatedCost.kernel_arguments`."""
        return tables(self.problem), np.empty(0), CHANNEL, CAPACITY, WEIGHTS_ONLY

    def __call__(self, placements: ArrayLike) -> NDArray[np.float64]:
        """Return ``float64[B]`` seconds per request of ``int[B, V]`` placements; ``int[V]`` is a batch of one.

        Raises:
            PlacementError: wrong shape, or a device number that does not exist.
        """
        array = np.ascontiguousarray(as_batch(self.problem, placements))
        out = np.empty(len(array))
        _core.seconds_per_request(self._compiled, array, out)
        return out


@dataclass(frozen=True)
class Bottleneck:
    """What limits how many requests a placement serves.

    Attributes:
        name: the busiest resource: a device, ``CPU@0, CPU@0-1`` for devices that share cores, ``CPU@0 -> CPU@1`` for a link.
        seconds: for which one request keeps it busy: the least seconds per request.
        busy: the same of every resource, by name; links only if something crosses them.
    """

    name: str
    seconds: float
    busy: dict[str, float]


def bottleneck(problem: Problem, placement: ArrayLike) -> Bottleneck:
    """Find the resource that limits a placement, ``int[V]``; of several the first: devices, those that conflict, links.

    Raises:
        PlacementError: the placement is infeasible.
    """
    width, names = problem.devices, problem.device_names
    groups = [", ".join(names[d] for d in np.flatnonzero(clique)) for clique in shared(problem)]
    seconds = np.empty(width + len(groups) + width * width)
    _core.busy_seconds(compiled(problem), np.array(problem.check(placement)), seconds)
    links = [f"{src} -> {dst}" for src in names for dst in names]
    labels = [*names, *groups, *links]
    always = width + len(groups)
    busy = {label: float(s) for i, (label, s) in enumerate(zip(labels, seconds, strict=True)) if i < always or s > 0}
    name = max(busy, key=lambda label: busy[label])
    return Bottleneck(name, busy[name], busy)


def relative_throughput(seconds_per_request: ArrayLike, rate: float) -> NDArray[np.float64]:
    """Share of the requests arriving at a rate (per second) that is served: ``min(1, 1 / (seconds * rate))``.

    Source: Ni et al., Generalizable Resource Allocation in Stream Processing via Deep Reinforcement Learning (AAAI 2020),
    section 3.3. What is infeasible (``inf``) serves none.
    """
    needed = np.asarray(seconds_per_request, np.float64) * rate
    share: NDArray[np.float64] = 1.0 / np.maximum(needed, 1.0)
    return share


def least_seconds(problem: Problem) -> float:
    """Seconds per request that no placement goes below: those of the longest op, or an even share of all work."""
    fastest = problem.compute.min(axis=1)
    return max(float(fastest.max()), float(fastest.sum()) / problem.devices)


@jit
def busy_kernel(tables: Tables, place: NDArray[np.int32], busy: NDArray[np.float64]) -> float:
    """Write for how many seconds one request keeps each resource busy; return those of the busiest.

    Args:
        tables: the problem.
        place: ``int32[V]``, device numbers within range (not checked), or -1 for an op that is left out.
        busy: ``float64[D + C + D * D]``, receives the seconds of devices, of ``tables.clique`` and of ordered pairs of devices.

    Returns:
        Seconds; ``inf`` if an op cannot run where it is placed or memory is too small.
    """
    devices, groups, edge = len(tables.memory), len(tables.clique), tables.edge
    links = devices + groups
    busy[:] = 0.0
    for v in range(len(place)):  # links do not count yet: the first of them hold the bytes of weights
        if place[v] < 0:
            continue
        busy[place[v]] += tables.compute[v, place[v]]
        busy[links + place[v]] += tables.op[v].param_bytes
    for d in range(devices):
        if busy[d] == np.inf or busy[links + d] > tables.memory[d]:
            return np.inf
        busy[links + d] = 0.0
    for p in range(len(edge)):
        w = edge[p].head
        src = int64(place[edge[p].tail])
        if src < 0:
            continue
        if len(tables.cut) and edge[p].enters and place[w] >= 0 and place[w] != src:
            busy[place[w]] += tables.cut[p, place[w]]
        if not edge[p].opens:
            continue
        leaves, q = False, int64(p)
        while q >= 0:
            dst = int64(place[edge[q].head])
            if dst >= 0 and dst != src:
                leaves, before = True, int64(p)
                while before != q and place[edge[before].head] != dst:
                    before = edge[before].following
                if before == q:
                    busy[links + src * devices + dst] += transfer_seconds(edge, tables.link, q, src, dst)
            q = edge[q].following
        if leaves and len(tables.cut):
            busy[src] += tables.cut[p, src]
    for k in range(groups):
        for d in range(devices):
            if tables.clique[k, d]:
                busy[devices + k] += busy[d]
    return float(busy.max())


@jit
def busiest_ops(tables: Tables, place: NDArray[np.int32], busy: NDArray[np.float64], ops: NDArray[np.int32]) -> int:
    """Write the ops that keep the busiest resource busy, by what :func:`busy_kernel` wrote; return how many they are."""
    devices, groups = len(tables.memory), len(tables.clique)
    at, count = int64(busy.argmax()), 0
    if at >= devices + groups:
        src, dst = (at - devices - groups) // devices, (at - devices - groups) % devices
        for p in range(len(tables.edge)):
            v, w = tables.edge[p].tail, tables.edge[p].head
            if place[v] == src and place[w] == dst and count + 1 < len(ops):
                ops[count] = v
                ops[count + 1] = w
                count += 2
        return count
    for v in range(len(place)):
        if place[v] == at or (at >= devices and tables.clique[at - devices, place[v]]):
            ops[count] = v
            count += 1
    return count
