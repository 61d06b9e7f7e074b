"""Measure the peak rates of devices: arithmetic, with a matrix product, and reading memory, with a maximum."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import PlaceitError
from placeit.core.telemetry import import_openvino
from placeit.devices.kinds import driven_by_openvino
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.runtime import Runtime

__all__ = ["Peak", "peak_of", "read_rate"]

_SIZE = 1024  # rows and columns of the matrices: a product is more than 2 GFLOP, a matrix 4 MB
_READ = 1 << 26  # bytes to read: more than most caches hold
_ROW = 1024  # elements of a row
_RUNS = 8  # number of runs, of which the fastest counts


@dataclass(frozen=True)
class Peak:
    """Peak rates in floating-point operations and bytes read per second; None for a rate that could not be measured."""

    flops_per_s: float | None = None
    bytes_per_s: float | None = None


def peak_of(device: Device, precision: str = "f32") -> Peak:
    """Measure the peak rates of a device in about a second; both are None unless OpenVINO drives it.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    if not driven_by_openvino(device):
        return Peak()
    seconds = _seconds(_product(), device, precision)
    return Peak(None if seconds is None else 2.0 * _SIZE**3 / seconds, read_rate(device, precision=precision))


def read_rate(device: Device, size: int = _READ, precision: str = "f32") -> float | None:
    """Measure the bytes per second at which a device that OpenVINO drives reads its memory; None if measuring fails.

    Args:
        device: the device.
        size: bytes to read in each run; caches hold a part of a small size.
        precision: precision in which the device computes.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    rows = max(1, size // (_ROW * 4))
    seconds = _seconds(_maxima(rows), device, precision)
    return None if seconds is None else rows * _ROW * 4 / seconds


def _product() -> OpenVinoModel:
    openvino = import_openvino()
    value = openvino.opset13.parameter([_SIZE, _SIZE], openvino.Type.f32, name="x")
    weights = np.full((_SIZE, _SIZE), 0.5, np.float32)
    result = openvino.opset13.result(openvino.opset13.matmul(value, openvino.opset13.constant(weights), False, False))
    return describe(openvino.Model([result], [value], "product"), Path("product"))


def _maxima(rows: int) -> OpenVinoModel:
    """Return a model that copies a row to the device's memory ``rows`` times, and computes the maximum of each copy."""
    openvino = import_openvino()
    ops = openvino.opset13
    value = ops.parameter([1, _ROW], openvino.Type.f32, name="x")
    copies = ops.broadcast(value, ops.constant([rows, _ROW]), name="copies")
    result = ops.result(ops.reduce_max(copies, ops.constant([1]), keep_dims=False))
    return describe(openvino.Model([result], [value], "maxima"), Path("maxima"))


def _seconds(model: OpenVinoModel, device: Device, precision: str) -> float | None:
    """Return the minimum seconds of the last segment over several runs; None if the device cannot run the model."""
    with contextlib.suppress(PlaceitError):
        cluster, grouping = Cluster((device,)), Grouping.singletons(model.graph)
        groups = len(grouping.groups)
        plan = Segmenter(grouping, Costs.zero(groups, cluster)).plan(np.zeros(groups, np.int32), merge=False)
        last = max(s for s, segment in enumerate(plan.segments) if not segment.passthrough)
        with Runtime(model, grouping, cluster, precision=precision) as runtime, runtime.executor(plan) as executor:
            executor.set_inputs(model.random_inputs())
            taken = []
            for _ in range(_RUNS):
                executor.time()
                taken.append(float(executor.segment_seconds(last=True)[last]))
            return min(taken)
    return None
