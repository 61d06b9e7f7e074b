"""A small model in place of the real ones, so that benchmarks run in seconds."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import _models, executor, heterogeneous, optimize, runtimes, shared_cores
from placeit.devices.host import allowed_cores


@pytest.fixture(scope="session")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blocks of two branches of convolutions each."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "image"
    for block in range(3):
        branches = []
        for branch in range(2):
            inner = value
            for layer in range(2):
                name = f"conv_{block}_{branch}_{layer}"
                inputs = 3 if inner == "image" else 16 if inner.startswith("join") else 8
                weight = rng.normal(size=(8, inputs, 3, 3)).astype(np.float32) * 0.1
                weights.append(numpy_helper.from_array(weight, f"{name}_weight"))
                nodes.append(helper.make_node("Conv", [inner, f"{name}_weight"], [name], name=name, pads=[1] * 4))
                nodes.append(helper.make_node("Relu", [name], [f"{name}_relu"], name=f"{name}_relu"))
                inner = f"{name}_relu"
            branches.append(inner)
        value = f"join_{block}"
        nodes.append(helper.make_node("Concat", branches, [value], name=value, axis=1))
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, 16, 32, 32])],
        weights,
    )
    path = tmp_path_factory.mktemp("small") / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture
def small_model(small_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let benchmarks of real models take the small one for each of them."""
    if len(allowed_cores()) < 2:
        pytest.skip("needs two CPU cores, and this process may use one")
    for benchmark in (_models, executor, heterogeneous, optimize, runtimes, shared_cores):
        monkeypatch.setattr(benchmark, "model_file", lambda _: small_file)
