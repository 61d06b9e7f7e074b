"""What a request takes beside its segments: in a closed loop, as one of many in flight, and through a server.

The plan is 8 segments on two devices. Where they compute nothing, the time per request is what the engine adds to each. Where
they take a while, the ratio to what a request keeps each device busy says how much of the capacity is left.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks._harness import Report
from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.telemetry import import_openvino
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.devices.timed import TimedDevice
from placeit.runtime.executor import Executor
from placeit.runtime.runtime import Runtime
from placeit.runtime.serving import Server

__all__ = ["run"]

_SEGMENTS, _IN_FLIGHT = 8, 4
_Inputs = dict[str, np.ndarray]


def run(cores: tuple[int, int], report: Report, *, requests: int) -> None:
    """Print a row for each kind of lane, of segments that take nothing and of some that take 500 us."""
    for seconds in (0.0, 500e-6):
        for lanes in ("native", "python"):
            with _open(cores, seconds) as (runtime, plan, inputs):
                executor = runtime.executor(plan, in_flight=_IN_FLIGHT, native=lanes == "native")
                with executor:
                    executor.times(requests)
                    closed = _per_request(functools.partial(_closed, executor, inputs), requests)
                    many = executor.times(requests) / requests
                with Server([runtime.executor(plan, in_flight=_IN_FLIGHT, native=lanes == "native")]) as server:
                    one = _per_request(functools.partial(_alone, server, inputs), requests)
                    served = _per_request(functools.partial(_keep_full, server, inputs), requests)
            bound = seconds * _SEGMENTS / 2
            report.row(
                plan=f"{_SEGMENTS} segments of {seconds * 1e6:.0f} us on two devices",
                lanes=lanes,
                closed_us=closed * 1e6,
                in_flight_us=many * 1e6,
                served_alone_us=one * 1e6,
                served_us=served * 1e6,
                share_of_capacity=bound / served if bound else None,
            )


def _per_request(ask: Callable[[int], object], requests: int) -> float:
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        ask(requests)
        times.append((time.perf_counter() - begin) / requests)
    return float(np.median(times))


def _closed(executor: Executor, inputs: _Inputs, count: int) -> None:
    for _ in range(count):
        executor.run(inputs)


def _alone(server: Server, inputs: _Inputs, count: int) -> None:
    for _ in range(count):
        server.submit(inputs).result()


def _keep_full(server: Server, inputs: _Inputs, count: int) -> None:
    answers = deque(server.submit(inputs) for _ in range(min(count, 16)))
    for _ in range(count - len(answers)):
        answers.popleft().result()
        answers.append(server.submit(inputs))
    for answer in answers:
        answer.result()


def _chain() -> OpenVinoModel:
    ops = import_openvino().opset13
    first = ops.parameter([1], np.float32, name="in")
    value = first.output(0)
    for _ in range(_SEGMENTS):
        value = ops.relu(value).output(0)
    return describe(import_openvino().Model([ops.result(value)], [first], "chain"), Path("chain"))


@contextlib.contextmanager
def _open(cores: tuple[int, int], seconds: float) -> Iterator[tuple[Runtime, Plan, _Inputs]]:
    model = _chain()
    grouping = Grouping.singletons(model.graph)
    cluster = Cluster((Device("a"), Device("b")), {pair: Link(1e9, 1e-6) for pair in (("a", "b"), ("b", "a"))})
    groups = len(grouping.groups)
    plan = Segmenter(grouping, Costs.zero(groups, cluster)).plan(np.arange(groups) * 2 // groups, merge=False)
    devices = [TimedDevice(name, lambda _: seconds, cores=(core,)) for name, core in zip("ab", cores, strict=True)]
    with Runtime(model, grouping, cluster, devices=devices, transports={}) as runtime:
        yield runtime, plan, model.random_inputs()
