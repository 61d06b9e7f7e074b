"""Plain devices: the whole CPU as a runtime uses it without placeit, the baseline of every race."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.devices.host import allowed_cores, memory_bytes, one_per_physical_core
from placeit.devices.kinds import kind_of, kinds

__all__ = ["all_here", "compiled_devices", "compiled_twins", "in_throughput_mode", "plain_devices", "whole_devices"]


def plain_devices(cluster: Cluster, *, onnx: bool = False) -> list[Device]:
    """Return the plain devices of a cluster: all its core sets as one device, for each runtime that drives some of them.

    For an ONNX file, ONNX Runtime's plain device is added, if ONNX Runtime is installed, whatever drives the core sets.

    A plain device is ``CPU`` (or ``ort:CPU``), or ``CPU@0-3`` if the core sets leave out cores that this process may use. The
    result is empty if the cluster has that device itself, or fewer than two core sets. It is also empty if a device is on
    another node, or a device or link is emulated or described, since these stand for other hardware.

    The memory of a plain device is the smallest memory of its core sets: all its cores read all the weights, and the limit of a
    core set limits what these cores hold.

    Args:
        cluster: the cluster, as a model's runtimes drive it (:mod:`placeit.runtime.drivers`).
        onnx: whether the model is an ONNX file, run in its own precision.
    """
    sets = [device for device in cluster.devices if device.core_set]
    if not sets or not all_here(cluster):
        return []
    found = _plain_devices(sets) if len(sets) > 1 else {}
    alone = len(cluster) == 1 and sets[0].plain
    for name, kind in kinds() if onnx and not alone else ():
        if kind.whole_file == "onnx" and kind.installed():
            found[name] = replace(_together(sets[0], sets, name), kind=name, driver=kind.version(), plain=True)
    return list(found.values())


def _plain_devices(sets: Sequence[Device]) -> dict[str, Device]:
    """Return all core sets as one device, by the runtime that drives some of them."""
    found: dict[str, Device] = {}
    for like in sets:
        # the name states the runtime only if the names of all these core sets do; otherwise the model's format chooses it
        runtimes = {device.where.runtime for device in sets if device.kind == like.kind}
        whole = _together(like, sets, runtimes.pop() if len(runtimes) == 1 else "")
        if not any(device.kind == like.kind and device.where.cores == whole.where.cores for device in sets):
            found[like.kind] = whole
    return found


def _together(like: Device, sets: Sequence[Device], runtime: str) -> Device:
    """Return core sets as one device, with the other properties of one of them."""
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
    """Return devices that are not in a cluster, but that a search on it may choose for the whole model.

    They are its plain devices (:func:`plain_devices`), its cores with a compiler (:func:`compiled_devices`), and its cores in
    throughput mode (:func:`in_throughput_mode`).
    """
    mode = in_throughput_mode(cluster)
    return [*plain_devices(cluster, onnx=onnx), *compiled_devices(cluster), *([] if mode is None else [mode])]


def compiled_devices(cluster: Cluster) -> list[Device]:
    """Return the cores of a cluster as devices that compile whole models, for each kind that runs models op by op.

    The cores are a plain device, or the largest core set. The result is empty if a device or link is emulated, described or on
    another node.
    """
    if not all_here(cluster):
        return []
    largest: dict[str, Device] = {}
    for cores in _core_sets(cluster):
        if cores.kind not in largest or len(cores.cores) > len(largest[cores.kind].cores):
            largest[cores.kind] = cores
    made = [kind.compiled(cores) for _, kind in kinds() for cores in largest.values()]
    return [device for device in made if device is not None and device.name not in cluster.names]


def compiled_twins(cluster: Cluster) -> list[Cluster]:
    """Return a cluster with each core set that runs models op by op replaced by a device on the same cores that compiles them.

    There is one result for each kind that compiles (:meth:`placeit.devices.kinds.Kind.compiled`). The list is empty if a device
    or link is emulated, described or on another node.
    """
    found: list[Cluster] = []
    for _, kind in kinds() if all_here(cluster) else ():
        made = tuple((kind.compiled(device) if device.core_set else None) or device for device in cluster.devices)
        if made != cluster.devices and len({device.name for device in made}) == len(cluster):
            found.append(Cluster(made))
    return found


def in_throughput_mode(cluster: Cluster) -> Device | None:
    """Return the cores of a cluster in their runtime's throughput mode, which divides them among streams.

    The cores are a plain device, or the largest core set of several cores. The result is None if no such cores exist, or if a
    device or link is emulated, described or on another node.
    """
    if not all_here(cluster):
        return None
    modes = (kind_of(cores).throughput_mode(cores) for cores in _core_sets(cluster) if len(cores.cores) > 1)
    return max((mode for mode in modes if mode is not None), key=lambda mode: len(mode.cores), default=None)


def _core_sets(cluster: Cluster) -> list[Device]:
    """Return the plain devices of a cluster, and its core sets."""
    return [*plain_devices(cluster), *(device for device in cluster.devices if device.core_set)]


def all_here(cluster: Cluster) -> bool:
    """Return whether all devices and links belong to this machine, and none of them is emulated or only described."""
    real = all(not device.emulated and device.address is not None and not device.address.node for device in cluster.devices)
    return real and all(link.origin == "measured" for link in cluster.links.values())
