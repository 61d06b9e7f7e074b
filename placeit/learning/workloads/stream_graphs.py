"""Stream graphs: operators that tuples flow through, to be placed for throughput on a few equal devices.

Source: Ni et al., Generalizable Resource Allocation in Stream Processing via Deep Reinforcement Learning (AAAI 2020), section
4.1.

The seconds of a problem are the mean seconds caused by one tuple of the source, at any rate of the source. In a steady state
with back-pressure, where operators share their device and edges share their link, they determine the seconds per tuple
(:class:`placeit.simulator.throughput_bound.ThroughputCost`) and the share of a rate that is sustained
(:func:`placeit.simulator.throughput_bound.relative_throughput`).
"""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import FileError
from placeit.core.problem import Problem
from placeit.learning.workloads.registry import Case, Dataset, Split

__all__ = [
    "DEVICES",
    "PAYLOAD_BYTES",
    "RATE",
    "STREAMS",
    "StreamGraph",
    "draw_stream_graph",
    "load_stream_graphs",
    "split_graphs",
]

DEVICES = 5
"""Devices of the paper's cluster. A placement may leave some of them empty; METIS' partitions have this number of parts."""

RATE = 1e4
"""Source tuples per second for which the load of the graphs is chosen; the paper's stress test has twice the rate."""

PAYLOAD_BYTES = 1e5
"""Bytes per unit of payload. The paper does not state the unit; this value brings METIS closest to the paper's results.

``python -m benchmarks.papers.stream --part calibration`` compares it with other units and other models of communication.
"""

_INSTRUCTIONS_PER_S = 2.5e9
_BYTES_PER_S = 1000e6 / 8


@dataclass(frozen=True, eq=False)
class StreamGraph:
    """Operators in topological order, the first being the source, and how tuples flow between them.

    Attributes:
        instructions: ``float64[V]``, instructions of an operator for each tuple that it takes in.
        payload: ``float64[V]``, size of each tuple that an operator sends, in units of :data:`PAYLOAD_BYTES`.
        edges: ``int32[E, 2]``.
        selectivity: ``float64[E]``, tuples sent along an edge for each tuple that its producer takes in.
    """

    instructions: NDArray[np.float64]
    payload: NDArray[np.float64]
    edges: NDArray[np.int32]
    selectivity: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.instructions)

    @cached_property
    def inflow(self) -> NDArray[np.float64]:
        """Tuples that each operator takes in for one tuple of the source, ``float64[V]``."""
        taken = np.zeros(len(self))
        taken[0] = 1.0
        for e in np.argsort(self.edges[:, 0], kind="stable").tolist():
            taken[self.edges[e, 1]] += taken[self.edges[e, 0]] * self.selectivity[e]
        return taken

    @cached_property
    def flow(self) -> NDArray[np.float64]:
        """Tuples along each edge for one tuple of the source, ``float64[E]``."""
        tuples: NDArray[np.float64] = self.inflow[self.edges[:, 0]] * self.selectivity
        return tuples

    @cached_property
    def load(self) -> NDArray[np.float64]:
        """Share of a device that each operator takes at :data:`RATE`, ``float64[V]``."""
        share: NDArray[np.float64] = self.instructions * self.inflow * RATE / _INSTRUCTIONS_PER_S
        return share

    @cached_property
    def bytes(self) -> NDArray[np.float64]:
        """Bytes along each edge for one tuple of the source, ``float64[E]``."""
        size: NDArray[np.float64] = self.flow * self.payload[self.edges[:, 0]] * PAYLOAD_BYTES
        return size

    def problem(self, devices: int = DEVICES) -> Problem:
        """Return the problem of placing the operators on equal devices of 2500 MIPS, with 1000 Mbit/s each way between any two.

        Links have no latency, since a delay limits no throughput. Modelling the overhead of sending and receiving did not bring
        METIS' results closer to the paper's.
        """
        seconds = self.instructions * self.inflow / _INSTRUCTIONS_PER_S
        return Problem.from_arrays(
            np.repeat(seconds[:, None], devices, axis=1),
            self.edges,
            self.bytes,
            np.full((devices, devices), _BYTES_PER_S),
            np.zeros((devices, devices)),
        )


# branches and lengths of the paper's graphs: 17 with up to 12 operators, of which there are 50 each; 23 of which there are 100
_SHAPES = (
    *((1, length) for length in range(2, 11)),
    *((2, length) for length in (2, 3, 4, 5, 6, 7, 10, 12)),
    *((3, length) for length in range(2, 9)),
    *((4, length) for length in (2, 3, 5, 6)),
    *((5, length) for length in range(2, 6)),
    *((6, length) for length in range(2, 5)),
    *((7, 2), (7, 3), (8, 3), (10, 2), (12, 2)),
)
_ENDS_LOAD = 0.04  # load of the source, and of the sink, as a share of a device
_LEAST_STAGE, _MOST_PAYLOAD = 0.05, 0.5
_SMALL = 12
_TRAIN, _TEST = 2520, 630


def draw_stream_graph(rng: np.random.Generator) -> StreamGraph:
    """Draw a graph like the paper's: a source, branches of equal length between which its tuples are divided, and a sink.

    Operators at the same position of two branches are equal except for their payload. The load of all operators together at
    :data:`RATE` depends on their number: 2 devices up to 12 operators, 3 up to 17, 4 up to 23, and 5 beyond.

    The distributions are calibrated to 2,650 of the 3,150 graphs that the authors have published. Differs from the paper, which
    speaks of 2 to 12 branches and up to 26 operators: among those graphs are pipelines of one branch, and some have 27
    operators.
    """
    sizes = np.array([branches * length for branches, length in _SHAPES]) + 2
    weights = np.where(sizes <= _SMALL, 1.0, 2.0)
    branches, length = _SHAPES[int(rng.choice(len(_SHAPES), p=weights / weights.sum()))]
    ops = branches * length + 2
    devices = 2 + sum(ops > most for most in (_SMALL, 17, 23))
    stage = rng.uniform(_LEAST_STAGE, 1.0, length)
    stage *= (devices - 2 * _ENDS_LOAD) / stage.sum()
    load = np.concatenate([[_ENDS_LOAD], np.repeat(stage, branches), [_ENDS_LOAD]])
    payload = rng.uniform(0.0, _MOST_PAYLOAD, ops)
    if devices == 2:
        payload *= rng.uniform()
    payload[-1] = 0.0
    inner = np.arange(1, ops - 1)
    fork = [(0, v) for v in inner[:branches]]
    steps = [(v, v + branches) for v in inner[:-branches]]
    join = [(v, ops - 1) for v in inner[-branches:]]
    return StreamGraph(
        load * _INSTRUCTIONS_PER_S / RATE,
        payload,
        np.array(fork + steps + join, np.int32),
        np.array([1.0 / branches] * branches + [1.0] * (len(steps) + branches)),
    )


def load_stream_graphs(folder: Path) -> list[StreamGraph]:
    """Read the paper's graphs from ``stream_graphs.json.gz`` in a folder.

    Raises:
        FileError: there is no such file, or it holds something else, such as an edge to an earlier operator.
    """
    path = folder / "stream_graphs.json.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            data = json.load(file)
        return [_checked(number, graph) for number, graph in enumerate(data["graphs"])]
    except OSError as error:
        raise FileError(
            f"The published stream graphs cannot be read from {path}: {error.strerror or error}. They are not part of placeit; "
            "draw_stream_graph() makes graphs like them."
        ) from None
    except (EOFError, zlib.error, ValueError, KeyError, TypeError, OverflowError) as error:
        raise FileError(f"{path} does not hold stream graphs: {type(error).__name__}: {error}.") from None


def _checked(number: int, graph: dict[str, Any]) -> StreamGraph:
    """Make a graph from the entry of a file. Raises ValueError if the entry is not valid."""
    instructions, payload, selectivity = (np.array(graph[name], np.float64) for name in ("cpu", "payload", "selectivity"))
    edges = np.array(graph["edges"], np.int64).reshape(-1, 2)
    ops = len(instructions)
    if not ops or payload.shape != (ops,) or selectivity.shape != (len(edges),):
        raise ValueError(f"graph {number}: there are not as many payloads as operators, or selectivities as edges")
    if not all(np.isfinite(values).all() and (values >= 0).all() for values in (instructions, payload, selectivity)):
        raise ValueError(f"graph {number}: figures are not all finite and at least 0")
    if not ((edges[:, 0] >= 0) & (edges[:, 0] < edges[:, 1]) & (edges[:, 1] < ops)).all():
        raise ValueError(f"graph {number}: edges do not all go from an operator to a later one, of 0 to {ops - 1}")
    return StreamGraph(instructions, payload, edges.astype(np.int32), selectivity)


def split_graphs(graphs: list[StreamGraph], seed: int = 0) -> tuple[list[StreamGraph], list[StreamGraph]]:
    """Divide graphs at random, in the paper's proportion of training to test; the paper's own division is not published."""
    order = np.random.default_rng(seed).permutation(len(graphs)).tolist()
    first = round(len(graphs) * _TRAIN / (_TRAIN + _TEST))
    return [graphs[i] for i in order[:first]], [graphs[i] for i in order[first:]]


def _cases(split: Split | None, seed: int) -> Iterator[Case]:
    rng = np.random.default_rng([seed, split == "test"])
    for _ in itertools.count() if split is None else range(_TEST if split == "test" else _TRAIN):
        graph = draw_stream_graph(rng)
        yield Case(graph.problem(), {"operators": len(graph), "load": round(float(graph.load.sum()))})


STREAMS = Dataset(cases=_cases, size=_TRAIN, throughput=True)
"""Data set of generated graphs, with the paper's numbers of training and test graphs."""
