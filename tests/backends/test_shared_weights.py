"""Weights that several ops, or the branches of an ``If``, read: how often they are in memory, and how often they count."""

from __future__ import annotations

import math
from itertools import permutations
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import placeit
from placeit import Constraints, Session
from placeit.backends.onnx.load import load
from placeit.backends.onnx.reading import read_onnx
from placeit.backends.openvino import reader
from placeit.backends.openvino.graph import nodes_of
from placeit.backends.openvino.inputs import Sizes
from placeit.core.errors import InfeasibleError, ModelError
from placeit.core.placement import Placement
from placeit.devices.openvino import openvino_core

WIDTH = 256
BYTES = 4 * WIDTH**2
WEIGHT = (np.random.default_rng(0).standard_normal((WIDTH, WIDTH)) / WIDTH).astype(np.float32)


def merged_decoder(folder: Path, *, turned: bool = False, width: int = WIDTH) -> Path:
    """Write an ``If`` whose branches read a weight that a later op reads as well; one branch maybe reads it transposed."""

    def branch(first: str, *, transposed: bool) -> onnx.GraphProto:
        nodes = [
            helper.make_node(first, ["x"], [f"{first} x"]),
            helper.make_node("Gemm", [f"{first} x", "w"], [f"{first} y"], transB=int(transposed)),
        ]
        return helper.make_graph(nodes, first, [], [helper.make_tensor_value_info(f"{first} y", TensorProto.FLOAT, None)])

    nodes = [
        helper.make_node(
            "If",
            ["which"],
            ["h"],
            name="if",
            then_branch=branch("Relu", transposed=False),
            else_branch=branch("Neg", transposed=turned),
        ),
        helper.make_node("Gemm", ["h", "w"], ["y"], name="last"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, width]),
        helper.make_tensor_value_info("which", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, width])]
    graph = helper.make_graph(nodes, "model", inputs, outputs, [numpy_helper.from_array(WEIGHT[:width, :width], "w")])
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("weights", ["copied", "external", "mapped"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("width", [16, WIDTH])
def test_branches_compute_with_the_weights_that_they_share(tmp_path, width, turned, weights, monkeypatch):
    path, weight = merged_decoder(tmp_path, turned=turned, width=width), WEIGHT[:width, :width]
    monkeypatch.setattr(reader, "_MIN_MAPPED", 1 if weights == "mapped" else math.inf)
    if weights == "external":  # OpenVINO maps such weights, and all that read one have it in the same memory
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=16)
    model = load(path)
    assert model.mapped == (weights == "mapped")
    compiled = openvino_core().compile_model(model.ov_model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    x = np.random.default_rng(1).standard_normal((1, width)).astype(np.float32)
    for which, inner in ((True, np.maximum(x, 0) @ weight), (False, -x @ (weight.T if turned else weight))):
        found = compiled.create_infer_request().infer({"x": x, "which": np.array(which)})[0]
        np.testing.assert_allclose(found, inner @ weight, rtol=1e-4, atol=1e-5)


PRODUCTS = {
    "as it is": "{0} = MatMul ({1}, w)",
    "transposed": "{0} = Gemm <transB = 1> ({1}, w)",
    "with three dimensions": "{0}_w = Unsqueeze (w, zero) {0}_x = MatMul ({1}, {0}_w) {0} = Squeeze ({0}_x, zero)",
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("width", [16, WIDTH])
@pytest.mark.parametrize(("first", "second"), [*permutations(PRODUCTS, 2)])
def test_ops_of_one_graph_or_branch_may_read_a_weight_in_two_ways(tmp_path, first, second, width, inside):
    steps = f"{PRODUCTS[first].format('a', 'x')} {PRODUCTS[second].format('b', 'a')}"
    if inside:
        then = f"then_branch = then () => (float[1,{width}] b) {{ {steps} }}"
        steps = f"c = If (which) <{then}, else_branch = other () => (float[1,{width}] d) {{ d = Neg (x) }}>"
    else:
        steps += " c = Where (which, b, x)"
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        model (float[1,{width}] x, bool which) => (float[1,{width}] y) <int64[1] zero = {{0}}> {{ {steps} y = Identity (c) }}
    """
    model, weight = onnx.parser.parse_model(text), WEIGHT[:width, :width]
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "model.onnx")
    compiled = openvino_core().compile_model(load(tmp_path / "model.onnx").ov_model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    x = np.random.default_rng(1).standard_normal((1, width)).astype(np.float32)
    expected = x
    for way in (first, second):
        expected = expected @ (weight.T if way == "transposed" else weight)
    found = compiled.create_infer_request().infer({"x": x, "which": np.array(True)})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_weight_that_branches_and_other_ops_read_is_in_memory_once(tmp_path):
    model = load(merged_decoder(tmp_path))
    large = [constant for constant in nodes_of(model.ov_model, "Constant") if constant.get_byte_size() == BYTES]
    assert len(large) == 3
    assert len({constant.data.ctypes.data for constant in large}) == 1
    assert model.statistics()["parameter_bytes"] < 1.1 * BYTES


def test_a_weight_that_a_branch_reads_transposed_is_a_second_weight(tmp_path):
    assert load(merged_decoder(tmp_path, turned=True)).statistics()["parameter_bytes"] > 2 * BYTES


@pytest.mark.parametrize("read", [load, lambda path: read_onnx(path, Sizes())], ids=["OpenVINO", "ONNX Runtime"])
def test_ops_that_share_a_weight_each_read_it_and_the_model_has_it_once(tmp_path, read):
    graph = read(merged_decoder(tmp_path)).graph
    readers = [op for op, size in zip(graph.names, graph.param_bytes, strict=True) if size >= BYTES]
    assert len(readers) == 2
    assert [(size, [graph.names[v] for v in ops]) for size, ops in graph.shared if size >= BYTES] == [(BYTES, readers)]
    assert graph.bytes_once.sum() < 1.1 * BYTES


def test_a_shared_weight_counts_once_against_the_limit_of_a_device(tmp_path):
    path = merged_decoder(tmp_path)
    limits = (Constraints(memory={"CPU@0": size}) for size in (1.1 * BYTES, 0.9 * BYTES))
    with Session(path, "CPU@0", cache=None, constraints=next(limits)) as session:
        assert session.grouping.groups.bytes_once.sum() < 1.1 * BYTES
    with (
        pytest.raises(InfeasibleError, match="262 kB"),
        Session(path, "CPU@0", cache=None, constraints=next(limits)) as session,
    ):
        session.optimize(budget=1)


def layers_with_one_weight(folder: Path, layers: int) -> Path:
    """Write a chain of products with one matrix, alternately as it is and transposed."""
    nodes, value = [], "x"
    for layer in range(layers):
        nodes.append(helper.make_node("Gemm", [value, "w"], [f"g{layer}"], transB=layer % 2))
        nodes.append(helper.make_node("Tanh", [f"g{layer}"], [f"t{layer}"]))
        value = f"t{layer}"
    nodes[-1].output[0] = "y"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "model", ends[:1], ends[1:], [numpy_helper.from_array(WEIGHT, "w")])
    path = folder / "layers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_bundle_has_a_weight_once_for_all_segments_that_read_it(tmp_path):
    with Session(layers_with_one_weight(tmp_path, 6), "CPU@0", cache=None) as session:
        graph, group = session.model.graph, session.grouping.group_of
        segments = (group // 2).astype(np.int32)  # some segments read it in both ways
        placement = Placement(graph.names, np.zeros(len(graph), np.int32), session.cluster.names, graph.hash, segments)
        manifest = session.build(placement, tmp_path / "model.placeit")
        inputs = session.model.random_inputs(3)
        expected = session.reference(inputs)
    assert len(manifest.segments) > 2
    assert BYTES <= sum(digest.bytes for name, digest in manifest.files.items() if name.endswith(".bin")) < 1.2 * BYTES
    assert sum(needed.weight_bytes for needed in manifest.devices) < 2.2 * BYTES
    with placeit.load(tmp_path / "model.placeit") as application:
        np.testing.assert_allclose(application.run(inputs)["y"], expected["y"], rtol=1e-4, atol=1e-6)


def test_a_model_for_onnx_runtime_alone_has_no_weights_in_memory(tmp_path):
    path = layers_with_one_weight(tmp_path, 4)
    with Session(path, "ort:CPU@0", cache=None) as session:
        whole = session.model.segment("onnx", range(len(session.model.graph)), [], [])
        assert whole.ByteSize() < BYTES / 2
        assert session.model.formats == {"onnx"}
        large = [constant for constant in nodes_of(session.model.ov_model, "Constant") if constant.get_byte_size() == BYTES]
        assert large
        assert not any(np.array_equal(constant.data, WEIGHT) for constant in large)
        inputs = session.model.random_inputs(3)
        result = session.reference(inputs)["y"]
    value = inputs["x"]
    for layer in range(4):
        value = np.tanh(value @ (WEIGHT.T if layer % 2 else WEIGHT))
    np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-6)


def test_a_damaged_file_with_weights_in_place_is_refused(tmp_path):
    path = layers_with_one_weight(tmp_path, 2)
    path.write_bytes(path.read_bytes()[: BYTES // 2])
    with pytest.raises(ModelError, match=str(path)):
        read_onnx(path, Sizes())
