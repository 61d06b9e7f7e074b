"""Stream graphs: operators that process tuples, to be placed for throughput on a few equal devices.

Source: Ni et al., Generalizable Resource Allocation in Stream Processing via Deep Reinforcement Learning (AAAI 2020), section
4.1.

The seconds of a problem are the mean seconds caused by one tuple of the source, at any rate of the source. In a steady state
with back-pressure, where operators share their device and edges share their link, they determine the seconds per tuple
(:class:`placeit.simulator.throughput_bound.ThroughputCost`) and the share of a rate that is sustained
(:func:`placeit.simulator.throughput_bound.relative_throughput`).
"""

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

__all__ = ["DEVICES", "INSTRUCTIONS_PER_S", "PAYLOAD_BYTES", "RATE", "StreamGraph", "load_stream_graphs"]

DEVICES = 5
"""Devices of the paper's cluster. A placement may leave some of them empty; METIS' partitions have this number of parts."""

RATE = 1e4
"""Source tuples per second for which the load of the graphs is defined; the paper's stress test uses twice this rate."""

PAYLOAD_BYTES = 1e5
"""Bytes per unit of payload. The paper does not state the unit; this value brings METIS closest to the paper's results.

``python -m benchmarks.papers.stream --part calibration`` compares it with other units and other models of communication.
"""

INSTRUCTIONS_PER_S = 2.5e9
"""Instructions per second of each device."""

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
        share: NDArray[np.float64] = self.instructions * self.inflow * RATE / INSTRUCTIONS_PER_S
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
        seconds = self.instructions * self.inflow / INSTRUCTIONS_PER_S
        return Problem.from_arrays(
            np.repeat(seconds[:, None], devices, axis=1),
            self.edges,
            self.bytes,
            np.full((devices, devices), _BYTES_PER_S),
            np.zeros((devices, devices)),
        )


def load_stream_graphs(path: Path) -> list[StreamGraph]:
    """Read the paper's graphs from a file, ``stream_graphs.json.gz``.

    The file holds ``{"graphs": [{"cpu", "payload", "edges", "selectivity"}]}``, arrays by the names of :class:`StreamGraph`;
    ``cpu`` is for ``instructions``.

    Raises:
        FileError: there is no such file, or it holds something else, such as an edge to an earlier operator.
    """
    data = contents(path)
    with reading(path, "stream graphs"):
        return [_checked(number, graph) for number, graph in enumerate(data["graphs"])]


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
