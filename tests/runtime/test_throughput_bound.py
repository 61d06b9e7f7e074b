"""Many requests in flight on real executors and servers, against the bound of :mod:`placeit.simulator.throughput`."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.cluster import Cluster, Device, Link
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.devices.base import DoneCallback, Instance
from placeit.runtime.devices.timed import TimedDevice
from placeit.runtime.devices.worker import perform
from placeit.runtime.runtime import Runtime
from placeit.runtime.serving import Server
from placeit.simulator.throughput import ThroughputCost

NAMES, SECONDS, REQUESTS = "abc", 0.01, 30
TOLERANCE = 1.5
"""One request at a time takes three times the bound; that each segment takes 10 ms leaves room for a busy machine."""


class Sleeping(TimedDevice):
    """Leaves the cores to others: many such devices are busy at once on any machine."""

    def start(self, instance: Instance, done: DoneCallback) -> None:
        self.worker.submit(functools.partial(perform, functools.partial(time.sleep, SECONDS), str, done))


def chain(length: int) -> OpenVinoModel:
    first = ops.parameter([1], np.float32, name="in")
    value = first.output(0)
    for _ in range(length):
        value = ops.relu(value).output(0)
    return describe(ov.Model([ops.result(value)], [first], "chain"), Path("chain"))


@contextlib.contextmanager
def opened(shares: tuple[int, ...]) -> Iterator[tuple[Runtime, Plan, float]]:
    """So many segments on each device, one after the other; and the least seconds per request."""
    model = chain(sum(shares))
    grouping = Grouping.singletons(model.graph)
    cluster = Cluster(tuple(map(Device, NAMES)), {pair: Link(1e9, 1e-6) for pair in permutations(NAMES, 2)})
    number = np.maximum(np.cumsum([kind == "Relu" for kind in model.graph.kinds]), 1)  # of the segment that an op is in
    placement = np.searchsorted(np.cumsum(shares), number).astype(np.int32)
    plan = Segmenter(grouping, Costs.zero(len(grouping.groups), cluster)).plan(placement, merge=False)
    compute = plan.problem.compute.copy()
    for s, segment in enumerate(plan.segments):
        compute[s] = 0.0 if segment.passthrough else SECONDS
    bound = float(ThroughputCost(replace(plan.problem, compute=compute))(plan.placement)[0])
    devices = [Sleeping(name, lambda _: SECONDS, native=False) for name in NAMES]
    with Runtime(model, grouping, cluster, devices=devices, transports={}) as runtime:
        yield runtime, plan, bound


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(2, 2, 2), (1, 3, 1)])
def test_the_executor_comes_close_to_the_bound_and_not_below_it(shares: tuple[int, ...]) -> None:
    with opened(shares) as (runtime, plan, bound), runtime.executor(plan, requests=4) as executor:
        assert bound == pytest.approx(max(shares) * SECONDS, rel=0.01)
        executor.times(4, timeout=60)
        taken = [executor.times(REQUESTS, timeout=60) / REQUESTS for _ in range(3)]
        assert bound <= min(taken) <= TOLERANCE * bound


@pytest.mark.slow
def test_a_server_comes_close_to_the_bound_and_not_below_it() -> None:
    with opened((2, 2, 2)) as (runtime, plan, bound), Server([runtime.executor(plan, requests=4)], queue=REQUESTS) as server:
        taken = []
        for _ in range(3):
            answers = [server.submit({"in": np.zeros(1, np.float32)}) for _ in range(REQUESTS)]
            for answer in answers:
                answer.result(60)
            taken.append((answers[-1].ended - answers[0].begun) / REQUESTS)
        assert bound <= min(taken) <= TOLERANCE * bound
