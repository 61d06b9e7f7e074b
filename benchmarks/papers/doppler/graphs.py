"""The graphs that are placed: DOPPLER's published graphs, and our own, on described devices."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from placeit.bench import read_problems
from placeit.core.cluster import Cluster
from placeit.core.problem import Problem
from placeit.devices.caps import capped
from placeit.devices.clusterfile import read_cluster
from placeit.learning.agent import ProblemInstance
from placeit.learning.training.valuing import finite_or_nan
from placeit.learning.workloads.tensor_graphs import tensor_graph
from placeit.learning.workloads.tensors import BlockProgram, shard
from placeit.learning.workloads.tensors.expression import einsum, elementwise, tensor
from placeit.simulator.scheduler import GIPH_RULES
from placeit.simulator.simulate import SimulatedCost

__all__ = ["GRAPHS", "Case", "Where", "published_folder"]

GRAPHS = ("chain-mm", "ffnn", "llama-block", "llama-layer")

Where: TypeAlias = Literal["published", "four", "four, 8 GB", "four, 3 GB", "meshes", "stack"]

_CLUSTERS = Path(__file__).parents[3] / "examples"
_CHAIN_MM: dict[str, dict[str, int]] = {
    "AB": {"i": 4, "j": 2, "k": 2},
    "DE": {"i": 2, "j": 2, "k": 4},
    "CDE": {"i": 4, "j": 2, "k": 2},
    "sum": {"i": 4, "j": 2},
}
_LAYERS = 12


def published_folder() -> Path | None:
    """Return the folder with the published cost graphs; None if they are not installed."""
    folder = Path(os.environ.get("PLACEIT_DATA", ""))
    return folder if (folder / "doppler_chain_mm.json").is_file() else None


@dataclass(frozen=True)
class Case:
    """A graph on devices.

    Attributes:
        graph: one of :data:`GRAPHS`; any name for ``stack``.
        where: ``published``: the authors' costs, on four equal devices by their simulator's rules (links without contention,
                first in, first out), or our own graph by these rules if the data are not installed. ``four`` and ``meshes``:
                our own graph of the paper's sizes on ``examples/four_gpus.yaml`` or ``examples/two_meshes.yaml``, by the rules
                of a
            work-conserving system (Algorithm 1: a link moves one tensor at a time). ``four, 8 GB``: with less memory, which
            live tensors take as well. ``stack``: twelve feed-forward blocks, one after the other, on the four GPUs.
    """

    graph: str
    where: Where

    @property
    def name(self) -> str:
        return f"{self.graph}-{self.where}".replace(",", "").replace(" ", "-")

    @property
    def limit(self) -> str | None:
        """Limit on the memory of each device, if it is not the device's own memory; else None."""
        return self.where.partition(", ")[2] or None

    @property
    def problem(self) -> Problem:
        """Problem of placing the graph."""
        return _problem(self)

    @property
    def program(self) -> BlockProgram:
        """Program that is placed; of our own graphs only."""
        if self.where == "stack":
            return _stack(_LAYERS)
        return _program(self.graph, 8 if self.where == "meshes" else 4)

    def cost(self) -> SimulatedCost:
        """Return the cost function, in seconds (published graphs: in their unit); infinite if a placement does not fit."""
        if self.where == "published":
            return SimulatedCost(self.problem, rules=GIPH_RULES)
        return SimulatedCost(self.problem, memory=self.limit is not None)

    def instance(self) -> ProblemInstance:
        """Return the problem for training; costs of placements that do not fit are NaN."""
        problem = self.problem
        return ProblemInstance(problem, finite_or_nan(self.cost()), problem.critical_path)


@functools.cache
def _problem(case: Case) -> Problem:
    folder = published_folder()
    if case.where == "published" and folder is not None:
        (one,) = read_problems(folder / f"doppler_{case.graph.replace('-', '_')}.json").values()
        return one.problem
    if case.where == "meshes":
        return case.program.problem(read_cluster(_CLUSTERS / "two_meshes.yaml"))
    return case.program.problem(_four(case.limit))


def _four(memory: str | None) -> Cluster:
    cluster = read_cluster(_CLUSTERS / "four_gpus.yaml")
    return capped(cluster, None if memory is None else dict.fromkeys(cluster.names, memory))


def _program(graph: str, shards: int) -> BlockProgram:
    """Build a graph of the paper's sizes; ChainMM and FFNN are cut like the published graphs."""
    if graph == "chain-mm":
        return tensor_graph(graph, paper_sizes=True, shards=16, partition=_CHAIN_MM)
    return tensor_graph(graph, paper_sizes=True, shards=16 if graph == "ffnn" else shards)


def _stack(layers: int, *, tokens: int = 4096, width: int = 4096, shards: int = 4) -> BlockProgram:
    """Build consecutive feed-forward blocks with residuals, ``x + relu(x W1) W2``."""
    import torch

    x = tensor("X", tokens, width)
    for n in range(layers):
        up = einsum(f"up{n}", "sd,df->sf", x, tensor(f"W1.{n}", width, 4 * width))
        active = elementwise(f"relu{n}", "sf->sf", torch.relu, up)
        down = einsum(f"down{n}", "sf,fd->sd", active, tensor(f"W2.{n}", 4 * width, width))
        x = elementwise(f"add{n}", "sd,sd->sd", torch.add, x, down)
    return shard([x], shards)
