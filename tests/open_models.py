"""Models with open sizes for tests, and what plain OpenVINO computes for one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import openvino as ov
from numpy.typing import NDArray

from placeit.core.placement import Placement
from placeit.core.sizes import SizeRange
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import openvino_core
from placeit.session import Session

__all__ = [
    "LENGTHS",
    "OPEN",
    "TWO",
    "Arrays",
    "Shapes",
    "assert_close",
    "at_one_size",
    "attention",
    "convolutions",
    "divided",
    "onnx_attention",
    "onnx_recurrent",
    "values",
]

ops = ov.opset13
Arrays = dict[str, NDArray[np.generic]]
Shapes = Mapping[str, Sequence[int | str | SizeRange]]
OPEN: Shapes = {"ids": (1, "1..64@16"), "mask": (1, "1..64@16")}
_PLACES = [str(core) for core in allowed_cores()[:2]]
TWO = [f"CPU@{_PLACES[0]}", f"CPU@{_PLACES[-1]}"]
LENGTHS = (16, 3, 64, 1, 40, 64, 2)  # below, above and at the typical size; longer and shorter in turn
WIDTH = 8


def attention(folder: Path) -> Path:
    """Write an encoder of two layers of attention, whose reshapes compute their shapes at run time, as exporters write it."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> ov.Output:
        return ops.constant(rng.standard_normal(shape).astype(np.float32) / 3)

    ids = ops.parameter(ov.PartialShape([-1, -1]), ov.Type.i64, name="ids")
    mask = ops.parameter(ov.PartialShape([-1, -1]), ov.Type.f32, name="mask")
    x = ops.gather(weight(50, WIDTH), ids, ops.constant(0))
    for _ in range(2):
        sizes = ops.shape_of(x)
        batch, length = (ops.gather(sizes, ops.constant([i]), ops.constant(0)) for i in (0, 1))
        heads = ops.concat([batch, length, ops.constant([2]), ops.constant([WIDTH // 2])], 0)
        q, k, v = (
            ops.transpose(ops.reshape(ops.matmul(x, weight(WIDTH, WIDTH), False, False), heads, False), [0, 2, 1, 3])
            for _ in range(3)
        )
        bias = ops.unsqueeze(ops.multiply(ops.subtract(mask, ops.constant(np.float32(1))), np.float32(9)), [1, 2])
        scores = ops.softmax(ops.add(ops.matmul(q, k, False, True), bias), -1)
        flat = ops.concat([batch, length, ops.constant([WIDTH])], 0)
        seen = ops.reshape(ops.transpose(ops.matmul(scores, v, False, False), [0, 2, 1, 3]), flat, False)
        x = ops.add(x, ops.matmul(seen, weight(WIDTH, WIDTH), False, False))
        x = ops.add(x, ops.gelu(ops.matmul(x, weight(WIDTH, WIDTH), False, False), "erf"))
    pooled = ops.reduce_mean(x, ops.constant([1]))
    for port, name in ((ids, "ids"), (mask, "mask"), (x, "tokens"), (pooled, "pooled")):
        port.output(0).set_names({name})
    model = ov.Model([ops.result(x), ops.result(pooled)], [ids, mask], "encoder")
    path = folder / "encoder.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def convolutions(folder: Path) -> Path:
    """Write a chain of four convolutions over an image of any size."""
    rng = np.random.default_rng(0)
    image = ops.parameter(ov.PartialShape([1, 3, -1, -1]), ov.Type.f32, name="image")
    image.output(0).set_names({"image"})
    x = image
    for i in range(4):
        kernel = ops.constant(rng.standard_normal((4, 3 if i == 0 else 4, 3, 3)).astype(np.float32))
        x = ops.relu(ops.convolution(x, kernel, [1, 1], [1, 1], [1, 1], [1, 1]))
    x.output(0).set_names({"features"})
    path = folder / "features.xml"
    ov.save_model(ov.Model([ops.result(x)], [image], "features"), path, compress_to_fp16=False)
    return path


def onnx_attention(folder: Path) -> Path:
    """Write a layer of attention as ONNX exporters do, with the shapes of reshapes computed from their inputs' shapes."""
    rng = np.random.default_rng(0)
    shape = """
        size_{0} = Shape ({1})
        batch_{0} = Gather (size_{0}, zero)
        length_{0} = Gather (size_{0}, one)
        to_{0} = Concat <axis=0> (batch_{0}, length_{0}, {2})
        {0} = Reshape ({1}, to_{0})
    """
    heads = "".join(
        f"{x}_flat = MatMul (x, w{x})" + shape.format(f"{x}_heads", f"{x}_flat", "heads")
        + f"{x} = Transpose <perm=[0, 2, 1, 3]> ({x}_heads)\n"
        for x in "qkv"
    )  # fmt: skip
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    encoder (int64[n, m] ids, float[n, m] mask) => (float[n, m, {WIDTH}] tokens, float[n, {WIDTH}] pooled)
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[2] axes = {{1, 2}}, int64[2] heads = {{2, {WIDTH // 2}}},
     int64[1] width = {{{WIDTH}}}, float nine = {{9.0}}>
    {{
        x = Gather (table, ids)
        {heads}
        kt = Transpose <perm=[0, 1, 3, 2]> (k)
        scores = MatMul (q, kt)
        off = Sub (mask, unit)
        bias = Mul (off, nine)
        bias4 = Unsqueeze (bias, axes)
        masked = Add (scores, bias4)
        weights = Softmax <axis=-1> (masked)
        mixed = MatMul (weights, v)
        back = Transpose <perm=[0, 2, 1, 3]> (mixed)
        {shape.format("seen", "back", "width")}
        out = MatMul (seen, wo)
        tokens = Add (x, out)
        pooled = ReduceMean <axes=[1], keepdims=0> (tokens)
    }}"""
    model = onnx.parser.parse_model(text)
    for name, of in (("table", (50, WIDTH)), *((f"w{x}", (WIDTH, WIDTH)) for x in "qkvo")):
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(of).astype(np.float32) / 3, name))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1), "unit"))
    onnx.checker.check_model(model)
    path = folder / "encoder.onnx"
    onnx.save(model, path)
    return path


def onnx_recurrent(folder: Path) -> Path:
    """Write a recurrent network as PyTorch exports it: initial states of zeros, whose shape is computed from the input's."""
    rng = np.random.default_rng(0)
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    recurrent (float[n, m, {WIDTH}] x) => (float[m, n, 4] y)
    <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] width = {{{WIDTH}}}, int64[3] flat = {{0, 0, -1}}>
    {{
        time_first = Transpose <perm=[1, 0, 2]> (x)
        size = Shape (time_first)
        batch = Gather (size, one)
        of_state = Concat <axis=0> (two, batch, width)
        zeros = ConstantOfShape <value = float[1] {{0}}> (of_state)
        both, last = GRU <hidden_size={WIDTH}, direction="bidirectional", linear_before_reset=1>
            (time_first, w, r, b, , zeros)
        turned = Transpose <perm=[0, 2, 1, 3]> (both)
        side_by_side = Reshape (turned, flat)
        y = MatMul (side_by_side, out)
    }}"""
    model = onnx.parser.parse_model(text)
    gates = 3 * WIDTH
    for name, of in (("w", (2, gates, WIDTH)), ("r", (2, gates, WIDTH)), ("b", (2, 2 * gates)), ("out", (2 * WIDTH, 4))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(of).astype(np.float32) / 3, name))
    onnx.checker.check_model(model)
    path = folder / "recurrent.onnx"
    onnx.save(model, path)
    return path


def values(length: int, seed: int = 0) -> Arrays:
    rng = np.random.default_rng([length, seed])
    mask = np.ones((1, length), np.float32)
    mask[:, length - length // 4 :] = 0
    return {"ids": rng.integers(0, 50, (1, length)), "mask": mask}


def at_one_size(path: Path, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
    """Run plain OpenVINO, compiled for exactly these sizes."""
    model = openvino_core().read_model(path)
    model.reshape({name: list(value.shape) for name, value in inputs.items()})
    compiled = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    answer = compiled(dict(inputs))
    return {min(port.get_names()): np.array(answer[port]) for port in compiled.outputs}


def divided(session: Session, parts: int) -> Placement:
    """Place runs of groups on the devices in turn, a segment each."""
    groups = len(session.grouping.groups)
    part = np.arange(groups) * parts // groups
    placement = session.placement(part % len(session.cluster))
    segments = part[session.grouping.group_of].astype(np.int32)
    return Placement(placement.op_names, placement.devices, placement.device_names, placement.graph_hash, segments)


def assert_close(found: Mapping[str, NDArray[np.generic]], wanted: Arrays) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)
