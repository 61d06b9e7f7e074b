"""Weights in 8 and 4 bits stay as they are: in the task graph, in segments, in what goes to nodes and in bundles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
import pytest
from onnx import TensorProto, helper, numpy_helper
from openvino import opset13 as op

from placeit import Placement, Session, load
from placeit.backends.onnx.reading import read_onnx
from placeit.backends.openvino.inputs import Sizes
from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.devices.openvino import compile_model, openvino_core
from placeit.runtime.nodes.package import pack

WIDTH, LAYERS, GROUP = 256, 4, 64
RNG = np.random.default_rng(0)
SCALE = 1 / 64
Product = Callable[[int, str, str], tuple[list[onnx.NodeProto], list[onnx.TensorProto]]]


def decompressed(bits: int, *, grouped: bool, transposed: bool) -> Any:
    """What NNCF writes: integers and zero points that are converted, subtracted and scaled, in groups along the inputs."""
    outputs, inputs = (WIDTH, WIDTH) if transposed else (WIDTH // GROUP, GROUP)
    shape = [WIDTH, WIDTH // GROUP, GROUP] if grouped else [WIDTH, WIDTH]
    if grouped and not transposed:
        shape = [outputs, inputs, WIDTH]
    zeros = [1 if axis == (1 if grouped and not transposed else len(shape) - 1) else size for axis, size in enumerate(shape)]
    kind = {8: ov.Type.u8, 4: ov.Type.u4}[bits]
    integers = op.constant(RNG.integers(0, 2**bits, shape), kind)
    points = op.constant(np.full(zeros, 2 ** (bits - 1)), kind)
    difference = op.subtract(op.convert(integers, np.float32), op.convert(points, np.float32))
    scaled = op.multiply(difference, op.constant(np.full(zeros, SCALE, np.float32)))
    return op.reshape(scaled, op.constant([WIDTH, WIDTH]), False) if grouped else scaled


def ir(path: Path, bits: int, *, grouped: bool, transposed: bool = True) -> Path:
    x = op.parameter([1, WIDTH], np.float32, name="x")
    value = x
    for _ in range(LAYERS):
        value = op.tanh(op.matmul(value, decompressed(bits, grouped=grouped, transposed=transposed), False, transposed))
    ov.save_model(ov.Model([value], [x], "model"), path / "model.xml", compress_to_fp16=False)
    return path / "model.xml"


def file(path: Path, product: Product) -> Path:
    nodes, weights, value = [], [], "x"
    for layer in range(LAYERS):
        made, held = product(layer, value, f"product {layer}")
        value = "y" if layer == LAYERS - 1 else f"tanh {layer}"
        nodes += [*made, helper.make_node("Tanh", [f"product {layer}"], [value], name=value)]
        weights += held
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "model", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path / "model.onnx")
    return path / "model.onnx"


def dequantised(bits: int) -> Product:
    """Weights with ``DequantizeLinear``: of 8 bits by output, of 4 bits in blocks along the inputs."""
    kind = {8: TensorProto.INT8, 4: TensorProto.INT4}[bits]
    blocks = {"axis": 0, "block_size": GROUP} if bits == 4 else {"axis": 1}
    scales = np.full((WIDTH // GROUP, WIDTH) if bits == 4 else (WIDTH,), SCALE, np.float32)

    def product(layer: int, read: str, made: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
        names = [f"{what} {layer}" for what in ("weights", "scales", "floats")]
        data = RNG.integers(0, 256, WIDTH * WIDTH * bits // 8).astype(np.uint8).tobytes()
        weights = helper.make_tensor(names[0], kind, [WIDTH, WIDTH], data, raw=True)
        return [
            helper.make_node("DequantizeLinear", names[:2], names[2:], **blocks),
            helper.make_node("MatMul", [read, names[2]], [made], name=made),
        ], [weights, numpy_helper.from_array(scales, names[1])]

    return product


def in_blocks(layer: int, read: str, made: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """ONNX Runtime's own ``MatMulNBits``, of 4 bits."""
    names = [f"{what} {layer}" for what in ("weights", "scales")]
    weights = RNG.integers(0, 256, (WIDTH, WIDTH // GROUP, GROUP // 2)).astype(np.uint8)
    scales = np.full(WIDTH * WIDTH // GROUP, SCALE, np.float32)
    sizes = {"K": WIDTH, "N": WIDTH, "bits": 4, "block_size": GROUP}
    return [helper.make_node("MatMulNBits", [read, *names], [made], name=made, domain="com.microsoft", **sizes)], [
        numpy_helper.from_array(weights, names[0]),
        numpy_helper.from_array(scales, names[1]),
    ]


MODELS: dict[str, tuple[int, Callable[[Path], Path]]] = {
    "IR, 8 bits": (8, lambda path: ir(path, 8, grouped=False)),
    "IR, 4 bits in groups": (4, lambda path: ir(path, 4, grouped=True)),
    "IR, 4 bits in groups, inputs first": (4, lambda path: ir(path, 4, grouped=True, transposed=False)),
    "ONNX, 8 bits": (8, lambda path: file(path, dequantised(8))),
    "ONNX, 4 bits in blocks": (4, lambda path: file(path, dequantised(4))),
    "ONNX, MatMulNBits": (4, lambda path: file(path, in_blocks)),
}


@pytest.fixture(params=list(MODELS))
def compressed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[int, Path]:
    """Bits of each weight, and the file."""
    bits, write = MODELS[request.param]
    return bits, write(tmp_path)


def weight_bytes(bits: int) -> tuple[float, float]:
    """Bytes of the weights themselves, and the most that they take with scales and zero points."""
    least = LAYERS * WIDTH * WIDTH * bits / 8
    return least, 1.3 * least


def halves(session: Session) -> Placement:
    graph, group = session.model.graph, session.grouping.group_of
    device = (2 * group >= len(session.grouping.groups)).astype(np.int32)
    return Placement(graph.names, device, session.cluster.names, graph.hash, device)


def weight_types(model: ov.Model) -> list[str]:
    """In which types the CPU's kernels for matrix products hold their weights."""
    graph = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).get_runtime_model()
    facts = [node.get_rt_info() for node in graph.get_ops()]
    return [one["runtimePrecision"].astype(str) for one in facts if one["layerType"].astype(str) == "FullyConnected"]


def test_ops_are_those_of_a_model_in_float32_and_count_the_compressed_bytes(compressed: tuple[int, Path]) -> None:
    bits, path = compressed
    graph = load(path).graph
    assert sorted(graph.kinds) == sorted(["Parameter", "Result", *["MatMul", "Tanh"] * LAYERS])
    least, most = weight_bytes(bits)
    assert least <= graph.param_bytes.sum() <= most


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("ONNX")])
def test_the_graph_of_an_onnx_file_counts_the_compressed_bytes(name: str, tmp_path: Path) -> None:
    bits, write = MODELS[name]
    model = read_onnx(write(tmp_path), Sizes.of(None, None, None))
    least, most = weight_bytes(bits)
    assert least <= model.graph.param_bytes.sum() <= most
    assert least <= model.statistics()["parameter_bytes"] <= most


def test_segments_hold_compressed_weights_wherever_they_run(compressed: tuple[int, Path], tmp_path: Path) -> None:
    bits, path = compressed
    least, most = weight_bytes(bits)
    with Session(path, "CPU@0,CPU@1", cache=None) as session:
        placement = halves(session)
        segments = session.plan_of(placement).programs
        assert len(segments) == 2
        sources = [session.runtime.compiler.source(segment) for segment in segments]
        whole = weight_types(openvino_core().read_model(path))
        assert len(whole) == LAYERS
        assert sorted(kind for source in sources for kind in weight_types(source.in_format("openvino"))) == sorted(whole)
        sent = sum(len(data) for source in sources for data in pack(source, ["openvino"])[1].values())
        assert least <= sent <= most
        session.build(placement, tmp_path / "bundle")
    kept = sum(file.stat().st_size for file in (tmp_path / "bundle" / "segments").glob("*.bin"))
    assert least <= kept <= most


def test_outputs_of_models_with_compressed_weights_may_differ_by_no_more_than_others(compressed: tuple[int, Path]) -> None:
    _, path = compressed
    with Session(path, "CPU@0", cache=None) as session:
        assert session.tolerance == 1e-3


def test_a_model_can_ask_for_dynamic_quantisation(tmp_path: Path) -> None:
    model = openvino_core().read_model(ir(tmp_path, 8, grouped=False))
    model.set_rt_info("32", ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    ov.save_model(model, tmp_path / "asks.xml", compress_to_fp16=False)
    device = Device("CPU@0", address=Address("CPU", (0,)))
    for name, size in (("model", 0), ("asks", 32)):
        with Session(tmp_path / f"{name}.xml", "CPU@0", cache=None) as session:
            compiled = compile_model(session.model.ov_model, device, "f32")
            assert compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE") == size
            assert (session.tolerance > 0.02) == (size > 0)
