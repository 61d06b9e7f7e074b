"""Inputs of Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators (NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.bench.reading import reading
from placeit.core.problem import Problem
from placeit.core.records import contents

__all__ = ["MsrInput"]


@dataclass(frozen=True, eq=False)
class MsrInput:
    """A graph of nodes to place on CPUs, which are the first devices, and accelerators.

    Attributes:
        name: name of the file.
        seconds: ``float64[N, D]``, time of each node on each device, in the unit of the file; ``inf`` if it cannot run there.
        size: ``float64[N]``, memory of each node.
        transfer: ``float64[N]``, time of an accelerator to send or receive the output of each node.
        edges: ``int64[E, 2]``, distinct pairs of producer and consumer.
        group: ``int64[N]``, group of each node. The nodes of a group are on one device. A group is a colour, or several colours
            that form a cycle.
        cpus: number of CPUs.
        memory: memory of an accelerator; CPUs have no limit.
    """

    name: str
    seconds: NDArray[np.float64]
    size: NDArray[np.float64]
    transfer: NDArray[np.float64]
    edges: NDArray[np.int64]
    group: NDArray[np.int64]
    cpus: int
    memory: float

    @classmethod
    def read(cls, path: Path) -> MsrInput:
        """Read a file in the authors' format, which may be compressed. Raises FileError if it has another format."""
        data = contents(path)
        with reading(path, "an input of a pipeline"):
            return cls._of(path.name.partition(".")[0], data)

    @classmethod
    def _of(cls, name: str, data: dict[str, Any]) -> MsrInput:
        nodes, cpus, accelerators = data["nodes"], int(data["maxCPUs"]), int(data["maxFPGAs"])
        number = {node["id"]: v for v, node in enumerate(nodes)}
        seconds = np.empty((len(nodes), cpus + accelerators))
        for v, node in enumerate(nodes):
            seconds[v, :cpus] = node["cpuLatency"]
            seconds[v, cpus:] = node["fpgaLatency"] if node["supportedOnFpga"] else np.inf
        transfer, edges = np.zeros(len(nodes)), dict[tuple[int, int], None]()
        for edge in data["edges"]:
            tail, head = number[edge["sourceId"]], number[edge["destId"]]
            transfer[tail] = edge["cost"]
            if tail != head:
                edges[tail, head] = None
        colours: dict[object, int] = {}
        colour_of = []
        for v, node in enumerate(nodes):
            colour = node.get("colorClass")
            colour_of.append(colours.setdefault(("node", v) if colour is None else colour, len(colours)))
        pairs = np.array(list(edges), np.int64).reshape(-1, 2)
        return cls(
            name,
            seconds,
            np.array([node.get("size", 0.0) for node in nodes]),
            transfer,
            pairs,
            _without_cycles(np.array(colour_of), pairs),
            cpus,
            float(data["maxSizePerFPGA"]),
        )

    @cached_property
    def problem(self) -> Problem:
        """Problem over the groups. Transfers are its cut costs, and its links take no time."""
        groups, devices = int(self.group.max()) + 1, self.seconds.shape[1]
        compute, size = np.zeros((groups, devices)), np.zeros(groups)
        np.add.at(compute, self.group, self.seconds)
        np.add.at(size, self.group, self.size)
        tails, heads = self.edges.T
        kept = np.flatnonzero(self.group[tails] != self.group[heads])
        _, once = np.unique(np.stack([tails[kept], self.group[heads[kept]]], axis=1), axis=0, return_index=True)
        kept = kept[np.sort(once)]
        _, tensor = np.unique(tails[kept], return_inverse=True)
        cut = np.zeros((len(kept), devices))
        cut[:, self.cpus :] = self.transfer[tails[kept], None]
        return Problem.from_arrays(
            compute,
            np.stack([self.group[tails[kept]], self.group[heads[kept]]], axis=1),
            self.transfer[tails[kept]],
            np.full((devices, devices), np.inf),
            np.zeros((devices, devices)),
            edge_tensor=tensor.reshape(-1),
            cut=cut,
            param_bytes=size,
            memory=np.r_[np.full(self.cpus, np.inf), np.full(devices - self.cpus, self.memory)],
        )


def _without_cycles(colour: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Merge colours that form cycles (strongly connected components), and return the group of each node: ``int64[N]``."""
    count = int(colour.max()) + 1
    after, before = ([set[int]() for _ in range(count)] for _ in range(2))
    for tail, head in colour[edges].tolist():
        after[tail].add(head)
        before[head].add(tail)
    ended, seen = list[int](), set[int]()
    for root in range(count):  # Kosaraju's algorithm: order by finishing time, then search against the edges
        path = [] if root in seen else [(root, iter(after[root]))]
        seen.add(root)
        while path:
            at, heads = path[-1]
            new = next((head for head in heads if head not in seen), None)
            if new is None:
                ended.append(path.pop()[0])
            else:
                seen.add(new)
                path.append((new, iter(after[new])))
    group = np.full(count, -1)
    for number, root in enumerate(reversed(ended)):
        reached = [root] if group[root] < 0 else []
        while reached:
            at = reached.pop()
            group[at] = number
            reached += [tail for tail in before[at] if group[tail] < 0]
    _, number_of = np.unique(group, return_inverse=True)
    joined: NDArray[np.int64] = number_of.reshape(-1)[colour]
    return joined
