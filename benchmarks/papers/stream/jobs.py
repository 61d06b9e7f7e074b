"""Jobs that do not depend on each other, apart from the trainings that they need."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers import _lab
from benchmarks.papers._lab import Job, Lab, Outcome
from benchmarks.papers.stream.sizes import Sizes
from placeit.bench.streams import DEVICES, StreamGraph, load_stream_graphs
from placeit.core.problem import Problem
from placeit.learning.agents.stream_allocation.agent import StreamAllocationAgent
from placeit.learning.checkpoint import load_policy, save_agent
from placeit.learning.registry import make_agent
from placeit.learning.training.loop import train
from placeit.learning.training.sources import draw_from, served
from placeit.learning.workloads.registry import find_dataset
from placeit.learning.workloads.stream_graphs import draw_stream_graph
from placeit.placers.annealing import Annealing
from placeit.placers.exact import Exact
from placeit.placers.feasibility import random_placements
from placeit.placers.fuser import fuse
from placeit.placers.metis import partition
from placeit.simulator.throughput_bound import ThroughputCost

__all__ = ["ABLATIONS", "OWN", "Divided", "Learned", "Optimum", "Searched", "Setup", "Training", "costs", "methods", "optima"]

ABLATIONS = {
    "B": {"encoder": "lstm", "upstream": False},
    "B+F1": {"encoder": "graph", "upstream": False},
    "B+F1+F2": {"encoder": "graph", "upstream": True},
}
"""Options of the agents of Table 1."""

OWN = "own"
"""The policy that the paper's own training gives: weights in the file ``own.safetensors`` of the folder ``--work``."""

_UNLEARNED = {"untrained policy": "untrained", "uniform": "uniform"}
_HELD_OUT = 64
_TRAINING = 0.8  # share of the graphs, as in the paper
_AT_ONCE = 5  # graphs whose optimum one job finds


class Setup(_lab.Setup[Sizes]):
    """Common settings of all jobs."""

    @property
    def published(self) -> bool:
        """Whether the graphs are the published ones."""
        return bool(os.environ.get("PLACEIT_DATA"))

    @property
    def graphs(self) -> Sequence[StreamGraph]:
        """All graphs: the published ones, or the same number of generated ones."""
        return _graphs(os.environ.get("PLACEIT_DATA"), self.seed)

    @property
    def tests(self) -> Sequence[StreamGraph]:
        """Test part of the graphs, drawn at random in the paper's proportion; the paper's own division is not published."""
        graphs = self.graphs
        order = np.random.default_rng(self.seed).permutation(len(graphs))[round(len(graphs) * _TRAINING) :].tolist()
        return [graphs[i] for i in order[: self.sizes.tests]]


@cache
def _graphs(folder: str | None, seed: int) -> Sequence[StreamGraph]:
    if folder:
        return load_stream_graphs(Path(folder) / "stream_graphs.json.gz")
    rng = np.random.default_rng([seed, 2])
    return [draw_stream_graph(rng) for _ in range(3150)]


def _found(setup: Setup, place: Callable[[Problem, ThroughputCost], Iterable[NDArray[np.int32]]]) -> Outcome:
    """Value placements of every test graph: seconds per tuple ``cost[K, G]``, and the number of used devices ``used[K, G]``."""
    costs, used = [], []
    for graph in setup.tests:
        problem = graph.problem()
        cost = ThroughputCost(problem)
        placements = np.stack(list(place(problem, cost)))
        costs.append(cost(placements))
        used.append([len(np.unique(placement)) for placement in placements])
    return {"cost": np.array(costs).T, "used": np.array(used).T}


@dataclass(frozen=True)
class Divided(Job):
    """Divides the test graphs into 2 to 5 parts, by ``metis`` or by ``fuser``."""

    by: str

    @property
    def name(self) -> str:
        return self.by

    def run(self, setup: Setup) -> Outcome:
        divide = {"metis": partition, "fuser": fuse}[self.by]
        return _found(setup, lambda problem, _: [divide(problem, parts) for parts in range(2, DEVICES + 1)])


@dataclass(frozen=True)
class Searched(Job):
    """Anneals the test graphs."""

    @property
    def name(self) -> str:
        return "annealing"

    def run(self, setup: Setup) -> Outcome:
        placer = Annealing(evaluations=4 * setup.sizes.evaluations, restarts=4)
        return _found(setup, lambda problem, cost: [placer.place(problem, cost, seed=setup.seed, evaluations=None)])


@dataclass(frozen=True)
class Training(Job):
    """Trains an ablation on generated graphs; the outcome is the history of its evaluations."""

    ablation: str

    @property
    def name(self) -> str:
        return f"train-{self.ablation}"

    def run(self, setup: Setup) -> Outcome:
        agent = make_agent("stream-allocation", seed=setup.seed, **ABLATIONS[self.ablation])
        dataset, sizes = find_dataset("streams"), setup.sizes
        most = None if sizes.train is None else sizes.train + _HELD_OUT
        cases = islice(dataset.cases("train", setup.seed), most)
        every = [served(case.problem) for case in cases]
        learned, held_out = every[:-_HELD_OUT], every[-_HELD_OUT:]
        assert isinstance(agent, StreamAllocationAgent)
        stages = [replace(stage, updates=sizes.updates) for stage in agent.default_stages(draw_from(learned))]
        done = train(agent, stages, evaluate_on=held_out, seed=setup.seed)
        save_agent(agent, setup.folder / f"{self.name}.safetensors", sizes=asdict(sizes), **done.about)
        records = [record for record in done.history if record.evaluation is not None]
        return {
            "seconds": np.array(done.history[-1].seconds),
            "evaluation": np.array([record.evaluation for record in records]),
        }


@dataclass(frozen=True)
class Learned(Job):
    """Places the test graphs by a policy: its likeliest placement, and the best one of that and samples.

    Attributes:
        policy: an ablation, ``shipped``, ``own``, ``untrained`` (fresh weights) or ``uniform`` (random placements).
    """

    policy: str

    @property
    def name(self) -> str:
        return f"place-{self.policy}"

    @property
    def needs(self) -> Sequence[Job]:
        return (Training(self.policy),) if self.policy in ABLATIONS else ()

    def run(self, setup: Setup) -> Outcome:
        rng = np.random.default_rng(setup.seed)
        if self.policy == "uniform":

            def draw(problem: Problem, cost: ThroughputCost) -> list[NDArray[np.int32]]:
                drawn = random_placements(problem, setup.sizes.samples, rng)
                return [drawn[0], drawn[int(cost(drawn).argmin())]]

            return _found(setup, draw)
        agent = self._agent(setup)

        def place(problem: Problem, cost: ThroughputCost) -> list[NDArray[np.int32]]:
            greedy = agent.greedy_placement(problem)
            sampled = agent.rollout([served(problem)] * setup.sizes.samples, rng).visited
            placements = np.concatenate([greedy[None], *sampled])
            return [greedy, placements[int(cost(placements).argmin())]]

        return _found(setup, place)

    def _agent(self, setup: Setup) -> StreamAllocationAgent:
        if self.policy == "untrained":
            agent = make_agent("stream-allocation", seed=setup.seed)
            assert isinstance(agent, StreamAllocationAgent)
            return agent
        if self.policy == "shipped":
            return load_policy("", StreamAllocationAgent)
        if self.policy == OWN:
            return load_policy(setup.folder.parent / f"{OWN}.safetensors", StreamAllocationAgent)
        return load_policy(setup.folder / f"{Training(self.policy).name}.safetensors", StreamAllocationAgent)


@dataclass(frozen=True)
class Optimum(Job):
    """Finds the least seconds per tuple of some small test graphs: numbers ``first`` to before ``last`` of them.

    The outcome is ``graph[K]``, their numbers among all graphs, and ``cost[K]``.
    """

    first: int
    last: int

    @property
    def name(self) -> str:
        return f"optimum-{self.first}-{self.last}"

    def run(self, setup: Setup) -> Outcome:
        small = [number for number, graph in enumerate(setup.tests) if len(graph) <= setup.sizes.operators]
        numbers, costs = small[self.first : self.last], []
        for number in numbers:
            problem = setup.tests[number].problem()
            cost = ThroughputCost(problem)
            placement = Exact(nodes=500_000_000).place(problem, cost, seed=0, evaluations=None)
            costs.append(cost(placement)[0])
        return {"graph": np.array(numbers, int), "cost": np.array(costs, float)}


def optima(setup: Setup) -> list[Optimum]:
    """Return the jobs that find the optimum of all small graphs that count, a few graphs per job, so that outcomes are kept."""
    count = setup.sizes.exact
    return [Optimum(first, min(first + _AT_ONCE, count)) for first in range(0, count, _AT_ONCE)]


def methods() -> dict[str, tuple[Job, int | None]]:
    """Return, by name, the job of each method and the index of the placement that counts; None for the best one."""
    found: dict[str, tuple[Job, int | None]] = {
        "fuser, 5 parts": (Divided("fuser"), -1),
        "fuser, best of 2-5": (Divided("fuser"), None),
        "METIS, 5 parts": (Divided("metis"), -1),
        "METIS, best of 2-5": (Divided("metis"), None),
    }
    for name in ABLATIONS:
        found |= {name: (Learned(name), 0), f"{name}, best of samples": (Learned(name), 1)}
    found |= {"shipped": (Learned("shipped"), 0), "shipped, best of samples": (Learned("shipped"), 1)}
    found |= {f"same moves, {name}": (Learned(policy), 1) for name, policy in _UNLEARNED.items()}
    return found | {"annealing": (Searched(), 0)}


def costs(lab: Lab, method: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return a method's seconds per tuple and the devices that it uses, for each test graph."""
    job, which = methods()[method]
    cost, used = lab[job]["cost"], lab[job]["used"]
    at = cost.argmin(axis=0) if which is None else np.full(cost.shape[1], which % len(cost))
    graphs = np.arange(cost.shape[1])
    return cost[at, graphs], used[at, graphs]
