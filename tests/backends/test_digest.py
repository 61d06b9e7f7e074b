"""Two models that take different times are never taken for one, and one model is always taken for itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import placeit
from placeit.backends.onnx.segments import with_onnx
from placeit.backends.openvino.model import describe
from placeit.backends.torch.model import load as load_torch

ops = ov.opset13


def described(value: object, *inputs: object) -> str:
    result = ops.result(value)
    result.set_friendly_name("r")
    for number, parameter in enumerate(inputs):
        parameter.set_friendly_name(f"x{number}")
    return describe(ov.Model([result], list(inputs), "m"), Path("m")).graph.hash


def image(*shape: int) -> object:
    return ops.parameter(list(shape or (1, 4, 16, 16)), ov.Type.f32)


def convolution(stride: int = 1, pad: int = 1, dilation: int = 1, kernel: int = 3, weight: float = 1.0) -> str:
    x, weights = image(), np.full((4, 4, kernel, kernel), weight, np.float32)
    y = ops.convolution(x, ops.constant(weights), [stride] * 2, [pad] * 2, [pad] * 2, [dilation] * 2)
    y.set_friendly_name("y")
    return described(y, x)


def loop(trips: int = 3, body: str = "matmul", axis: int | None = None, swapped: bool = False) -> str:
    x, inside = image(8, 8), ops.parameter([8, 8], ov.Type.f32)
    other, within = image(8, 8), ops.parameter([8, 8], ov.Type.f32)
    read, kept = (within, inside) if swapped else (inside, within)
    value = ops.matmul(read, kept, False, False) if body == "matmul" else ops.power(read, kept)
    model = ov.Model([ops.result(value), ops.result(ops.constant(np.array([True])))], [inside, within])
    made = ops.loop(ops.constant(np.int64(trips)), ops.constant(np.array([True])))
    made.set_function(model)
    made.set_special_body_ports([-1, 1])
    made.set_merged_input(inside, x.output(0), model.get_results()[0].output(0))
    made.set_invariant_input(within, other.output(0))
    last = made.get_iter_value(model.get_results()[0].output(0), -1)
    if axis is not None:
        last = made.get_concatenated_slices(model.get_results()[0].output(0), 0, 1, 1, -1, axis)
    made.validate_and_infer_types()
    made.set_friendly_name("loop")
    y = ops.reduce_sum(last, ops.constant([0, 1]), keep_dims=False)
    y.set_friendly_name("y")
    return described(y, x, other)


def choice(swapped: bool = False) -> str:
    condition, x = ops.parameter([], ov.Type.boolean), image(8, 8)
    bodies = []
    for make in (ops.relu, ops.tanh):
        inside = ops.parameter([8, 8], ov.Type.f32)
        bodies.append(ov.Model([ops.result(make(inside))], [inside]))
    made = ops.if_op(condition)
    made.set_then_body(bodies[swapped])
    made.set_else_body(bodies[not swapped])
    made.set_input(x.output(0), bodies[swapped].get_parameters()[0], bodies[not swapped].get_parameters()[0])
    value = made.set_output(bodies[swapped].get_results()[0], bodies[not swapped].get_results()[0])
    made.set_friendly_name("if")
    return described(value, condition, x)


def boxes(score: float = 0.5, center: str = "corner") -> str:
    x, scores = image(1, 50, 4), image(1, 2, 50)
    bounds = (ops.constant(np.int64(5)), ops.constant(np.float32(0.5)), ops.constant(np.float32(score)))
    made = ops.non_max_suppression(x, scores, *bounds, box_encoding=center)
    made.set_friendly_name("nms")
    y = ops.reduce_sum(made.output(2), ops.constant([0]), keep_dims=False)
    y.set_friendly_name("y")
    return described(y, x, scores)


def product(transposed: bool = False, swapped: bool = False) -> str:
    a, b = image(8, 8), image(8, 8)
    y = ops.matmul(*((b, a) if swapped else (a, b)), False, transposed)
    y.set_friendly_name("y")
    return described(y, a, b)


def reduction(axes: tuple[int, ...] = (2, 3), dtype: type = np.int64) -> str:
    x = image(1, 8, 8, 8)
    y = ops.reduce_mean(x, ops.constant(np.array(axes, dtype)), keep_dims=False)
    y.set_friendly_name("y")
    return described(y, x)


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (
            convolution,
            [{"dilation": 2, "pad": 2}, {"stride": 2}, {"pad": 2}, {"kernel": 1, "pad": 0}, {"kernel": 5, "pad": 2}],
        ),
        (loop, [{"trips": 300}, {"body": "power"}, {"swapped": True}, {"axis": 0}, {"axis": 1}]),
        (choice, [{"swapped": True}]),
        (boxes, [{"score": 0.01}, {"center": "center"}]),
        (product, [{"transposed": True}, {"swapped": True}]),
        (reduction, [{"axes": (1, 3)}, {"axes": (1, 2)}, {"dtype": np.int32}]),
    ],
)
def test_whatever_changes_in_an_op_of_openvino_changes_the_graphs_hash(make: Callable[..., str], changes: list[dict]) -> None:
    found = [make(), *(make(**change) for change in changes)]
    assert len(set(found)) == len(found)
    assert make() == found[0]


def test_weights_that_were_trained_further_are_the_same_graph() -> None:
    assert convolution(weight=1.0) == convolution(weight=2.0)


def onnx_file(
    path: Path, kind: str, inputs: list[tuple[str, list[int]]], constants: dict[str, np.ndarray], **attributes
) -> Path:
    reads = [name for name, _ in inputs] + list(constants)
    graph = helper.make_graph(
        [helper.make_node(kind, reads, ["y"], name="op", **attributes)],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    path.parent.mkdir(exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


WEIGHTS = np.ones((4, 2, 3, 3), np.float32)
CONV = {"group": 2, "dilations": [1, 1], "strides": [1, 1], "pads": [1, 1, 1, 1]}


@pytest.mark.parametrize(
    ("kind", "shapes", "constants", "attributes", "changes"),
    [
        (
            "Conv",
            [[1, 4, 16, 16]],
            {"w": WEIGHTS},
            CONV,
            [{"dilations": [2, 1]}, {"strides": [1, 2]}, {"pads": [1, 1, 1, 2]}],
        ),
        (
            "MaxPool",
            [[1, 4, 16, 16]],
            {},
            {"kernel_shape": [3, 3]},
            [{"kernel_shape": [3, 2]}, {"ceil_mode": 1, "strides": [2, 2]}],
        ),
        ("Gemm", [[4, 4], [4, 4], [4, 4]], {}, {"alpha": 1.5}, [{"alpha": 2.5}, {"transA": 1}, {"transB": 1}, {"beta": 3.0}]),
        ("LeakyRelu", [[4]], {}, {"alpha": 0.1}, [{"alpha": 0.2}]),
        ("Softmax", [[4, 4, 4]], {}, {"axis": 0}, [{"axis": 1}, {"axis": 2}]),
        ("Transpose", [[4, 4, 4]], {}, {"perm": [0, 1, 2]}, [{"perm": [0, 2, 1]}, {"perm": [2, 1, 0]}]),
        ("LRN", [[1, 4, 8, 8]], {}, {"size": 3}, [{"size": 5}, {"alpha": 0.5}, {"beta": 0.5}, {"bias": 2.0}]),
        ("DepthToSpace", [[1, 16, 4, 4]], {}, {"blocksize": 2}, [{"mode": "CRD"}, {"blocksize": 4}]),
    ],
)
def test_whatever_changes_in_an_onnx_node_changes_what_both_runtimes_go_by(
    tmp_path: Path, kind: str, shapes: list[list[int]], constants: dict, attributes: dict, changes: list[dict]
) -> None:
    inputs = [(f"x{number}", shape) for number, shape in enumerate(shapes)]
    made = [
        placeit.load(onnx_file(tmp_path / f"{number}.onnx", kind, inputs, constants, **attributes | change))
        for number, change in enumerate(({}, *changes))
    ]
    assert len({model.graph.hash for model in made}) == len(made)
    assert len({with_onnx(model).identity for model in made}) == len(made)
    assert not {model.identity for model in made} & {with_onnx(model).identity for model in made}


def test_an_onnx_model_is_the_same_from_another_path_and_in_another_process(
    tmp_path: Path,
) -> None:
    first = onnx_file(tmp_path / "model.onnx", "Conv", [("x", [1, 4, 16, 16])], {"w": WEIGHTS}, **CONV)
    other = tmp_path / "elsewhere" / "another name.onnx"
    other.parent.mkdir()
    shutil.copy(first, other)
    model = placeit.load(first)
    expected = f"{model.graph.hash}, {with_onnx(model).identity}"
    again = placeit.load(other)
    assert f"{again.graph.hash}, {with_onnx(again).identity}" == expected
    program = (
        "import sys, placeit; from placeit.backends.onnx.segments import with_onnx; model = placeit.load(sys.argv[1]); "
        "print(f'{model.graph.hash}, {with_onnx(model).identity}')"
    )
    done = subprocess.run([sys.executable, "-c", program, str(other)], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == expected


class Small(nn.Module):
    def __init__(
        self, dilation: int = 1, groups: int = 1, axis: int = 1, power: float = 2.0, index: tuple[int, ...] = (1, 0)
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=dilation, dilation=dilation, groups=groups)
        self.axis, self.power = axis, power
        self.register_buffer("index", torch.tensor(index))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.conv(x) ** self.power, self.axis)[:, self.index]


def torch_hash(seed: int = 0, **options) -> str:
    torch.manual_seed(seed)
    return load_torch(Small(**options), (torch.zeros(1, 4, 8, 8),)).graph.hash


def test_whatever_changes_in_an_op_of_pytorch_changes_the_graphs_hash() -> None:
    changes = [{}, {"dilation": 2}, {"groups": 2}, {"axis": 2}, {"axis": 3}, {"power": 3.0}, {"index": (0, 1)}]
    found = [torch_hash(**change) for change in changes]
    assert len(set(found)) == len(found)
    assert torch_hash(seed=1) == found[0], "only weights differ"
