"""Small models, and where to find real ones."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import openvino
import pytest
from onnx import helper
from openvino import opset13 as op


@pytest.fixture(scope="session")
def packaged() -> Callable[[str], Path]:
    """Path of a model file that a PyPI package ships: ``packaged("silero_vad/data/silero_vad.onnx")``."""

    def find(name: str) -> Path:
        package, _, rest = name.partition("/")
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            pytest.skip(f"the package {package} is not installed")
        return Path(spec.submodule_search_locations[0]) / rest

    return find


@pytest.fixture
def onnx_file(tmp_path: Path) -> Callable[..., Path]:
    """Write an ONNX model from nodes, inputs and outputs: (name, element type, shape)."""

    def write(nodes: list[onnx.NodeProto], inputs: list, outputs: list, *, initializers: tuple = (), domain: str = "") -> Path:
        graph = helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info(*spec) for spec in inputs],
            [helper.make_tensor_value_info(*spec) for spec in outputs],
            initializer=[onnx.numpy_helper.from_array(array, name) for name, array in initializers],
        )
        opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
        path = tmp_path / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opsets), path)
        return path

    return write


@pytest.fixture
def ir_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a small OpenVINO IR: convolution, ReLU, a matrix product whose weights a second one shares, softmax."""

    def write(name: str = "small", seed: int = 0) -> Path:
        rng = np.random.default_rng(seed)
        image = op.parameter([1, 3, 8, 8], np.float32, name="image")
        kernel = op.constant(rng.standard_normal((8, 3, 3, 3)).astype(np.float32), name="kernel")
        conv = op.convolution(image, kernel, [1, 1], [0, 0], [0, 0], [1, 1], name="conv")
        flat = op.reshape(op.relu(conv, name="relu"), op.constant(np.array([1, 36, 8])), False, name="flat")
        weights = op.constant(rng.standard_normal((8, 8)).astype(np.float32), name="weights")
        left = op.matmul(flat, weights, False, False, name="left")
        right = op.matmul(flat, weights, False, True, name="right")
        out = op.softmax(op.multiply(left, right, name="product"), 2, name="probabilities")
        path = tmp_path / f"{name}.xml"
        openvino.save_model(openvino.Model([op.result(out, name="out")], [image], name), path, compress_to_fp16=False)
        return path

    return write
