"""Random stream graphs like the graphs of a paper, divided into parts for training and for testing.

Source: Ni et al., Generalizable Resource Allocation in Stream Processing via Deep Reinforcement Learning (AAAI 2020), section
4.1. :mod:`placeit.bench.streams` has the graphs and what they cost.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from placeit.bench.streams import INSTRUCTIONS_PER_S, RATE, StreamGraph
from placeit.learning.workloads.registry import Case, Dataset, Split

__all__ = ["STREAMS", "draw_stream_graph"]

# branches and lengths of the paper's graphs: 17 shapes with up to 12 operators, of 50 graphs each; 23 others of 100 graphs each
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
_MIN_STAGE, _MAX_PAYLOAD = 0.05, 0.5  # minimum load of a stage, relative to other stages; maximum payload
_SMALL = 12  # maximum number of operators of a small graph
_TRAIN, _TEST = 2520, 630  # number of graphs


def draw_stream_graph(rng: np.random.Generator) -> StreamGraph:
    """Draw a graph like the paper's: a source, branches of equal length between which its tuples are divided, and a sink.

    Operators at the same position of two branches are equal except for their payload. The total load of all operators at
    :data:`RATE` depends on their number: 2 devices up to 12 operators, 3 up to 17, 4 up to 23, and 5 beyond.

    The distributions are calibrated to 2,650 of the 3,150 graphs that the authors have published. Differs from the text of the
    paper, which mentions 2 to 12 branches and up to 26 operators: some of the published graphs have one branch, and some have
    27 operators.
    """
    sizes = np.array([branches * length for branches, length in _SHAPES]) + 2
    weights = np.where(sizes <= _SMALL, 1.0, 2.0)
    branches, length = _SHAPES[int(rng.choice(len(_SHAPES), p=weights / weights.sum()))]
    ops = branches * length + 2
    devices = 2 + sum(ops > most for most in (_SMALL, 17, 23))
    stage = rng.uniform(_MIN_STAGE, 1.0, length)
    stage *= (devices - 2 * _ENDS_LOAD) / stage.sum()
    load = np.concatenate([[_ENDS_LOAD], np.repeat(stage, branches), [_ENDS_LOAD]])
    payload = rng.uniform(0.0, _MAX_PAYLOAD, ops)
    if devices == 2:
        payload *= rng.uniform()
    payload[-1] = 0.0
    inner = np.arange(1, ops - 1)
    fork = [(0, v) for v in inner[:branches]]
    steps = [(v, v + branches) for v in inner[:-branches]]
    join = [(v, ops - 1) for v in inner[-branches:]]
    return StreamGraph(
        load * INSTRUCTIONS_PER_S / RATE,
        payload,
        np.array(fork + steps + join, np.int32),
        np.array([1.0 / branches] * branches + [1.0] * (len(steps) + branches)),
    )


def _cases(split: Split | None, seed: int) -> Iterator[Case]:
    rng = np.random.default_rng([seed, split == "test"])
    for _ in itertools.count() if split is None else range(_TEST if split == "test" else _TRAIN):
        graph = draw_stream_graph(rng)
        yield Case(graph.problem(), {"operators": len(graph), "load": round(float(graph.load.sum()))})


STREAMS = Dataset(cases=_cases, size=_TRAIN, throughput=True)
"""Data set of generated graphs, with the paper's numbers of training and test graphs."""
