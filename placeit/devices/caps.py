"""Limits on the memory of devices, below their capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real

from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.core.nearest import nearest
from placeit.core.units import parse_quantity

__all__ = ["capped", "parse_caps"]


def parse_caps(texts: Sequence[str]) -> dict[str, float]:
    """Read ``DEVICE=SIZE`` for each text, such as ``CPU@0=2GB``: bytes by device. Raises UsageError."""
    caps: dict[str, float] = {}
    for text in texts:
        device, _, size = (part.strip() for part in text.rpartition("="))
        if not device or not size:
            raise UsageError(f"Cannot read --memory '{text}'; write DEVICE=SIZE, such as CPU@0=2GB.")
        try:
            cap = parse_quantity(size, "memory")
        except UsageError as error:
            raise UsageError(f"Cannot read --memory '{text}': {error}") from error
        if caps.setdefault(device, cap) != cap:
            raise UsageError(f"--memory gives '{device}' two limits.")
    return caps


def capped(cluster: Cluster, caps: Mapping[str, float | str] | None) -> Cluster:
    """Return a cluster with the memory of its devices limited.

    Args:
        cluster: the devices.
        caps: largest memory by device name: bytes, or a quantity such as ``"2 GB"``. It never raises a device's memory.

    Raises:
        UsageError: a device does not exist, or a limit is not a size.
    """
    if not caps:
        return cluster
    limits: dict[str, float] = {}
    for name, cap in caps.items():
        if name not in cluster.names:
            raise UsageError(
                f"The memory limit of '{name}' names an unknown device; the devices are {', '.join(cluster.names)}"
                f"{nearest(name, cluster.names)}."
            )
        limit: object = parse_quantity(cap, "memory") if isinstance(cap, str) else cap
        if not (isinstance(limit, Real) and float(limit) >= 0):
            raise UsageError(f"The memory limit of '{name}' is {cap} bytes; it must be a number that is not negative.")
        limits[name] = float(limit)
    devices = (
        replace(device, memory_bytes=min(device.memory_bytes, limits.get(device.name, device.memory_bytes)))
        for device in cluster.devices
    )
    return Cluster(tuple(devices), cluster.links)
