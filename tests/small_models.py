"""Small models that several folders of tests share."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import openvino as ov

from placeit.backends.openvino.model import OpenVinoModel, describe

ops = ov.opset13


def random_model(seed: int, nodes: int) -> OpenVinoModel:
    """Element-wise ops over a random graph: several readers of one tensor, several outputs, two inputs."""
    rng = np.random.default_rng(seed)
    inputs = [ops.parameter([1, 8], ov.Type.f32, name=name) for name in ("x", "y")]
    values = [parameter.output(0) for parameter in inputs]
    for _ in range(nodes):
        a, b = rng.integers(len(values), size=2)
        values.append(ops.tanh(ops.add(values[a], values[b])).output(0))
    ends = [ops.result(value) for value in values if not value.get_target_inputs()]
    return describe(ov.Model(ends, inputs, "random"), Path("random"))


def convolution(value: ov.Output, channels: int, size: int, rng: np.random.Generator) -> ov.Output:
    weights = rng.standard_normal((channels, value.get_shape()[1], size, size)).astype(np.float32)
    pad = [size // 2, size // 2]
    return ops.relu(ops.convolution(value, ops.constant(weights), [1, 1], pad, pad, [1, 1])).output(0)


@functools.cache
def inception_like(seed: int = 0) -> OpenVinoModel:
    """Branches of convolutions and pooling, concatenated twice, with an addition and a classifier."""
    rng = np.random.default_rng(seed)
    image = ops.parameter([1, 3, 12, 12], ov.Type.f32, name="image")
    value = convolution(image.output(0), 8, 3, rng)
    for _ in range(2):
        pool = ops.avg_pool(value, [1, 1], [1, 1], [1, 1], [3, 3], exclude_pad=True).output(0)
        branches = [convolution(value, 4, 1, rng), convolution(value, 4, 3, rng), convolution(pool, 4, 1, rng), value]
        value = ops.concat(branches, 1).output(0)
    value = ops.add(value, convolution(value, value.get_shape()[1], 1, rng)).output(0)
    mean = ops.reduce_mean(value, ops.constant([2, 3]), keep_dims=False)
    scores = ops.matmul(mean, ops.constant(rng.standard_normal((value.get_shape()[1], 5)).astype(np.float32)), False, False)
    result, features = ops.result(scores), ops.result(value)
    return describe(ov.Model([result, features], [image], "inception-like"), Path("inception-like"))
