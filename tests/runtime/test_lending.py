"""Inputs and outputs of all sizes: copied, lent, or written to the caller's arrays; no answer changes afterwards."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from placeit.backends.openvino.model import describe
from placeit.core.errors import UsageError
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.lending import MAX_COPIED_BYTES, MIN_LENT_BYTES
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime
from placeit.serving.server import Server

ops = ov.opset13
SIZES = {"copied": 64, "lent": MIN_LENT_BYTES // 4, "too large for a server's queue": MAX_COPIED_BYTES // 4 + 1024}


def opened(size: int) -> tuple[Runtime, Plan]:
    """A model of two outputs, y = x + 1 and z = 2 x, each float32[1, size], on one core."""
    x = ops.parameter([1, size], np.float32, name="x")
    y, z = ops.add(x, ops.constant(np.float32(1))), ops.multiply(x, ops.constant(np.float32(2)))
    results = [ops.result(made) for made in (y, z)]
    for result, name in zip(results, "yz", strict=True):
        result.get_output_tensor(0).set_names({name})
    model = describe(ov.Model(results, [x], "two"), Path("two"))
    grouping, cluster = Grouping.singletons(model.graph), discover([f"CPU@{allowed_cores()[0]}"])
    groups = len(grouping.groups)
    plan = Segmenter(grouping, Costs.zero(groups, cluster)).plan(np.zeros(groups, np.int32), merge=True)
    return Runtime(model, grouping, cluster), plan


@pytest.fixture(params=SIZES.values(), ids=SIZES.keys())
def executor(request: pytest.FixtureRequest) -> Iterator[PlanExecutor]:
    runtime, plan = opened(request.param)
    with runtime, runtime.executor(plan) as executor:
        yield executor


def value(executor: PlanExecutor, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(executor.inputs["x"].shape, np.float32)


def test_outputs_are_written_to_arrays_of_the_caller(executor: PlanExecutor) -> None:
    x, z = value(executor, 1), np.empty(executor.inputs["x"].shape, np.float32)
    plain = executor.run({"x": x})
    answer = executor.run({"x": x}, out={"z": z})
    assert [*answer] == [*plain]
    assert answer["z"] is z
    other = executor.run({"x": value(executor, 2)})  # which has its memory elsewhere
    np.testing.assert_array_equal(z, 2 * x)
    np.testing.assert_array_equal(answer["y"], x + 1)
    np.testing.assert_array_equal(plain["z"], 2 * x)
    np.testing.assert_array_equal(other["z"], 2 * value(executor, 2))


def test_an_array_that_is_not_contiguous_gets_a_copy(executor: PlanExecutor) -> None:
    x = value(executor, 1)
    z = np.zeros((x.shape[1], 1), np.float32).T[:, ::-1]
    assert executor.run({"x": x}, out={"z": z})["z"] is z
    np.testing.assert_array_equal(z, 2 * x)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (lambda x: {"w": np.empty_like(x)}, r"'out' has 'w', and the model has no such output"),
        (lambda x: {"z": np.empty(x.shape, np.float64)}, r"'out' has float64 .* for 'z', which is float32"),
        (lambda x: {"z": np.empty(x.size, np.float32)}, r"'out' has float32 \[\d+\] for 'z'"),
        (lambda x: {"z": np.broadcast_to(np.float32(0), x.shape)}, r"can be written to for 'z'"),
        (lambda x: {"z": x.tolist()}, r"can be written to for 'z'"),
        (lambda x: {"z": x}, r"for 'z' that shares memory with the input 'x'"),
        (lambda x: dict.fromkeys("yz", np.empty_like(x)), r"for 'z' that shares memory with the array for 'y'"),
    ],
)
def test_arrays_that_outputs_cannot_be_written_to_are_refused(executor: PlanExecutor, out, message: str) -> None:
    x = value(executor, 1)
    kept = x.copy()
    with pytest.raises(UsageError, match=message):
        executor.run({"x": x}, out=out(x))
    np.testing.assert_array_equal(x, kept)
    np.testing.assert_array_equal(executor.run({"x": x})["z"], 2 * x)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_answers_of_a_server_of_any_size_stay_as_they_are(size: int) -> None:
    runtime, plan = opened(size)
    with runtime, Server([runtime.executor(plan, in_flight=2)]) as server:
        given = [np.full((1, size), k, np.float32) for k in range(6)]
        answers = [server.submit({"x": x}) for x in given]
        for x, answer in zip(given, answers, strict=True):
            np.testing.assert_array_equal(answer.result()["y"], x + 1)
        for x, answer in zip(given, answers, strict=True):
            np.testing.assert_array_equal(answer.result()["z"], 2 * x)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_programs_of_a_closed_executor_are_gone_without_the_garbage_collector(size: int) -> None:
    runtime, plan = opened(size)
    gc.collect()
    gc.disable()
    try:
        with runtime:
            with runtime.executor(plan) as executor:
                executor.run({"x": value(executor, 1)})
                programs = [weakref.ref(program) for program in executor.programs if program is not None]
            del executor
        assert len(programs) == 1
        assert programs[0]() is None
    finally:
        gc.enable()
