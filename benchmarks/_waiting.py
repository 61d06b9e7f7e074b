"""A server while many requests wait: the time to submit one, and the number that it serves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks._harness import Report
from benchmarks._models import progress
from benchmarks._timed import TimedDevice
from placeit.backends.openvino.model import describe
from placeit.core.cluster import Cluster, Device
from placeit.core.telemetry import import_openvino
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.runtime import Runtime
from placeit.serving.server import Server

__all__ = ["run"]

_SUBMITTED = 200


def run(core: int, report: Report, *, counts: Sequence[int], seconds: float) -> None:
    """Add a row for each number of requests that wait, and claims that compare the largest number with the smallest.

    The device is busy for a millisecond with each request.

    Args:
        core: of the device.
        report: receives rows and claims.
        counts: how many requests wait, in ascending order.
        seconds: of serving, for each.
    """
    ov = import_openvino()
    first = ov.opset13.parameter([1], np.float32, name="in")
    model = describe(ov.Model([ov.opset13.result(ov.opset13.relu(first))], [first], "one"), Path("one"))
    grouping = Grouping.singletons(model.graph)
    cluster, inputs, ended = Cluster((Device("a"),)), model.random_inputs(), [0]
    plan = Segmenter(grouping, Costs.zero(len(grouping.groups), cluster)).plan(np.zeros(len(grouping.groups), np.int64))
    device = TimedDevice("a", lambda _: 1e-3, cores=(core,))

    def count(_: object) -> None:
        ended[0] += 1

    found: list[tuple[float, float]] = []
    with Runtime(model, grouping, cluster, devices=[device]) as runtime:
        server = Server([runtime.executor(plan, in_flight=2)], queue=2 * counts[-1])
        for wanted in counts:
            while server.waiting < wanted:
                server.submit(inputs, start_within_s=3600).add_done_callback(count)
            took = []
            for _ in range(_SUBMITTED):
                begin = time.perf_counter()
                server.submit(inputs, start_within_s=3600).add_done_callback(count)
                took.append(time.perf_counter() - begin)
            begin, before = time.perf_counter(), ended[0]
            while (now := time.perf_counter()) < begin + seconds:
                while server.waiting < wanted:
                    server.submit(inputs, start_within_s=3600).add_done_callback(count)
                time.sleep(0.01)
            found.append((float(np.median(took)), (ended[0] - before) / (now - begin)))
            report.row(waiting=wanted, submit_us=found[-1][0] * 1e6, served_per_s=found[-1][1])
            progress(f"{wanted} waiting: {found[-1][0] * 1e6:.0f} us to submit, {found[-1][1]:.0f} served a second")
        begin = time.perf_counter()
        server.close(drain=False)
        report.row(dropped=server.queue // 2, close_s=time.perf_counter() - begin)
    few, many = found[0], found[-1]
    report.claim(f"submitting with {counts[-1]} waiting, over that with {counts[0]}", many[0] / few[0], "", at_most=3)
    report.claim(f"requests served with {counts[-1]} waiting, over those with {counts[0]}", many[1] / few[1], "", at_least=0.7)
