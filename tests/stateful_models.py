"""Models with state, whose layers can be on different devices, and the same computed by NumPy, step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino.op.util import Variable, VariableInfo

from placeit.backends.openvino.model import OpenVinoModel, describe

ops = ov.opset13
SIZE = 8


def variable(name: str, shape: list[int]) -> Variable:
    info = VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape(shape), ov.Type.f32, name
    return Variable(info)


def totals(layers: int, seed: int = 0) -> OpenVinoModel:
    """Make layers that each add what they read to their total, and pass a mix of it on. Op names end with the layer."""
    rng = np.random.default_rng(seed)
    x = ops.parameter([1, SIZE], ov.Type.f32, name="x")
    value, writes = x.output(0), []
    for layer in range(layers):
        total = variable(f"total{layer}", [1, SIZE])
        read = ops.read_value(ops.constant(np.full((1, SIZE), layer, np.float32)), total, name=f"read{layer}")
        added = ops.add(read, value, name=f"added{layer}")
        writes.append(ops.assign(added, total))
        weights = ops.constant(rng.standard_normal((SIZE, SIZE)).astype(np.float32))
        value = ops.tanh(ops.matmul(added, weights, False, False, name=f"mixed{layer}"), name=f"value{layer}").output(0)
    value.get_tensor().set_names({"y"})
    return describe(ov.Model([ops.result(value, name=f"y{layers - 1}")], writes, [x], "totals"), Path("totals"))


class Totals:
    """What one sequence of :func:`totals` computes, by NumPy in double precision."""

    def __init__(self, layers: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._weights = [rng.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(layers)]
        self.reset()

    def reset(self) -> None:
        self.totals = [np.full((1, SIZE), layer, np.float64) for layer in range(len(self._weights))]

    def fork(self) -> Totals:
        other = Totals.__new__(Totals)
        other._weights, other.totals = self._weights, [total.copy() for total in self.totals]
        return other

    def run(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        value = x.astype(np.float64)
        for layer, weights in enumerate(self._weights):
            self.totals[layer] = self.totals[layer] + value
            value = np.tanh(self.totals[layer] @ weights)
        return value


def caches(path: Path, layers: int, seed: int = 0) -> Path:
    """Write layers that each keep all rows they have read, any number at a time, and add their mean to each new row."""
    rng = np.random.default_rng(seed)
    x = ops.parameter(ov.PartialShape([1, -1, SIZE]), ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    value, writes = x.output(0), []
    for layer in range(layers):
        kept = variable(f"cache{layer}", [1, -1, SIZE])
        read = ops.read_value(ops.constant(np.zeros((1, 0, SIZE), np.float32)), kept)
        rows = ops.concat([read.output(0), value], 1)
        writes.append(ops.assign(rows, kept))
        weights = ops.constant(rng.standard_normal((SIZE, SIZE)).astype(np.float32))
        mean = ops.reduce_mean(rows, ops.constant([1]), keep_dims=True)
        value = ops.tanh(ops.matmul(ops.add(value, mean), weights, False, False)).output(0)
    value.set_names({"y"})
    ov.save_model(ov.Model([ops.result(value)], writes, [x], "caches"), path, compress_to_fp16=False)
    return path


class Caches:
    """What one sequence of :func:`caches` computes, by NumPy in double precision."""

    def __init__(self, layers: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._weights = [rng.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(layers)]
        self.rows = [np.zeros((1, 0, SIZE)) for _ in self._weights]

    @property
    def state_bytes(self) -> int:
        return sum(4 * rows.size for rows in self.rows)

    def run(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        value = x.astype(np.float64)
        for layer, weights in enumerate(self._weights):
            self.rows[layer] = np.concatenate([self.rows[layer], value], 1)
            value = np.tanh((value + self.rows[layer].mean(1, keepdims=True)) @ weights)
        return value
