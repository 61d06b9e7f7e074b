"""Models with open sizes on an Intel GPU beside a core: with one program for all sizes, and with one for each."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import placeit.runtime.devices.openvino as driver
from placeit.session import Session
from placeit.workbench.options import Inputs
from tests.open_models import TWO, assert_close, at_one_size, divided

ops = ov.opset13
WIDTH = 8


def layers(folder: Path) -> Path:
    """Write two layers, whose last result is read by an op as well."""
    rng = np.random.default_rng(0)
    x = ops.parameter(ov.PartialShape([-1, WIDTH]), ov.Type.f32, name="x")
    y = x
    for _ in range(2):
        y = ops.relu(ops.matmul(y, ops.constant(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)), False, False))
    z = ops.reduce_mean(y, ops.constant([0]))
    for port, name in ((x, "x"), (y, "y"), (z, "z")):
        port.output(0).set_names({name})
    path = folder / "layers.xml"
    ov.save_model(ov.Model([ops.result(y), ops.result(z)], [x], "layers"), path, compress_to_fp16=False)
    return path


@pytest.mark.parametrize("slower", [1.0, 1.2])
def test_every_size_in_range_is_computed(
    tmp_path: Path, gpu: str, slower: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver, "times_slower", lambda *_: slower)
    path = layers(tmp_path)
    with ExitStack() as stack:
        session = stack.enter_context(
            Session(path, [gpu, TWO[0]], inputs=Inputs(shapes={"x": ("1..64@16", WIDTH)}), cache=None)
        )
        plan = session.plan_of(divided(session, 2))
        assert {segment.device for segment in plan.segments} == {0, 1}
        executor = stack.enter_context(session.executor(plan))
        for length in (16, 3, 16):
            inputs = {"x": np.random.default_rng(length).standard_normal((length, WIDTH)).astype(np.float32)}
            assert_close(executor.run(inputs), at_one_size(path, inputs))
    assert ("compiles anew for each size" in caplog.text) == (slower > 1.1)


def test_an_input_that_a_core_hands_on_has_the_size_of_each_request(tmp_path: Path, gpu: str) -> None:
    rng = np.random.default_rng(0)
    weights = [ops.constant(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)) for _ in range(2)]
    x = ops.parameter(ov.PartialShape([-1, WIDTH]), ov.Type.f32, name="x")
    first = ops.relu(ops.matmul(x, weights[0], False, False))
    second = ops.add(ops.matmul(first, weights[1], False, False), x)
    for port, name in ((x, "x"), (second, "y")):
        port.output(0).set_names({name})
    path = tmp_path / "handed_on.xml"
    ov.save_model(ov.Model([ops.result(second)], [x], "handed on"), path, compress_to_fp16=False)
    with ExitStack() as stack:
        session = stack.enter_context(
            Session(path, [TWO[0], gpu], inputs=Inputs(shapes={"x": ("1..64@16", WIDTH)}), cache=None)
        )
        executor = stack.enter_context(session.executor(session.plan_of(divided(session, 2))))
        for length in (16, 3, 40, 16):
            inputs = {"x": np.random.default_rng(length).standard_normal((length, WIDTH)).astype(np.float32)}
            assert_close(executor.run(inputs), at_one_size(path, inputs))
