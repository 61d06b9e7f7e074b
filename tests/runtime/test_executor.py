"""The executor on null devices, on real ones, and when something fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeit.backends.coarsen import Grouping
from placeit.backends.openvino import Model, describe
from placeit.cluster import Cluster, Device, Link
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.errors import DeviceError, ExecutionError, UsageError
from placeit.runtime.devices.base import Done, Instance, SegmentSource
from placeit.runtime.devices.null import NullDevice, NullLink, VirtualClock
from placeit.runtime.devices.openvino import OpenVinoDevice
from placeit.runtime.executor import Executor
from placeit.runtime.runtime import Runtime
from placeit.runtime.segments import Costs, Plan, Segmenter

ops = ov.opset13


def random_model(seed: int, nodes: int) -> Model:
    """Element-wise ops over a random graph: several readers of one tensor, several outputs, two inputs."""
    rng = np.random.default_rng(seed)
    inputs = [ops.parameter([1, 8], ov.Type.f32, name) for name in ("x", "y")]
    values = [parameter.output(0) for parameter in inputs]
    for _ in range(nodes):
        a, b = rng.integers(len(values), size=2)
        values.append(ops.tanh(ops.add(values[a], values[b])).output(0))
    ends = [ops.result(value) for value in values if not value.get_target_inputs()]
    return describe(ov.Model(ends, inputs, "random"), Path("random"))


def random_costs(seed: int, groups: int, cluster: Cluster) -> Costs:
    rng = np.random.default_rng(seed)
    shape = (groups, len(cluster))
    # a coarse grid makes ties, which are where two schedulers would differ
    return Costs(rng.integers(1, 6, shape) * 1e-3, rng.integers(0, 3, shape) * 1e-3, rng.integers(0, 2, shape[1]) * 1e-3, cluster)


def described(devices: int) -> Cluster:
    names = [f"d{i}" for i in range(devices)]
    links = {(a, b): Link(32e3, 1e-3, "described") for a in names for b in names if a != b}
    return Cluster(tuple(Device(name, kind="described") for name in names), links)


def null_runtime(model: Model, grouping: Grouping, cluster: Cluster, plan: Plan) -> tuple[Runtime, VirtualClock]:
    clock = VirtualClock()
    seconds = {s.groups: float(plan.problem.compute[i, s.device]) for i, s in enumerate(plan.segments)}

    def lookup(source: SegmentSource) -> float:
        return seconds[source.segment.groups]  # type: ignore[attr-defined]

    def wait(_: threading.Event) -> None:
        clock.run()

    runtime = Runtime(
        model,
        grouping,
        cluster,
        devices=[NullDevice(name, clock, lookup) for name in cluster.names],
        transports={
            (i, j): NullLink(clock, cluster.bandwidth()[i, j], cluster.latency()[i, j])
            for i in range(len(cluster))
            for j in range(len(cluster))
            if i != j
        },
        wait=wait,
    )
    return runtime, clock


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 25), st.integers(1, 3), st.booleans())
def test_a_run_on_null_devices_equals_the_simulated_schedule_event_for_event(
    seed: int, nodes: int, devices: int, merge: bool
) -> None:
    model, cluster = random_model(seed, nodes), described(devices)
    grouping = Grouping.singletons(model.graph)
    costs = random_costs(seed, len(grouping.groups), cluster)
    placement = np.random.default_rng(seed).integers(devices, size=len(grouping.groups))
    plan = Segmenter(grouping, costs).plan(placement, merge=merge)
    runtime, clock = null_runtime(model, grouping, cluster, plan)
    executor = Executor(runtime, plan)
    executor.time()

    simulated = plan.schedule
    label = {segment.groups: s for s, segment in enumerate(plan.segments)}
    ran = {}
    moved = {}
    for span in executor.spans():
        if " -> " in span.track:
            moved[span.track, span.name] = (span.start, span.finish)
        else:
            groups = sorted({int(grouping.group_of[model.graph.index[name]]) for name in span.args["ops"]})
            ran[label[tuple(groups)]] = (span.start, span.finish)
    for s, segment in enumerate(plan.segments):
        if not segment.free:
            assert ran[s] == pytest.approx((simulated.start[s], simulated.finish[s]), abs=1e-12)
    assert clock.now == pytest.approx(simulated.makespan, abs=1e-12)
    assert len(moved) == len(simulated.transfers.tensor)


def test_segments_of_a_plan_cover_every_group_once_and_wait_in_no_circle() -> None:
    cluster = described(3)
    for seed in range(20):
        model = random_model(seed, 30)
        grouping = Grouping.singletons(model.graph)
        placement = np.random.default_rng(seed).integers(3, size=len(grouping.groups))
        plan = Segmenter(grouping, random_costs(seed, len(grouping.groups), cluster)).plan(placement)
        members = sorted(group for segment in plan.segments for group in segment.groups)
        assert members == list(range(len(grouping.groups)))
        assert all(placement[group] == segment.device for segment in plan.segments for group in segment.groups)
        assert (plan.problem.edges[:, 0] < plan.problem.edges[:, 1]).all()
