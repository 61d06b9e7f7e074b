"""ONNX files of several kinds: recurrent, quantised, compressed, in half precision, and with weights that layers share."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from benchmarks._models import model_file
from placeit.core.telemetry import import_onnxruntime

__all__ = ["KINDS", "write_model"]

_HEADS, _STEPS = 4, 32


class _Writer:
    """Nodes and weights of a model from ``x``, float[1, steps, width], to ``y``."""

    def __init__(self, width: int, dtype: type[np.generic] = np.float32) -> None:
        self.width = width
        self._dtype, self._rng = np.dtype(dtype), np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, NDArray[Any]] = {}

    def weight(self, name: str, *shape: int) -> str:
        """Return the name of a weight; make it if it does not exist."""
        if name not in self._weights:
            drawn = self._rng.standard_normal(shape) / np.sqrt(shape[-2] if len(shape) > 1 else 1)
            self._weights[name] = drawn.astype(self._dtype)
        return name

    def constant(self, value: object, dtype: type[np.generic] | None = None) -> str:
        name = f"constant {len(self._weights)}"
        self._weights[name] = np.array(value, dtype or self._dtype)
        return name

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [f"{kind} {len(self._nodes)}"], **attributes))
        return str(self._nodes[-1].output[0])

    def write(self, path: Path) -> Path:
        self._nodes[-1].output[0] = "y"
        kind = helper.np_dtype_to_tensor_dtype(self._dtype)
        shapes = {"x": [1, _STEPS, self.width], "y": None}
        ends = [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]
        weights = [numpy_helper.from_array(value, name) for name, value in self._weights.items()]
        graph = helper.make_graph(self._nodes, "model", ends[:1], ends[1:], weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def _transformer(
    path: Path, width: int, *, layers: int = 6, shared: bool = False, dtype: type[np.generic] = np.float32, table: int = 0
) -> Path:
    w = _Writer(width, dtype)
    heads, flat = (w.constant(shape, np.int64) for shape in ([1, _STEPS, _HEADS, width // _HEADS], [1, _STEPS, width]))
    one, half, root2, root = map(w.constant, (1, 0.5, 2**0.5, (width / _HEADS) ** 0.5))

    def product(value: str, name: str, layer: int, rows: int, columns: int) -> str:
        return w.add("MatMul", value, w.weight(name if shared else f"{name} {layer}", rows, columns))

    value = w.add("Gather", w.weight("table", table, width), w.add("ArgMax", "x", axis=2, keepdims=0)) if table else "x"
    for layer in range(layers):
        normal = w.add("LayerNormalization", value, w.constant(np.ones(width)), axis=-1)
        query, key, held = (
            w.add("Transpose", w.add("Reshape", product(normal, name, layer, width, width), heads), perm=order)
            for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
        )
        scores = w.add("Softmax", w.add("Div", w.add("MatMul", query, key), root), axis=-1)
        seen = w.add("Reshape", w.add("Transpose", w.add("MatMul", scores, held), perm=[0, 2, 1, 3]), flat)
        value = w.add("Add", value, product(seen, "o", layer, width, width))
        wide = product(value, "up", layer, width, 4 * width)
        bent = w.add("Mul", w.add("Mul", wide, w.add("Add", w.add("Erf", w.add("Div", wide, root2)), one)), half)
        value = w.add("Add", value, product(bent, "down", layer, 4 * width, width))
    if table:
        w.add("MatMul", value, w.add("Transpose", "table", perm=[1, 0]))
    return w.write(path)


def _tied(path: Path, width: int) -> Path:
    """Write a transformer whose table of embeddings is its last matrix as well."""
    return _transformer(path, width, table=8 * width)


def _branches(path: Path, width: int) -> Path:
    """Write an ``If`` whose branches read the same weights, as merged decoders have them."""
    kind, names = onnx.TensorProto.FLOAT, [f"w {i}" for i in range(4)]

    def branch(first: str) -> onnx.GraphProto:
        nodes, value = [helper.make_node(first, ["x"], [first])], first
        for name in names:
            nodes.append(helper.make_node("MatMul", [value, name], [f"{first} {name}"]))
            value = f"{first} {name}"
        return helper.make_graph(nodes, first, [], [helper.make_tensor_value_info(value, kind, None)])

    chosen = helper.make_node("If", ["which"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))
    inputs = [
        helper.make_tensor_value_info("x", kind, [1, _STEPS, width]),
        helper.make_tensor_value_info("which", onnx.TensorProto.BOOL, []),
    ]
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((rng.standard_normal((width, width)) / width).astype(np.float32), name) for name in names
    ]
    outputs = [helper.make_tensor_value_info("y", kind, [1, _STEPS, width])]
    graph = helper.make_graph([chosen], "model", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _recurrent(path: Path, width: int, kind: str) -> Path:
    w, gates = _Writer(width), {"LSTM": 4, "GRU": 3}[kind]
    value = w.add("Transpose", "x", perm=[1, 0, 2])
    for layer in range(2):
        names = (
            w.weight(f"w {layer}", 1, gates * width, width),
            w.weight(f"r {layer}", 1, gates * width, width),
            w.weight(f"b {layer}", 1, 2 * gates * width),
        )
        value = w.add("Squeeze", w.add(kind, value, *names, hidden_size=width), w.constant([1], np.int64))
    return w.write(path)


def _quantised(path: Path, width: int, how: str) -> Path:
    quantization = _quantization()
    source = _transformer(path.with_suffix(".float32.onnx"), width)
    if how == "dynamic":
        quantization.quantize_dynamic(source, path)
    else:
        qdq = quantization.QuantFormat.QDQ
        quantization.quantize_static(source, path, _samples(width), quant_format=qdq, per_channel=True)
    source.unlink()
    return path


def _compressed(path: Path, width: int, bits: int) -> Path:
    """Write a transformer whose matrices are integers of 8 or 4 bits, with a scale for each block of 32 along the inputs."""
    source = _transformer(path.with_suffix(".float32.onnx"), width)
    model = onnx.load(source)
    source.unlink()
    kind, most, graph = getattr(onnx.TensorProto, f"INT{bits}"), 2 ** (bits - 1) - 1, model.graph
    for tensor in [tensor for tensor in graph.initializer if len(tensor.dims) == 2]:
        matrix, name = numpy_helper.to_array(tensor), tensor.name
        blocks = matrix.reshape(-1, 32, matrix.shape[1])
        scales = np.abs(blocks).max(axis=1, keepdims=True) / most
        integers = np.rint(blocks / scales).astype(np.int8).reshape(-1).view(np.uint8)
        if bits == 4:
            integers = (integers[::2] & 15) | (integers[1::2] << 4)
        graph.initializer.remove(tensor)
        graph.initializer.append(helper.make_tensor(f"{name} integers", kind, matrix.shape, integers.tobytes(), raw=True))
        graph.initializer.append(numpy_helper.from_array(scales[:, 0], f"{name} scales"))
        read = [f"{name} integers", f"{name} scales"]
        graph.node.insert(0, helper.make_node("DequantizeLinear", read, [name], axis=0, block_size=32))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def _quantization() -> Any:
    import_onnxruntime()
    return importlib.import_module("onnxruntime.quantization")


def _samples(width: int) -> Any:
    class Samples(_quantization().CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._rest: Iterator[dict[str, NDArray[np.float32]]] = iter(
                [{"x": np.random.default_rng(1).standard_normal((1, _STEPS, width)).astype(np.float32)}]
            )

        def get_next(self) -> dict[str, NDArray[np.float32]] | None:
            return next(self._rest, None)

    return Samples()


KINDS: dict[str, Callable[[Path, int], Path]] = {
    "transformer": _transformer,
    "shared": functools.partial(_transformer, shared=True, layers=12),
    "tied": _tied,
    "branches": _branches,
    "LSTM": functools.partial(_recurrent, kind="LSTM"),
    "GRU": functools.partial(_recurrent, kind="GRU"),
    "int8 QDQ": functools.partial(_quantised, how="QDQ"),
    "dynamic int8": functools.partial(_quantised, how="dynamic"),
    "int8 weights": functools.partial(_compressed, bits=8),
    "int4 weights": functools.partial(_compressed, bits=4),
    "float16": functools.partial(_transformer, dtype=np.float16),
    "CNN": lambda _path, _width: model_file("resnet50"),
}
"""Functions that write a model of each kind to a file. The CNN has a fixed size and an existing file."""


def write_model(kind: str, folder: Path, width: int) -> Path:
    """Write a model and return its file."""
    return KINDS[kind](folder / f"{kind.replace(' ', '_')}.onnx", width)
