"""Three families of twenty placement problems each, large graphs, and the clusters that are measured."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._list_problems import large_problem
from benchmarks._models import load_model
from placeit import backends
from placeit.backends.base import Model
from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.devices.clusterfile import read_cluster
from placeit.learning.workloads.datasets import DatasetKind, cases
from placeit.session import Session
from placeit.simulator.scheduler import EXECUTED_RULES, GIPH_RULES, Rules
from placeit.simulator.simulate import SimulatedCost

__all__ = ["FAMILIES", "LIGHT", "Case", "family", "large_family", "measured_model", "placing", "unequal_cores"]

LIGHT = tuple(
    f"light_{name}" for name in ("inception_v1", "squeezenet", "resnet50", "shufflenet", "inception_v2", "densenet121")
)
"""Models of several groups that are part of the package onnx, without weights."""
_OTHERS = ("inception_v3", "bert_base", "text_detector", "text_recognizer")
_KINDS: tuple[DatasetKind, ...] = ("multi", "recurrent", "single", "sensor-fusion")
_FIRST_SEED = 1  # the shipped policy of GiPH has seen the scene of seed 0

_SOC = ("core-ultra-7-155h-cpu", "core-ultra-7-155h-gpu", "core-ultra-7-155h-npu")
_SERVER = ("xeon-platinum-8480p", "xeon-platinum-8480p", "t4")
_NEAR, _PCIE = "bandwidth: 40 GB/s, latency: 2 us", "bandwidth: 12 GB/s, latency: 10 us"
_MODEL_CLUSTERS = {"soc": (_SOC, _NEAR), "server": (_SERVER, _PCIE)}
_TENSOR_CLUSTERS = {
    (4, "4 equal"): (("t4",) * 4, _PCIE),
    (4, "2+2 unequal"): (("a10", "a10", "t4", "t4"), _PCIE),
    (8, "2+2 unequal"): (("a10", "a10", "t4", "t4"), _PCIE),
    (8, "8 equal"): (("t4",) * 8, _PCIE),
    (2, "2 equal"): (("t4",) * 2, _PCIE),
}
_TENSOR_GRAPHS = ("chain-mm", "ffnn", "llama-block", "llama-layer")


@dataclass(frozen=True, eq=False)
class Case:
    """A problem to place.

    Attributes:
        name: unique among all families.
        problem: the problem.
        rules: of the simulator.
    """

    name: str
    problem: Problem
    rules: Rules

    def cost(self) -> SimulatedCost:
        """Return a simulator of the problem."""
        return SimulatedCost(self.problem, rules=self.rules)


def family(name: str, count: int, seed: int) -> list[Case]:
    """Return some problems of a family in an order that depends on the seed. The larger half of them comes first.

    The size of a problem is its number of ops times its number of devices. The few problems that large budgets are tried on are
    in the larger half, because the smallest are solved within a second.

    Raises:
        UsageError: the family does not exist, or a package with models is not installed.
    """
    if name not in FAMILIES:
        raise UsageError(f"There is no family of problems '{name}'; there are {', '.join(FAMILIES)}.")
    cases = FAMILIES[name](count, seed)
    sizes = [case.problem.compute.size for case in cases]
    return sorted(cases, key=lambda case: bool(case.problem.compute.size < np.median(sizes)))


def large_family(size: int, seed: int) -> list[Case]:
    """Return a layered graph and a row of blocks, each on 8 and on 64 devices, with the given number of ops."""
    shapes = product((8, 64), ("layered", "blocks"))
    return [Case(f"{size:,} ops, {s} on {d}", large_problem(s, size, d, seed), EXECUTED_RULES) for d, s in shapes]


def placing(model: Model, cluster: Cluster) -> Problem:
    """Return the problem of placing a model's groups on described devices, as ``placeit optimize`` states it."""
    with Session(model, cluster, cache=None) as session:
        session.profile()
        return session.segmenter.problem()


def _giph(count: int, seed: int) -> list[Case]:
    """Return problems of GiPH's sets in turn, with its simulator: links without contention, first in, first out."""
    sets: dict[str, Iterator[Problem]] = {
        kind: (case.problem for case in cases(kind, "test", seed + _FIRST_SEED)) for kind in _KINDS
    }
    turns = [(kind, number) for number in range(-(-count // len(sets))) for kind in sets]
    return [Case(f"{kind} {number}, seed {seed}", next(sets[kind]), GIPH_RULES) for kind, number in turns[:count]]


def _tensor(count: int, seed: int) -> list[Case]:
    """Return DOPPLER's tensor programs, in several numbers of shards, on described GPUs."""
    from placeit.learning.workloads.tensor_program import tensor_model

    def case(graph: str, where: tuple[int, str]) -> Case:
        devices, link = _TENSOR_CLUSTERS[where]
        return _executed(f"{graph}:shards={where[0]} on {where[1]}", tensor_model(graph, shards=where[0]), devices, link)

    return _drawn(list(product(_TENSOR_GRAPHS, _TENSOR_CLUSTERS)), count, seed, lambda pair: case(*pair))


def _model(count: int, seed: int) -> list[Case]:
    """Return ONNX models on described devices: a processor with its graphics and NPU, and a server with a GPU."""

    def case(name: str, where: str) -> Case:
        return _executed(f"{name} on {where}", measured_model(name), *_MODEL_CLUSTERS[where])

    return _drawn(list(product((*LIGHT, *_OTHERS), _MODEL_CLUSTERS)), count, seed, lambda pair: case(*pair))


FAMILIES: Mapping[str, Callable[[int, int], list[Case]]] = {"giph": _giph, "tensor": _tensor, "model": _model}


def measured_model(name: str) -> Model:
    """Load a model by name: from :data:`LIGHT`, from the models of the other benchmarks, or a tensor program with its options.

    Raises:
        UsageError: the package that contains the model is not installed.
    """
    if name in LIGHT:
        return _light_model(name)
    return backends.load(name) if ":" in name else load_model(name)


def _light_model(name: str) -> Model:
    found = importlib.util.find_spec("onnx")
    if found is None or found.origin is None:
        raise UsageError(f"The model '{name}' comes with the package onnx, which is not installed: pip install onnx.")
    return backends.load(Path(found.origin).parent / f"backend/test/data/light/{name}.onnx")


def unequal_cores(cores: tuple[int, int], slowdown: float) -> Cluster:
    """Return a core and another core that is slowed by a factor."""
    return _read(
        f"devices:\n  fast: {{runs_on: CPU@{cores[0]}}}\n  slow: {{runs_on: CPU@{cores[1]}, slowdown: {slowdown:g}}}\n"
    )


def _drawn(choices: Sequence[Any], count: int, seed: int, make: Callable[[Any], Case]) -> list[Case]:
    order = np.random.default_rng(seed).permutation(len(choices)).tolist()
    return [make(choices[i]) for i in islice(order, count)]


def _executed(name: str, model: Model, devices: Sequence[str], link: str) -> Case:
    """Return a problem with the rules by which models are executed."""
    lines = "".join(f"  d{i}: {{catalog: {device}}}\n" for i, device in enumerate(devices))
    cluster = _read(f"devices:\n{lines}default_link: {{{link}}}\n")
    return Case(name, placing(model, cluster), EXECUTED_RULES)


def _read(text: str) -> Cluster:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.yaml"
        path.write_text(text, encoding="utf-8")
        return read_cluster(path)
