"""A backend, an agent, a teacher and a data set, for the other groups of entry points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.problem import Problem
from placeit.core.telemetry import import_openvino
from placeit.learning.agents.doppler.features import EpisodeState
from placeit.learning.agents.doppler.graph import Graph, allowed
from placeit.learning.agents.placeto.agent import PlacetoAgent
from placeit.learning.workloads.registry import Case, Dataset, Split

openvino = import_openvino()


def load(
    path: str | Path, *, input_shapes: Mapping[str, Sequence[int]] | None = None, batch: int | None = None
) -> OpenVinoModel:
    """Read a file that holds the number of tanh ops of a chain."""
    return _tanhs(int(Path(path).read_text(encoding="utf-8")), Path(path), batch or 1)


def make(text: str) -> OpenVinoModel:
    """Make a chain of tanh ops, of the length after the colon."""
    return _tanhs(int(text.partition(":")[2]), Path(text), 1)


def _tanhs(length: int, path: Path, batch: int) -> OpenVinoModel:
    ops = openvino.opset13
    parameter = ops.parameter([batch, 8], openvino.Type.f32, name="x")
    value = parameter.output(0)
    for i in range(length):
        value = ops.tanh(value, name=f"tanh{i}").output(0)
    return describe(openvino.Model([ops.result(value, name="y")], [parameter], "chain"), path)


class DealtAgent(PlacetoAgent):
    """Placeto under another name."""

    name = "dealt"


class LastDevice:
    """A teacher that puts the first op that it can on the last device that is allowed."""

    def decide(self, graph: Graph, state: EpisodeState) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return an op and a device for each row."""
        ops = state.candidates.argmax(axis=1)
        devices = allowed(state, ops)
        return ops, devices.shape[1] - 1 - devices[:, ::-1].argmax(axis=1)


def chains(split: Split | None, seed: int) -> Iterator[Case]:
    """Generate chains of 3 to 6 ops on 3 devices, without end."""
    rng = np.random.default_rng([seed, split == "test"])
    links = np.full((3, 3), 1e9), np.full((3, 3), 1e-5)
    while True:
        ops = int(rng.integers(3, 7))
        edges = [(v, v + 1) for v in range(ops - 1)]
        problem = Problem.from_arrays(rng.uniform(1e-3, 1e-2, (ops, 3)), edges, np.full(ops - 1, 1e6), *links)
        yield Case(problem, {"ops": ops})


CHAINS = Dataset(cases=chains, size=20)
