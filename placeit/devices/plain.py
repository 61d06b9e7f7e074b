"""Plain devices: the whole CPU as a runtime uses it without placeit, the baseline of every race."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.devices.host import allowed_cores, memory_bytes, one_per_physical_core
from placeit.devices.onnxruntime import has_onnxruntime, onnxruntime

__all__ = ["all_here", "in_throughput_mode", "other_precision", "plain_devices", "whole_devices"]

_SHORTER = (("bf16", "bf16"), ("f16", "fp16"))  # precisions that may be faster than f32, each with OpenVINO's tag


def plain_devices(cluster: Cluster, *, onnx: bool = False) -> list[Device]:
    """Find the plain devices of a cluster: all its core sets as one device, for each runtime that drives some of them.

    ONNX Runtime's is one of them for an ONNX file, if it is installed, whatever drives the core sets.

    It is ``CPU`` (or ``ort:CPU``), and ``CPU@0-3`` where the core sets leave out cores that this process may use. There is none
    where the cluster has that device itself, or fewer than two core sets; nor where a device is on another node, or a device or
    a link is emulated or described: that stands for hardware that is not here.

    It holds no more than the core set that may hold least: all its cores read all the weights, and a limit on a core set is one
    on what those cores hold.

    Args:
        cluster: as a model's runtimes drive it (:mod:`placeit.runtime.drivers`).
        onnx: whether the model is an ONNX file, in the precision that it has itself.
    """
    sets = [device for device in cluster.devices if device.core_set]
    if not sets or not all_here(cluster):
        return []
    found = _plain_devices(sets) if len(sets) > 1 else {}
    alone = len(cluster) == 1 and sets[0].plain
    if onnx and not alone and has_onnxruntime():
        found["ort"] = _plain_ort(sets)
    return list(found.values())


def _plain_ort(sets: Sequence[Device]) -> Device:
    """The CPU for ONNX Runtime, or as much of it as core sets are."""
    driver = f"ONNX Runtime {onnxruntime().__version__}"
    return replace(_together(sets[0], sets, "ort"), kind="ort", driver=driver, plain=True)


def _plain_devices(sets: Sequence[Device]) -> dict[str, Device]:
    """All core sets as one device, by the runtime that drives some of them."""
    found: dict[str, Device] = {}
    for like in sets:
        # a model comes back to its runtime by itself, unless it was asked for by name for all of them
        asked = {device.where.runtime for device in sets if device.kind == like.kind}
        whole = _together(like, sets, asked.pop() if len(asked) == 1 else "")
        if not any(device.kind == like.kind and device.where.cores == whole.where.cores for device in sets):
            found[like.kind] = whole
    return found


def _together(like: Device, sets: Sequence[Device], runtime: str) -> Device:
    """Core sets as one device, otherwise like one of them."""
    cores, allowed = {core for device in sets for core in device.cores}, allowed_cores()
    everything = cores.issuperset(one_per_physical_core(allowed))
    address = Address("CPU", () if everything else tuple(sorted(cores)), runtime=runtime)
    return replace(
        like,
        name=str(address),
        address=address,
        all_cores=allowed if everything else (),
        memory_bytes=min(memory_bytes(), *(device.memory_bytes for device in sets)),
        power=None,
    )


def whole_devices(cluster: Cluster, *, onnx: bool = False) -> list[Device]:
    """Find the devices that are none of a cluster's as such, and that yet may be the answer of a search on it.

    They are its plain devices (:func:`plain_devices`), and its cores in throughput mode (:func:`in_throughput_mode`).
    """
    mode = in_throughput_mode(cluster)
    return [*plain_devices(cluster, onnx=onnx), *([] if mode is None else [mode])]


def in_throughput_mode(cluster: Cluster) -> Device | None:
    """Find the cores of a cluster as OpenVINO divides them among streams by its throughput mode; None if there are none.

    They are a plain device, or the largest core set of several cores. There are none where a device or a link is emulated,
    described or on another node.
    """
    sets = [device for device in cluster.devices if device.core_set and device.kind == "openvino"]
    found = [*(device for device in plain_devices(cluster) if device.kind == "openvino"), *sets]
    cores = max((device for device in found if len(device.cores) > 1), key=lambda device: len(device.cores), default=None)
    if cores is None or not all_here(cluster):
        return None
    address = replace(cores.where, runtime="throughput")
    return replace(cores, name=str(address), kind="throughput", address=address)


def all_here(cluster: Cluster) -> bool:
    """Return whether all devices and links are those of this machine, neither emulated nor only described."""
    real = all(not device.emulated and device.address is not None and not device.address.node for device in cluster.devices)
    return real and all(link.origin == "measured" for link in cluster.links.values())


def other_precision(device: Device, precision: str) -> str | None:
    """Return another precision in which a device may be faster or more exact; None if it has none."""
    if device.kind != "openvino":
        return None
    if precision != "f32":
        return "f32"
    return next((name for name, tag in _SHORTER if tag in device.tags), None)
