"""Described devices, which exist in simulation only: figures from data sheets, and costs derived from them."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.core.cluster import Device, Power
from placeit.core.errors import ClusterError
from placeit.core.units import Dimension, parse_quantity

__all__ = ["FIGURES", "ROOFLINE_EFFICIENCY", "catalog", "roofline_seconds"]

ROOFLINE_EFFICIENCY = 0.5
"""Share of the peak rate that one op reaches when arithmetic limits it. This is an assumption for all devices: dense
convolutions and matrix products at batch 1 reach between a third and nine tenths of the peak with a good library."""

FIGURES: dict[str, Dimension] = {
    "flops": "rate",
    "memory_bandwidth": "memory bandwidth",
    "memory": "memory",
    "idle_power": "power",
    "busy_power": "power",
    "op_overhead": "time",
}
"""The figures that describe a device, by their names in cluster files and in the catalogue."""


@functools.cache
def catalog() -> dict[str, tuple[Device, str]]:
    """Return the catalogue of devices: each device and the source of its figures, by catalogue name.

    The memory is infinite for a device that uses its machine's memory. An idle power of 0 means that no value is published.
    """
    import yaml

    entries: dict[str, dict[str, Any]] = yaml.load(
        resources.files("placeit.devices").joinpath("catalog.yaml").read_text("utf-8"), yaml.CSafeLoader
    )
    devices: dict[str, tuple[Device, str]] = {}
    for name, entry in entries.items():
        figures = {key: parse_quantity(str(entry[key]), dimension) for key, dimension in FIGURES.items() if key in entry}
        device = Device(
            name=name,
            kind="described",
            full_name=entry["full_name"],
            memory_bytes=figures.get("memory", float("inf")),
            tags=frozenset(entry["tags"]),
            power=Power(figures.get("idle_power", 0.0), figures["busy_power"]) if "busy_power" in figures else None,
            flops_per_s=figures["flops"],
            bytes_per_s=figures["memory_bandwidth"],
            op_overhead_s=figures["op_overhead"],
        )
        devices[name] = (device, entry["source"])
    return devices


def roofline_seconds(flops: ArrayLike, bytes_moved: ArrayLike, device: Device) -> NDArray[np.float64]:
    """Return the seconds that ops take on a described device, by the roofline model.

    ``max(flops / (peak * efficiency), bytes / memory bandwidth) + overhead`` with ``efficiency`` =
    :data:`ROOFLINE_EFFICIENCY`. Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009, with a
    constant overhead for starting an op. It compares devices by their figures; it does not predict measured latencies.

    Args:
        flops: floating-point operations of each op, any shape.
        bytes_moved: bytes that each op reads and writes (inputs, weights, outputs), of the same shape.
        device: a described device.

    Raises:
        ClusterError: the device has no figures.
    """
    if device.flops_per_s is None or device.bytes_per_s is None:
        raise ClusterError(
            f"The device '{device.name}' has no 'flops' and 'memory_bandwidth': its costs are measured, not described."
        )
    arithmetic = np.asarray(flops, np.float64) / (device.flops_per_s * ROOFLINE_EFFICIENCY)
    return np.maximum(arithmetic, np.asarray(bytes_moved, np.float64) / device.bytes_per_s) + device.op_overhead_s
