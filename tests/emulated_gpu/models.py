"""Small models for Intel GPUs, cheap to compile: an emulated GPU takes a second for each matrix product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from placeit.core.telemetry import import_openvino

__all__ = ["branches", "convolutions"]


def branches(folder: Path, *, layers: int = 1, width: int = 64) -> Path:
    """Write ``mlp.xml``: a layer, two parallel branches of some layers, and their sum."""
    ops = import_openvino().opset13
    rng = np.random.default_rng(1)

    def layer(value: Any, name: str) -> Any:
        weights = (rng.standard_normal((width, width)) / width**0.5).astype(np.float32)
        return ops.matmul(value, ops.constant(weights), False, True, name=name)

    x = ops.parameter([1, width], np.float32, name="x")
    left = right = ops.relu(layer(x, "stem"), name="stem_relu")
    for number in ["", *range(2, layers + 1)]:
        left = ops.relu(layer(left, f"left{number}"), name=f"left{number}_relu")
        right = ops.tanh(layer(right, f"right{number}"), name=f"right{number}_tanh")
    return _save(ops.add(left, right, name="sum"), x, folder / "mlp.xml")


def convolutions(folder: Path) -> Path:
    """Write ``convolutions.xml``: two convolutions beside each other on one image, and their concatenation."""
    ops = import_openvino().opset13
    rng = np.random.default_rng(2)

    def convolution(value: Any, name: str) -> Any:
        weights = (rng.standard_normal((8, 3, 3, 3)) / 5).astype(np.float32)
        return ops.convolution(value, ops.constant(weights), [1, 1], [1, 1], [1, 1], [1, 1], name=name)

    x = ops.parameter([1, 3, 16, 16], np.float32, name="x")
    left = ops.relu(convolution(x, "left"), name="left_relu")
    right = ops.relu(convolution(x, "right"), name="right_relu")
    return _save(ops.concat([left, right], 1, name="join"), x, folder / "convolutions.xml")


def _save(output: Any, parameter: Any, path: Path) -> Path:
    openvino = import_openvino()
    model = openvino.Model([openvino.opset13.result(output, name="y")], [parameter], path.stem)
    openvino.save_model(model, path, compress_to_fp16=False)
    return path
