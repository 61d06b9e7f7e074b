"""Segments that compute the same with the same weights are one compiled program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.runtime.executor import Executor
from placeit.session import Session
from tests.small_models import ops

LAYERS, WIDTH = 4, 128  # a weight of 64 KiB
WEIGHTS = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5

Layer = Callable[[ov.Output, ov.Node, int], ov.Output]


def plain(value: ov.Output, weight: ov.Node, _: int) -> ov.Output:
    return ops.tanh(ops.matmul(value, weight, False, False)).output(0)


def in_the_same_memory(value: ov.Output, _: ov.Node, number: int) -> ov.Output:
    return plain(value, ops.constant(WEIGHTS, shared_memory=True), number)


def with_weights_of_its_own(value: ov.Output, _: ov.Node, number: int) -> ov.Output:
    return plain(value, ops.constant(WEIGHTS * (number + 1)), number)


def some_with_another_constant(value: ov.Output, weight: ov.Node, number: int) -> ov.Output:
    return ops.add(plain(value, weight, number), ops.constant(np.full((1, WIDTH), number % 2, np.float32))).output(0)


def some_with_another_op(value: ov.Output, weight: ov.Node, number: int) -> ov.Output:
    product = ops.matmul(value, weight, False, False)
    return (ops.tanh if number % 2 else ops.sigmoid)(product).output(0)


def some_with_another_attribute(value: ov.Output, weight: ov.Node, number: int) -> ov.Output:
    return ops.elu(ops.matmul(value, weight, False, False), 1.0 + number % 2).output(0)


def drawing(value: ov.Output, weight: ov.Node, number: int) -> ov.Output:
    value = plain(value, weight, number)
    low = ops.multiply(ops.reduce_max(value, ops.constant([0, 1])), ops.constant(np.float32(0.0)))
    high = ops.add(low, ops.constant(np.float32(1e-6)))
    return ops.add(value, ops.random_uniform(ops.constant([1, WIDTH]), low, high, "f32", 1, 1)).output(0)


def layered(layer: Layer) -> OpenVinoModel:
    x, weight = ops.parameter([1, WIDTH], ov.Type.f32, name="x"), ops.constant(WEIGHTS)
    value = x.output(0)
    for number in range(LAYERS):
        value = layer(value, weight, number)
    return describe(ov.Model([ops.result(value)], [x], "layers"), Path("layers"))


def by_layer(session: Session, devices: Sequence[int]) -> Placement:
    """Place layers on devices in turns, each layer as a separate segment."""
    graph, group = session.model.graph, session.grouping.group_of
    products = np.zeros(len(graph), np.int32)  # on the longest way to each op
    for u, v in graph.edges.tolist():
        products[v] = max(products[v], products[u] + (graph.kinds[v] == "MatMul"))
    of_group = np.zeros(len(session.grouping.groups), np.int32)
    np.maximum.at(of_group, group, products - 1)
    layer = of_group[group]
    return Placement(graph.names, np.take(devices, layer, mode="wrap"), session.cluster.names, graph.hash, layer)


@pytest.mark.parametrize(
    ("layer", "programs"),
    [
        (plain, 1),
        (in_the_same_memory, 1),
        (some_with_another_constant, 2),
        (some_with_another_op, 2),
        (some_with_another_attribute, 2),
        (with_weights_of_its_own, LAYERS),
        (drawing, LAYERS),
    ],
)
def test_equal_segments_are_compiled_once(layer: Layer, programs: int) -> None:
    model = layered(layer)
    inputs = model.random_inputs()
    with Session(model, f"CPU@{allowed_cores()[0]}", cache=None) as session:
        plan = session.plan_of(by_layer(session, [0]))
        assert len(plan.programs) == LAYERS
        with session.executor(plan, in_flight=2) as executor:
            executor.times(3)
            (found,) = executor.run(inputs).values()
        assert session.compiling.kinds["CPU"].compiled == programs
    (expected,) = model.reference(None, "f32")(inputs).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_later_plan_finds_the_program_of_an_equal_segment() -> None:
    with Session(layered(plain), f"CPU@{allowed_cores()[0]}", cache=None) as session:
        whole = by_layer(session, [0])
        assert whole.segments is not None
        halves = Placement(whole.op_names, whole.devices, whole.device_names, whole.graph_hash, whole.segments // 2)
        for placement in (whole, halves, whole):
            session.executor(session.plan_of(placement)).close()
        cpu = session.compiling.kinds["CPU"]
        assert (cpu.compiled, cpu.reused) == (2, 1)


@pytest.mark.two_cores
def test_devices_that_work_at_once_have_a_program_each() -> None:
    """As single groups, which otherwise share programs, are profiled at once if they are different groups."""
    cores = allowed_cores()[:2]
    with Session(layered(plain), [f"CPU@{core}" for core in cores], cache=None) as session:
        plan = session.plan_of(by_layer(session, [0, 1]))
        assert any(len(segment.groups) == 1 for segment in plan.programs)
        with session.executor(plan) as executor:
            assert isinstance(executor, Executor)
            assert executor.programs[0] is executor.programs[2]
            assert executor.programs[1] is executor.programs[3]
            assert executor.programs[0] is not executor.programs[1]
        assert session.compiling.kinds["CPU"].compiled == 2
