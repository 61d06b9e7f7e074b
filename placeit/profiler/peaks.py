"""Measure the rates that devices can reach: of arithmetic, by a matrix product, and of memory, by an element-wise sum."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import PlaceitError
from placeit.core.telemetry import import_openvino
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.runtime import Runtime

__all__ = ["Peak", "peak_of"]

_SIZE = 1024  # of the matrices: more than 2 GFLOP, and 4 MB each
_LENGTH = 1 << 23  # of the vectors: 32 MB each, more than most caches hold
_RUNS = 5


@dataclass(frozen=True)
class Peak:
    """Floating-point operations and bytes per second that were reached; None for what could not be measured."""

    flops_per_s: float | None = None
    bytes_per_s: float | None = None


def peak_of(device: Device, precision: str = "f32") -> Peak:
    """Measure a device that OpenVINO drives; nothing is known of others. It takes about a second.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    if device.kind != "openvino":
        return Peak()
    product, total = _product(), _sum()
    flops, moved = 2.0 * _SIZE**3, 3.0 * 4 * _LENGTH
    seconds = [_seconds(model, device, precision) for model in (product, total)]
    rates = [None if one is None else work / one for work, one in zip((flops, moved), seconds, strict=True)]
    return Peak(*rates)


def _product() -> OpenVinoModel:
    openvino = import_openvino()
    value = openvino.opset13.parameter([_SIZE, _SIZE], openvino.Type.f32, name="x")
    weights = np.full((_SIZE, _SIZE), 0.5, np.float32)
    result = openvino.opset13.result(openvino.opset13.matmul(value, openvino.opset13.constant(weights), False, False))
    return describe(openvino.Model([result], [value], "product"), Path("product"))


def _sum() -> OpenVinoModel:
    openvino = import_openvino()
    values = [openvino.opset13.parameter([_LENGTH], openvino.Type.f32, name=name) for name in ("x", "y")]
    return describe(openvino.Model([openvino.opset13.result(openvino.opset13.add(*values))], values, "sum"), Path("sum"))


def _seconds(model: OpenVinoModel, device: Device, precision: str) -> float | None:
    """Seconds of the fastest of a few runs; None if the device does not run the model."""
    with contextlib.suppress(PlaceitError):
        cluster, grouping = Cluster((device,)), Grouping.singletons(model.graph)
        plan = Segmenter(grouping, Costs.zero(len(grouping.groups), cluster)).plan(np.zeros(len(grouping.groups), np.int32))
        with Runtime(model, grouping, cluster, precision=precision) as runtime, runtime.executor(plan) as executor:
            return min(executor.time() for _ in range(_RUNS))
    return None
