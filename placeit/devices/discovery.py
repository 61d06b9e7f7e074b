"""Find the devices of this machine, all of them or by name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, UsageError
from placeit.devices.host import allowed_cores, one_per_physical_core
from placeit.devices.kinds import HARDWARE, KINDS, FindsHardware, Kind, OnOpenVino, kind_of, kinds, load_kind, plugin_kinds
from placeit.devices.names import hardware_kind, parse_device, parse_devices
from placeit.devices.openvino import check_precision
from placeit.devices.other_nodes import other_nodes

_log = logging.getLogger("placeit")

__all__ = ["automatic", "available", "driven_by", "named", "other_names", "resolve", "tried"]


def named(spec: str | Sequence[str] | None = None, *, precision: str = "f32") -> Cluster:
    """Find the named devices on this machine.

    Args:
        spec: names, as :func:`placeit.devices.names.parse_devices` reads them. ``auto`` (or None) selects every device,
            including the CPU, that OpenVINO finds, that runs an op, and that computes in ``precision``; a warning names others.
            If only the CPU is left, it is split into two core sets with equally many physical cores; if their number is odd,
            the first has one more.
        precision: precision for ``auto``: ``f32``, ``f16`` or ``bf16``.

    Returns:
        The devices, in the order of the names, without links, which are measured when they are needed.

    Raises:
        UsageError: a name is malformed.
        DeviceError: a device does not exist, its cores are not allowed, or two names stand for one device.
    """
    if spec is None or (spec if isinstance(spec, str) else ",".join(spec)).strip() == "auto":
        openvino = kind_of(Device("CPU"))
        assert isinstance(openvino, OnOpenVino)  # noqa: S101
        return automatic(openvino.found(), precision)
    return Cluster(tuple(resolve(parse_devices(spec))))


def resolve(addresses: Sequence[Address]) -> list[Device]:
    """Return the devices at addresses of this machine or of connected nodes. Raises DeviceError; see :func:`named`."""
    devices = [_resolve(address) for address in addresses]
    if any(address.node for address in addresses):
        other_nodes().warn_of_shared_cores(devices)
    return devices


def available() -> list[Device]:
    """Return all devices of this machine that have names: OpenVINO's devices, each core as a core set, NVIDIA GPUs, and more.

    Each OpenVINO device has run an op, or says in :attr:`placeit.core.cluster.Device.unusable` why it cannot. NVIDIA GPUs (kind
    ``cuda``) are listed if the package nvidia-ml-py is installed and the driver answers. Devices of plug-ins' kinds are listed
    if the plug-in lists them; a plug-in that fails to do so is left out, with a warning.
    """
    devices: list[Device] = []
    for kind in (*KINDS, *HARDWARE, *plugin_kinds()):
        try:
            devices += _own_devices(kind)
        except (UsageError, DeviceError) as error:
            if kind in KINDS:
                raise
            _log.warning("Devices of the kind '%s' are not listed: %s", kind, error)
    return devices


def other_names(device: Device) -> list[str]:
    """Return the names by which other installed runtimes drive an available device: ``ort:CPU@0`` for ``CPU@0``."""
    if device.kind != hardware_kind(device.where):
        return []
    others = ((name, kind) for name, kind in kinds() if name != device.kind and not (kind.mode or kind.compiles))
    able = [(name, kind) for name, kind in others if device.where.family in (kind.hardware or ())]
    return [f"{name}:{device.name}" for name, kind in able if kind.installed()]


def automatic(found: Sequence[Device], precision: str = "f32") -> Cluster:
    """Choose among OpenVINO's devices as ``auto`` does (:func:`named`). Raises DeviceError if no device is usable."""
    chosen, others = list[Device](), list[str]()
    for device in found:
        try:
            if device.unusable:
                raise DeviceError(f"{device.name} cannot be used: {device.unusable}")
            check_precision(device, precision)
            chosen.append(device)
        except DeviceError as error:
            others.append(str(error).rstrip("."))
    if not chosen:
        raise DeviceError(f"OpenVINO finds no device that can be used. {'. '.join(others)}.")
    for why in others:
        _log.warning("A device that OpenVINO finds is left out. %s.", why)
    if [device.name for device in chosen] == ["CPU"]:
        cores = one_per_physical_core(allowed_cores())
        if len(cores) > 1:
            half = (len(cores) + 1) // 2
            parts = [Address("CPU", tuple(sorted(part))) for part in (cores[:half], cores[half:])]
            return Cluster(tuple(map(_resolve, parts)))
    return Cluster(tuple(chosen))


def tried(device: Device) -> Device:
    """Run an op on a device, if it is one of OpenVINO's whole devices; the result says in ``unusable`` why that failed."""
    if device.address is None:
        return device
    return other_nodes().tried(device) if device.address.node else kind_of(device).tried(device)


def driven_by(device: Device, name: str, kind: Kind) -> Device:
    """Return a device driven by another kind, given with its name. Raises DeviceError if its machine lacks the runtime."""
    if device.where.node:
        driver = other_nodes().device(replace(device.where, runtime=name)).driver
    else:
        driver = kind.driver(device)
    return replace(device, kind=name, driver=driver)


def _resolve(address: Address) -> Device:
    if address.node:
        return other_nodes().device(address)
    hardware = hardware_kind(address)
    finder = load_kind(hardware)
    if finder is not None and isinstance(finder, FindsHardware):
        device = finder.find(address)
    else:
        device = _plugin_device(hardware, address)
    kind = load_kind(address.runtime) if address.runtime else None
    if kind is None:
        return device
    if kind.mode:
        return replace(device, kind=address.runtime)
    # the precisions that OpenVINO reports for the device do not hold for other runtimes
    return replace(device, kind=address.runtime, driver=kind.driver(device), tags=frozenset())


def _plugin_device(kind: str, address: Address) -> Device:
    """Find hardware that only a plug-in's kind of device knows. Raises DeviceError if it does not exist."""
    devices = _own_devices(kind)
    for device in devices:
        if device.address == address:
            return device
    listing = ", ".join(device.name for device in devices) or "none"
    raise DeviceError(f"There is no device '{address}' on this machine. Devices that '{kind}' finds: {listing}.")


def _own_devices(name: str) -> list[Device]:
    """Return the hardware that only a kind of device knows. Raises UsageError, or the errors of the kind."""
    kind = load_kind(name)
    devices = [] if kind is None else list(kind.devices())
    for device in devices if not isinstance(kind, FindsHardware) else ():
        address = device.address
        consistent = address is not None and address.family == device.kind == name and str(address) == device.name
        if not consistent or address != parse_device(device.name):
            raise UsageError(
                f"The plug-in's kind of device '{name}' lists '{device.name}' of kind '{device.kind}' at {address}; its "
                f"devices are of kind '{name}', and called as their addresses are written, such as {name}:0."
            )
    return devices
