"""Searches for models with unusual outputs: one that is an input, one without dimensions, one that is random."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from placeit.backends import load
from placeit.core.errors import ExecutionError
from placeit.devices.host import allowed_cores
from placeit.session import Session
from tests.steady import optimize
from tests.torch_models import Calling

CORE = allowed_cores()[0]


def written(path: Path, nodes: list[onnx.NodeProto], shape: list[int], outputs: str) -> Path:
    x, *ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "x" + outputs)
    weights = [numpy_helper.from_array(np.eye(8, dtype=np.float32) * 2, "w")]
    graph = helper.make_graph(nodes, path.stem, [x], ends, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.two_cores
@pytest.mark.parametrize("kind", ["", "ort:"])
def test_an_output_that_is_an_input_is_given_back_and_the_input_stays_as_it_is(tmp_path: Path, kind: str) -> None:
    model = load(written(tmp_path / "through.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], [1, 8], "yx"))
    devices = [f"CPU@{CORE}", f"{kind}CPU@{allowed_cores()[1]}"]
    found = optimize(model, devices, budget=3.0, cache=None)
    ran = [one for one in (*found.candidates, *found.references) if one.output_error is not None]
    assert len(ran) > 1
    assert [one.output_error.max_rel for one in ran] == [0.0] * len(ran)


@pytest.mark.parametrize("device", [f"CPU@{CORE}", f"ort:CPU@{CORE}"])
def test_a_tensor_without_dimensions_keeps_having_none(tmp_path: Path, device: str) -> None:
    path = written(tmp_path / "scalar.onnx", [helper.make_node("Mul", ["x", "x"], ["y"])], [], "y")
    with Session(path, device, cache=None) as session:
        session.profile()
        inputs = {"x": np.array(3.0, np.float32)}
        report = session.run(session.placement([0] * len(session.grouping.groups)), runs=1, inputs=inputs)
        assert report.failed is None
        assert report.outputs["y"].shape == session.reference(inputs)["y"].shape == ()
        assert report.outputs["y"] == 9


def test_a_model_that_draws_random_numbers_is_said_to(tmp_path: Path) -> None:
    path = written(tmp_path / "random.onnx", [helper.make_node("RandomNormalLike", ["x"], ["y"])], [4, 4], "y")
    with pytest.raises(ExecutionError, match="computes other outputs each time for the same inputs"):
        optimize(path, f"ort:CPU@{CORE}", budget=2.0, cache=None)


def test_a_random_module_has_no_answer_even_if_some_placement_was_not_run() -> None:
    with pytest.raises(ExecutionError, match="computes other outputs each time for the same inputs"):
        optimize(Calling(lambda _, x: x + torch.rand(3)), f"CPU@{CORE}", example=torch.ones(2, 3), budget=0.1, cache=None)
