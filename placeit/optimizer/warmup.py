"""Compiles placeit's own kernels before a time that is limited begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import numpy as np

from placeit.core.cluster import Cluster, Device, Link
from placeit.core.graph import OpGraph
from placeit.placers.registry import parse_placer
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.costs import Progress
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.throughput import ThroughputCost, bottleneck

__all__ = ["compile_kernels"]

_OPS = 6


def compile_kernels(placers: Iterable[str], progress: Progress | None = None) -> None:
    """Group, place, plan and simulate a graph of a few ops, which compiles whatever a search needs of that.

    Numba keeps what it compiles beside the package, or in ``NUMBA_CACHE_DIR``: the first time this takes most of a minute, and
    then the tenth of a second that loading takes.

    Args:
        placers: names of placers of placeit, to be asked for a placement.
        progress: told what is being done.
    """
    names = list(placers)
    steps = len(names) + 2

    def say(step: int) -> None:
        if progress is not None:
            progress("loading kernels (compiled once, when placeit is new)", step / steps)

    say(0)
    grouping = coarsen(_graph(), max_groups=_OPS - 1)
    groups = len(grouping.groups)
    links = {pair: Link(1e9, 1e-6) for pair in (("a", "b"), ("b", "a"))}
    cluster = Cluster((Device("a", "described"), Device("b", "described")), links)
    seconds = np.linspace(1e-3, 2e-3, 2 * groups).reshape(groups, 2)
    segmenter = Segmenter(grouping, Costs(seconds, seconds / 10, np.full(2, 1e-5), cluster))
    problem = segmenter.problem()
    cost = SimulatedCost(problem, links="channel", queue="priority")
    for step, name in enumerate(names, 1):
        say(step)
        with contextlib.suppress(Exception):  # the search asks it again, and tells what it raises
            parse_placer(name).place(problem, cost, seed=0, evaluations=4)
    say(steps - 1)
    placement = np.arange(groups, dtype=np.int32) % 2
    segmenter.search(placement, problem, steps=2, seed=0)
    segmenter.priced(segmenter.plan(placement))
    segmenter.seconds(placement)
    bottleneck(problem, placement)
    ThroughputCost(problem)(placement)


def _graph() -> OpGraph:
    """Two chains between two ops."""
    edges = np.array([[0, 1], [0, 2], [1, 3], [2, 4], [3, 5], [4, 5]], np.int32)
    tensors = np.array([0, 0, 1, 2, 3, 4], np.int32)
    return OpGraph(
        names=tuple("abcdef"),
        kinds=("MatMul",) * _OPS,
        flops=np.arange(1.0, _OPS + 1),
        param_bytes=np.zeros(_OPS),
        tensor_op=np.arange(_OPS - 1, dtype=np.int32),
        tensor_port=np.zeros(_OPS - 1, np.int32),
        tensor_bytes=np.full(_OPS - 1, 64.0),
        tensor_shapes=((16,),) * (_OPS - 1),
        tensor_dtypes=("float32",) * (_OPS - 1),
        edges=edges,
        edge_tensor=tensors,
    )
