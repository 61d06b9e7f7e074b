"""Find the devices of this machine, also by name."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from placeit.core.address import Address, format_cores
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, UsageError
from placeit.core.extras import import_extra, installed
from placeit.core.nearest import nearest
from placeit.devices.host import allowed_cores, memory_bytes, one_per_physical_core
from placeit.devices.names import found_kind, parse_device, parse_devices
from placeit.devices.nvml import Gpu, gpus, why_not
from placeit.devices.opencl import driver_versions
from placeit.devices.openvino import check_precision, openvino_core
from placeit.devices.openvino_errors import what_openvino_says
from placeit.devices.other_nodes import other_nodes
from placeit.devices.plugins import load_finder, plugin_kinds
from placeit.devices.trial import why_unusable

_log = logging.getLogger("placeit")

__all__ = ["automatic", "available", "named", "other_names", "resolve", "tried"]

_PACKAGES = {"ort": "onnxruntime", "torch": "torch"}
"""Package that each runtime needs, for the runtimes that a device name can select."""


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
        return automatic(_tried_devices(openvino_core()), precision)
    return Cluster(tuple(resolve(parse_devices(spec))))


def resolve(addresses: Sequence[Address]) -> list[Device]:
    """Return the devices at addresses of this machine or of connected nodes. Raises DeviceError; see :func:`named`."""
    core = openvino_core()
    devices = [_resolve(core, address) for address in addresses]
    if any(address.node for address in addresses):
        other_nodes().warn_of_shared_cores(devices)
    return devices


def available() -> list[Device]:
    """Return all devices of this machine that have names: OpenVINO's devices, each core as a core set, NVIDIA GPUs, and more.

    Each OpenVINO device has run an op, or says in :attr:`placeit.core.cluster.Device.unusable` why it cannot. NVIDIA GPUs (kind
    ``cuda``) are listed if the package nvidia-ml-py is installed and the driver answers. Devices of plug-ins' kinds are listed
    if the plug-in lists them; a plug-in that fails to do so is left out, with a warning.
    """
    core = openvino_core()
    devices = _tried_devices(core)
    if "CPU" in core.available_devices:
        devices += [_resolve(core, Address("CPU", (number,))) for number in allowed_cores()]
    devices += [_nvidia_gpu(gpu) for gpu in gpus()]
    for kind in plugin_kinds():
        try:
            devices += _own_devices(kind)
        except (UsageError, DeviceError) as error:
            _log.warning("Devices of the kind '%s' are not listed: %s", kind, error)
    return devices


def other_names(device: Device) -> list[str]:
    """Return other names of an available device that select another installed runtime: ``ort:CPU@0``."""
    if device.kind not in ("openvino", "cuda") or not (device.core_set or device.kind == "cuda"):
        return []
    return [f"{runtime}:{device.name}" for runtime, package in _PACKAGES.items() if installed(package)]


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
            return Cluster(tuple(_describe(openvino_core(), part) for part in parts))
    return Cluster(tuple(chosen))


def tried(device: Device) -> Device:
    """Run an op on an OpenVINO device of this machine; the result says if and why it cannot. Core sets are not tried."""
    address = device.address
    if device.kind != "openvino" or address is None or address.node or address.cores:
        return device
    return replace(device, unusable=why_unusable(device))


def _tried_devices(core: Any) -> list[Device]:
    """Return OpenVINO's devices; an unusable device says why it is unusable."""
    devices: list[Device] = []
    for address in map(Address, core.available_devices):
        try:
            devices.append(tried(_describe(core, address)))
        except DeviceError as error:
            devices.append(Device(name=str(address), address=address, unusable=str(error)))
    return devices


def _resolve(core: Any, address: Address) -> Device:
    if address.node:
        return other_nodes().device(address)
    found: list[str] = core.available_devices
    listing = f"OpenVINO finds: {', '.join(found)}"
    kind = found_kind(address)
    if kind not in ("openvino", "cuda") and not address.runtime:
        return _own_device(kind, address)
    if address.family == "cuda":
        device = _find_nvidia_gpu(address, listing)
    # OpenVINO lists a single GPU as GPU and several as GPU.0, GPU.1; both GPU and GPU.0 work in both cases
    elif address.unit not in {Address(name).unit for name in found}:
        families = {name.partition(".")[0] for name in found}
        hint = "" if address.family in families else nearest(address.hardware, families)
        raise DeviceError(f"There is no device '{address}' on this machine. {listing}{hint}.{_reason(core, address.family)}")
    else:
        device = _describe(core, address)
    if not address.runtime:
        return device
    if kind == "throughput":  # a mode of OpenVINO itself
        return replace(device, kind=kind)
    # the precisions that OpenVINO reports for the device do not hold for other runtimes
    driver = _driver(address) + (f", {device.driver}" if device.kind == "cuda" else "")
    return replace(device, kind=kind, driver=driver, tags=frozenset())


def _own_device(kind: str, address: Address) -> Device:
    """Find hardware that only a plug-in's kind of device knows."""
    own = _own_devices(kind)
    for device in own:
        if device.address == address:
            return device
    listing = ", ".join(device.name for device in own) or "none"
    raise DeviceError(f"There is no device '{address}' on this machine. Devices that '{kind}' finds: {listing}.")


def _own_devices(kind: str) -> list[Device]:
    """Return the hardware that only a plug-in's kind of device knows. Raises UsageError, or the errors of the kind."""
    devices = list(load_finder(kind).devices())
    for device in devices:
        address = device.address
        mine = address is not None and address.family == device.kind == kind and str(address) == device.name
        if not mine or address != parse_device(device.name):
            raise UsageError(
                f"The plug-in's kind of device '{kind}' lists '{device.name}' of kind '{device.kind}' at {address}; its "
                f"devices are of kind '{kind}', and called as their addresses are written, such as {kind}:0."
            )
    return devices


def _find_nvidia_gpu(address: Address, listing: str) -> Device:
    for gpu in gpus():
        if gpu.name == address.hardware:
            of = "" if address.part == (1, 1) else ", part {} of {}".format(*address.part)
            return replace(_nvidia_gpu(gpu), name=str(address), address=address, full_name=f"{gpu.full_name}{of}")
    raise DeviceError(
        f"placeit finds no NVIDIA GPU '{address.hardware}' on this machine: {why_not(address.hardware)}. {listing}."
    )


def _nvidia_gpu(gpu: Gpu) -> Device:
    return Device(
        name=gpu.name,
        kind="cuda",
        address=Address(gpu.name),
        full_name=gpu.full_name,
        memory_bytes=gpu.memory_bytes,
        driver=f"NVIDIA {gpu.driver}",
    )


def _driver(address: Address) -> str:
    """Return the runtime in an address with its version, as text. Raises DeviceError if it is not installed."""
    runtime = address.runtime
    if runtime == "torch":
        torch = import_extra(f"The device '{address}'", "torch", "torch", DeviceError)
        return f"PyTorch {torch.__version__}"
    if runtime == "ort":
        from placeit.devices.onnxruntime import onnxruntime

        return f"ONNX Runtime {onnxruntime().__version__}"
    return load_finder(runtime).version() or runtime


def _describe(core: Any, address: Address) -> Device:
    """Return an OpenVINO device with its properties. Raises DeviceError if it does not answer, or its cores are not allowed."""
    allowed = allowed_cores() if address.core_set else ()
    missing = sorted(set(address.cores) - set(allowed))
    if missing:
        raise DeviceError(
            f"The device '{address}' wants core{'s' if len(missing) > 1 else ''} {format_cores(missing)}, which this process "
            f"may not use; it may use {format_cores(allowed)}. Choose among those, or give the process more (taskset, cpuset)."
        )
    hardware = address.hardware
    try:
        full_name = str(core.get_property(hardware, "FULL_DEVICE_NAME"))
        told = _told(core, hardware)
        driver = "OpenVINO " + next(iter(core.get_versions(hardware).values())).build_number
    except RuntimeError as error:
        raise DeviceError(f"OpenVINO lists the device '{address}' but cannot use it: {what_openvino_says(error)}") from error
    tags = {str(capability).lower() for capability in told.get("OPTIMIZATION_CAPABILITIES", ())}
    memory, version = float("inf"), None
    if address.core_set:
        memory = memory_bytes()
    else:
        memory = float(told.get(f"{address.family}_DEVICE_TOTAL_MEM_SIZE", float("inf")))
        version = told.get(f"{address.family}_DRIVER_VERSION")
        if version is None and address.family == "GPU":
            version = driver_versions().get(str(told.get("DEVICE_UUID")))
        if "DEVICE_TYPE" in told:
            kind = told["DEVICE_TYPE"].name.lower()
            tags.add(kind)
            if kind == "integrated":  # its memory is a part of the host's
                memory = min(memory, memory_bytes())
    return Device(
        name=str(address),
        address=address,
        full_name=full_name,
        memory_bytes=memory,
        all_cores=() if address.cores else allowed,
        tags=frozenset(tags),
        driver=f"{driver}, driver {version}" if version else driver,
    )


def _told(core: Any, hardware: str) -> dict[str, Any]:
    """Return the properties that a plugin reports for a device. Raises RuntimeError if it does not answer."""
    family, supported = hardware.partition(".")[0], core.get_property(hardware, "SUPPORTED_PROPERTIES")
    own = [f"{family}_DEVICE_TOTAL_MEM_SIZE", f"{family}_DRIVER_VERSION"]
    told: dict[str, Any] = {}
    for name in ("OPTIMIZATION_CAPABILITIES", "DEVICE_TYPE", "DEVICE_UUID", *own):
        if name in supported:
            with contextlib.suppress(TypeError):  # a type that the Python binding does not know
                told[name] = core.get_property(hardware, name)
    return told


def _reason(core: Any, family: str) -> str:
    """Return why OpenVINO has no device of a family: its plugin does not load or finds none, mostly for lack of a driver."""
    try:
        if not core.get_property(family, "AVAILABLE_DEVICES"):
            return " OpenVINO has a plugin for such devices, which finds none: its driver may be missing, or too old."
    except RuntimeError as error:
        found = re.search(r'Cannot load library ".*?": (.*)', what_openvino_says(error))
        if found:
            return f" Its plugin does not load, which mostly means that a driver is missing: {found[1].rstrip('.')}."
    return ""
