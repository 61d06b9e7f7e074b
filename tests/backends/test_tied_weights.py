"""A square weight that is read both as it is and transposed, which OpenVINO's CPU plugin confuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest
from onnx import helper

from placeit.backends.openvino.reader import load

ops = ov.opset13

WIDTH = 128
WEIGHT = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
PATTERNS = [(False, True), (True, False, True)]


def saved(folder: Path, nodes: list[onnx.NodeProto]) -> Path:
    nodes[-1].output[0] = "y"
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], [onnx.numpy_helper.from_array(WEIGHT, "w")])
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def onnx_file(folder: Path, transposed: tuple[bool, ...]) -> Path:
    nodes, value = [], "x"
    for number, flag in enumerate(transposed):
        nodes.append(helper.make_node("Gemm", [value, "w"], [f"g{number}"], transB=int(flag)))
        nodes.append(helper.make_node("Tanh", [f"g{number}"], [f"t{number}"]))
        value = f"t{number}"
    return saved(folder, nodes)


def ir(folder: Path, transposed: tuple[bool, ...], *, half: bool = False, reversing: bool = False) -> Path:
    x = ops.parameter([1, WIDTH], ov.Type.f32, name="x")
    x.output(0).get_tensor().set_names({"x"})
    value = x
    for flag in transposed:
        weight = ops.constant(WEIGHT)  # written once, as all have equal values
        if flag and reversing:
            weight = ops.transpose(weight, ops.constant(np.array([], np.int64)))  # no order: the dimensions are reversed
        value = ops.tanh(ops.matmul(value, weight, False, flag and not reversing))
    path = folder / "model.xml"
    ov.save_model(ov.Model([ops.result(value)], [x], "tied"), path, compress_to_fp16=half)
    return path


def half_ir(folder: Path, transposed: tuple[bool, ...]) -> Path:
    return ir(folder, transposed, half=True)


def reversing_ir(folder: Path, transposed: tuple[bool, ...]) -> Path:
    return ir(folder, transposed, reversing=True)


def with_a_node_that_transposes(folder: Path, transposed: tuple[bool, ...]) -> Path:
    """Save products of which some read what a Transpose has made of the weight."""
    nodes, value = [helper.make_node("Transpose", ["w"], ["v"])], "x"
    for number, flag in enumerate(transposed):
        nodes.append(helper.make_node("MatMul", [value, "v" if flag else "w"], [f"g{number}"]))
        nodes.append(helper.make_node("Tanh", [f"g{number}"], [f"t{number}"]))
        value = f"t{number}"
    return saved(folder, nodes)


@pytest.mark.parametrize("transposed", PATTERNS)
@pytest.mark.parametrize("write", [onnx_file, with_a_node_that_transposes, ir, half_ir, reversing_ir])
def test_a_weight_and_its_transpose_are_not_confused(write: object, transposed: tuple[bool, ...], tmp_path: Path) -> None:
    model = load(write(tmp_path, transposed))  # type: ignore[operator]
    inputs = model.random_inputs()
    (value,) = inputs.values()
    for flag in transposed:
        value = np.tanh(value @ (WEIGHT.T if flag else WEIGHT))
    (found,) = model.reference(None, "f32")(inputs).values()
    np.testing.assert_allclose(found, value, atol=1e-2 if write is half_ir else 1e-5)
