"""What one would do without placeit: the whole model on the CPU, as its runtime runs it there by itself."""

from __future__ import annotations

from dataclasses import replace

from placeit.core.cluster import Cluster, Device
from placeit.devices.host import allowed_cores, memory_bytes, one_per_physical_core
from placeit.devices.names import format_cores

__all__ = ["other_precision", "plain_devices"]

_SHORTER = (("bf16", "bf16"), ("f16", "fp16"))  # precisions that may be faster than f32, each with OpenVINO's tag


def plain_devices(cluster: Cluster) -> list[Device]:
    """Find the devices that are all core sets of a cluster at once, one for each runtime that drives some of these.

    It is ``CPU`` (or ``ort:CPU``), and ``CPU@0-3`` where the core sets leave out cores that this process may use. There is none
    where the cluster has fewer than two core sets; nor where a device or a link is emulated or described: that stands for
    hardware that is not here.

    Args:
        cluster: as a model's runtimes drive it (:mod:`placeit.runtime.drivers`).
    """
    sets = [device for device in cluster.devices if device.core_set]
    real = all(not device.emulated and not device.described for device in cluster.devices)
    if len(sets) < 2 or not real or any(link.origin != "measured" for link in cluster.links.values()):
        return []
    cores, allowed = {core for device in sets for core in device.cores}, allowed_cores()
    everything = cores.issuperset(one_per_physical_core(allowed))
    base = "CPU" if everything else f"CPU@{format_cores(sorted(cores))}"
    found: dict[str, Device] = {}
    for like in sets:
        name = f"ort:{base}" if like.kind == "ort" else base
        found[like.kind] = replace(
            like,
            name=name,
            runs_on=name,
            cores=allowed if everything else tuple(sorted(cores)),
            memory_bytes=min(memory_bytes(), sum(device.memory_bytes for device in sets)),
            power=None,
        )
    return list(found.values())


def other_precision(device: Device, precision: str) -> str | None:
    """Name another precision that a device may be faster in, or be more exact in; None if it has none."""
    if device.kind != "openvino":
        return None
    if precision != "f32":
        return "f32"
    return next((name for name, tag in _SHORTER if tag in device.tags), None)
