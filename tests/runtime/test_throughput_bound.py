"""Many requests in flight on real executors and servers, against the bound of :mod:`placeit.simulator.throughput_bound`."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from benchmarks._timed import TimedDevice
from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.cluster import Cluster, Device, Link
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.devices.base import Instance
from placeit.runtime.runtime import Runtime
from placeit.serving.server import Server
from placeit.simulator.throughput_bound import ThroughputCost
from tests.runtime.test_executor import null_runtime

NAMES, SECONDS, REQUESTS = "abc", 0.01, 30
CLUSTER = Cluster(tuple(map(Device, NAMES)), {pair: Link(1e9, 1e-6) for pair in itertools.permutations(NAMES, 2)})


def chain(shares: tuple[int, ...]) -> tuple[OpenVinoModel, Grouping, Plan]:
    """Make a chain of segments of 10 ms each, with the given number of them on each device."""
    first = ops.parameter([1], np.float32, name="in")
    value = first.output(0)
    for _ in range(sum(shares)):
        value = ops.relu(value).output(0)
    model = describe(ov.Model([ops.result(value)], [first], "chain"), Path("chain"))
    grouping = Grouping.singletons(model.graph)
    number = np.maximum(np.cumsum([kind == "Relu" for kind in model.graph.kinds]), 1)  # of the segment that an op is in
    placement = np.searchsorted(np.cumsum(shares), number).astype(np.int32)
    plan = Segmenter(grouping, Costs.zero(len(grouping.groups), CLUSTER)).plan(placement, merge=False)
    compute = plan.problem.compute.copy()
    for s, segment in enumerate(plan.segments):
        compute[s] = 0.0 if segment.passthrough else SECONDS
    return model, grouping, replace(plan, problem=replace(plan.problem, compute=compute))


@pytest.mark.parametrize("shares", [(2, 2, 2), (1, 3, 1)])
def test_an_executor_comes_close_to_the_bound_and_not_below_it(shares: tuple[int, ...]) -> None:
    model, grouping, plan = chain(shares)
    bound = float(ThroughputCost(plan.problem)(plan.placement)[0])
    assert bound == pytest.approx(max(shares) * SECONDS, rel=0.01)
    runtime, clock = null_runtime(model, grouping, CLUSTER, plan)
    with runtime, runtime.executor(plan, in_flight=4) as executor:
        executor.times(4)
        begin = clock.now
        executor.times(REQUESTS)
        assert bound <= (clock.now - begin) / REQUESTS <= 1.2 * bound  # 30 requests, of which the first fills the devices


class Meeting(TimedDevice):
    """A device one of whose runs waits until as many others wait."""

    def __init__(self, name: str, run: int, barrier: threading.Barrier) -> None:
        super().__init__(name, lambda _: 0.0, native=False)
        self._count, self._run, self._barrier = itertools.count(), run, barrier

    def call(self, instance: Instance) -> Callable[[], None]:
        def run() -> None:
            if next(self._count) == self._run:
                self._barrier.wait()

        return run


def test_a_server_keeps_every_device_busy() -> None:
    model, grouping, plan = chain((1, 1, 1))
    barrier = threading.Barrier(3, timeout=60)  # the first request is on the last device when the third is on the first one
    devices = [Meeting(name, 2 - number, barrier) for number, name in enumerate(NAMES)]
    runtime = Runtime(model, grouping, CLUSTER, devices=devices, transports={})
    with runtime, Server([runtime.executor(plan, in_flight=4)], queue=REQUESTS) as server:
        for answer in [server.submit({"in": np.zeros(1, np.float32)}) for _ in range(REQUESTS)]:
            answer.result(60)
    assert not barrier.broken
