"""Problems to train and test on, and cost functions of their placements."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.giph.sizes import Sizes
from placeit.core.errors import UsageError
from placeit.core.problem import CostFunction, Problem
from placeit.learning.agent import ProblemInstance
from placeit.learning.workloads.churn import churn
from placeit.learning.workloads.datasets import CHURN_NETWORK_CHOICES, GRAPH_CHOICES, DatasetKind, giph_dataset
from placeit.learning.workloads.device_networks import DeviceNetworkParameters, problem_of, random_device_network
from placeit.learning.workloads.parameters import draw_parameters
from placeit.learning.workloads.task_graphs import TaskGraphParameters, random_task_graph
from placeit.placers.heft import Heft
from placeit.simulator.cost_functions import EnergyCost, TotalCost
from placeit.simulator.scheduler import GIPH_RULES
from placeit.simulator.simulate import SimulatedCost, simulate

__all__ = ["OBJECTIVES", "Dataset", "NoisyCost", "changing", "dataset", "depth", "heft_slr", "instance"]

OBJECTIVES = ("latency", "total-cost", "energy")

BUSY_W, IDLE_W, JOULES_PER_BYTE = 10.0, 1.0, 0.05
"""A device of mean speed draws 10 W when it computes, and a device of x times the speed x^2 times as much, so an op takes x
times the energy there. Each device draws 1 W when it does not compute. A byte takes 0.05 J on a link."""

_PAPER_TRAIN = {"single": 150, "multi": 500, "recurrent": 150, "sensor-fusion": 450}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Problems to train on, problems for evaluation in training, and problems for the results only."""

    train: list[Problem]
    held_out: list[Problem]
    test: list[Problem]

    @property
    def devices(self) -> int:
        """Most devices of a problem."""
        return max(problem.devices for part in (self.train, self.held_out, self.test) for problem in part)


@functools.cache
def dataset(kind: DatasetKind, seed: int, sizes: Sizes) -> Dataset:
    """Return the problems of a workload; the test problems have other graphs, and other networks unless there is only one."""
    tests = {"recurrent": sizes.recurrent_tests, "sensor-fusion": sizes.fusion_tests}.get(kind, sizes.tests)
    size = _PAPER_TRAIN[kind] if sizes.train is None else min(sizes.train, _PAPER_TRAIN[kind])
    train, test = giph_dataset(kind, seed, train=size + sizes.held_out, test=tests, max_tasks=sizes.max_tasks)
    return Dataset(train[:size], train[size:], test)


class NoisyCost:
    """Makespans, each with new random factors of all durations from [1 - noise, 1 + noise]."""

    def __init__(self, problem: Problem, noise: float, seed: int) -> None:
        self._problem, self._noise = problem, noise
        self._rng = np.random.default_rng(seed)

    def __call__(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        return simulate(self._problem, placements, rules=GIPH_RULES, noise=self._noise, seed=int(self._rng.integers(2**63)))


def instance(problem: Problem, objective: str = "latency", noise: float = 0.0, seed: int = 0) -> ProblemInstance:
    """Return a problem with an objective, in multiples of a lower bound of it: for latencies that is the SLR."""
    cost: CostFunction
    if objective == "latency":
        cost = NoisyCost(problem, noise, seed) if noise else SimulatedCost(problem, rules=GIPH_RULES)
        return ProblemInstance(problem, cost, problem.critical_path)
    if objective == "total-cost":
        return ProblemInstance(problem, TotalCost(problem), float(problem.compute.min(axis=1).sum()))
    if objective == "energy":
        power = BUSY_W * _relative_speed(problem) ** 2
        idle = np.minimum(IDLE_W, power)
        joules = np.where(problem.feasible, problem.compute, 0.0) * (power - idle)
        least = joules.min(axis=1, where=problem.feasible, initial=np.inf).sum() + idle.sum() * problem.critical_path
        return ProblemInstance(problem, EnergyCost(problem, power, idle, joules_per_byte=JOULES_PER_BYTE), float(least))
    raise UsageError(f"There is no objective '{objective}' here; there are {', '.join(OBJECTIVES)}.")


def _relative_speed(problem: Problem) -> NDArray[np.float64]:
    """Return the speeds of the devices in multiples of their mean: compute[v, d] is a requirement over a speed if finite."""
    ops, devices = np.nonzero(problem.feasible)
    size = len(problem)
    equations = np.zeros((len(ops), size + problem.devices))
    rows = np.arange(len(ops))
    equations[rows, ops], equations[rows, size + devices] = 1.0, -1.0
    logs, *_ = np.linalg.lstsq(equations, np.log(problem.compute[ops, devices]), rcond=None)
    speed: NDArray[np.float64] = np.exp(logs[size:])
    speed /= speed.mean()
    return speed


@functools.cache
def changing(seed: int, sizes: Sizes) -> list[list[Problem]]:
    """Return the problems of the same graphs on each network to which a network of 20 devices changes."""
    rng = np.random.default_rng([seed, 6])
    first = random_device_network(draw_parameters(DeviceNetworkParameters, CHURN_NETWORK_CHOICES, rng), rng)
    graphs = [
        random_task_graph(draw_parameters(TaskGraphParameters, GRAPH_CHOICES, rng), rng, max_tasks=sizes.max_tasks)
        for _ in range(sizes.churn_graphs)
    ]
    networks = islice(churn(first, rng, min_devices=16), sizes.churn_changes + 1)
    return [[problem_of(graph, network) for graph in graphs] for network in networks]


def depth(problem: Problem) -> int:
    """Return the number of tasks on the longest path."""
    levels = np.ones(len(problem), int)
    for v in problem.order.tolist():
        heads = problem.edges[problem.edges[:, 0] == v, 1]
        levels[heads] = np.maximum(levels[heads], levels[v] + 1)
    return int(levels.max())


def heft_slr(problems: list[Problem]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the SLRs of HEFT's placements run first in, first out, and of its planned schedules."""
    plans = [Heft().plan(problem) for problem in problems]
    units = np.array([problem.critical_path for problem in problems])
    run = [float(simulate(problem, plan.placement, rules=GIPH_RULES)[0]) for problem, plan in zip(problems, plans, strict=True)]
    return np.array(run) / units, np.array([plan.makespan for plan in plans]) / units
