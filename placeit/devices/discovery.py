"""Finding the devices of this machine, and turning names into them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError
from placeit.devices.host import allowed_cores, memory_bytes, one_per_physical_core
from placeit.devices.names import DeviceName, format_cores, parse_devices
from placeit.devices.nvml import gpus, why_not
from placeit.devices.openvino import openvino_core

__all__ = ["available", "discover", "other_names", "resolve"]

_PACKAGES = {"ort": "onnxruntime", "torch": "torch"}
"""What has to be installed for each runtime that is asked for by name."""


def discover(spec: str | Sequence[str] | None = None) -> Cluster:
    """Find the named devices on this machine.

    Args:
        spec: names, as :func:`placeit.devices.names.parse_devices` reads them. ``auto`` (or None) is every device that
            OpenVINO finds, the CPU included; on a machine with only a CPU it is the CPU split into two core sets with
            equally many physical cores, the first having one more if their number is odd.

    Returns:
        The devices, in the order of the names, without links: those are measured when they are needed.

    Raises:
        UsageError: a name is malformed.
        DeviceError: a device is not there, its cores are not allowed, or two devices use the same cores.
    """
    names = parse_devices("auto" if spec is None else spec)
    core = openvino_core()
    if names[0].base == "auto":
        names = _auto(core)
    return Cluster(tuple(_resolve(core, name) for name in names))


def resolve(names: Sequence[DeviceName]) -> list[Device]:
    """Find the devices of parsed names on this machine. Raises DeviceError; see :func:`discover`."""
    core = openvino_core()
    return [_resolve(core, name) for name in names]


def available() -> list[Device]:
    """Everything that can be named on this machine: OpenVINO's devices, each core alone as a core set, NVIDIA GPUs.

    NVIDIA GPUs (kind ``cuda``) are listed if the package nvidia-ml-py is installed and the driver answers.
    """
    core = openvino_core()
    devices = [_resolve(core, DeviceName(name)) for name in core.available_devices]
    if "CPU" in core.available_devices:
        devices += [_resolve(core, DeviceName("CPU", (number,))) for number in allowed_cores()]
    return devices + _nvidia_gpus()


def other_names(device: Device) -> list[str]:
    """Names by which an available device can be given as well, to ask for a runtime that is installed: ``ort:CPU@0``."""
    if device.kind not in ("openvino", "cuda") or not (device.core_set or device.kind == "cuda"):
        return []
    return [f"{runtime}:{device.name}" for runtime, package in _PACKAGES.items() if find_spec(package) is not None]


def _auto(core: Any) -> list[DeviceName]:
    found = [DeviceName(name) for name in core.available_devices]
    if [name.base for name in found] != ["CPU"]:
        return found
    cores = one_per_physical_core(allowed_cores())
    if len(cores) == 1:
        return found
    half = (len(cores) + 1) // 2
    return [DeviceName("CPU", tuple(sorted(part))) for part in (cores[:half], cores[half:])]


def _resolve(core: Any, name: DeviceName) -> Device:
    found: list[str] = core.available_devices
    listing = f"OpenVINO finds: {', '.join(found)}"
    if name.kind == "ray":
        raise DeviceError(
            f"The device '{name}' belongs to the Ray node '{name.node}', and this version does not connect to Ray. {listing}."
        )
    if name.base.startswith("cuda:"):
        return _nvidia_gpu(name, listing)
    # OpenVINO lists a single GPU as GPU and several as GPU.0, GPU.1; both spellings of the first work in both cases
    if not {name.base, f"{name.base}.0", name.base.removesuffix(".0")} & set(found):
        raise DeviceError(f"There is no device '{name}' on this machine. {listing}.{_reason(core, name.base)}")
    cores: tuple[int, ...] = ()
    if name.base == "CPU":
        allowed = allowed_cores()
        cores = name.cores or allowed
        missing = sorted(set(cores) - set(allowed))
        if missing:
            raise DeviceError(
                f"The device '{name}' wants core{'s' if len(missing) > 1 else ''} {format_cores(missing)}, which this process "
                f"may not use; it may use {format_cores(allowed)}. Choose among those, or give the process more (taskset, "
                f"cpuset)."
            )
    device = _describe(core, name, cores)
    if not name.runtime:
        return device
    # what OpenVINO says that it can do there says nothing about other runtimes
    return replace(device, kind=name.runtime, driver=_driver(name.runtime), tags=frozenset())


def _nvidia_gpu(name: DeviceName, listing: str) -> Device:
    for gpu in _nvidia_gpus():
        if gpu.name == name.base:
            driver = f"{_driver(name.runtime)}, {gpu.driver}" if name.runtime else gpu.driver
            return replace(gpu, name=str(name), runs_on=str(name), kind=name.kind, driver=driver)
    raise DeviceError(f"placeit finds no NVIDIA GPU '{name.base}' on this machine: {why_not(name.base)}. {listing}.")


def _driver(runtime: str) -> str:
    """Name a runtime that was asked for, and its version. Raises DeviceError if it is not installed."""
    if runtime == "torch":
        import torch

        return f"PyTorch {torch.__version__}"
    from placeit.devices.onnxruntime import onnxruntime

    return f"ONNX Runtime {onnxruntime().__version__}"


def _describe(core: Any, name: DeviceName, cores: tuple[int, ...]) -> Device:
    family = name.base.split(".")[0]
    try:
        supported = core.get_property(name.base, "SUPPORTED_PROPERTIES")
        full_name = str(core.get_property(name.base, "FULL_DEVICE_NAME"))
        capabilities = core.get_property(name.base, "OPTIMIZATION_CAPABILITIES")
        memory = float("inf")
        if f"{family}_DEVICE_TOTAL_MEM_SIZE" in supported:
            memory = float(core.get_property(name.base, f"{family}_DEVICE_TOTAL_MEM_SIZE"))
        driver = "OpenVINO " + next(iter(core.get_versions(name.base).values())).build_number
        if f"{family}_DRIVER_VERSION" in supported:
            driver += f", driver {core.get_property(name.base, f'{family}_DRIVER_VERSION')}"
    except RuntimeError as error:
        raise DeviceError(f"OpenVINO lists the device '{name}' but cannot use it: {_last_line(error)}.") from error
    return Device(
        name=str(name),
        runs_on=str(name),
        full_name=full_name,
        memory_bytes=memory_bytes() if family == "CPU" else memory,
        cores=cores,
        tags=frozenset(str(capability).lower() for capability in capabilities),
        driver=driver,
    )


def _reason(core: Any, base: str) -> str:
    """Why OpenVINO has no such device, if its plugin does not load: most often the driver is missing."""
    try:
        core.get_property(base, "FULL_DEVICE_NAME")
    except RuntimeError as error:
        failure = re.search(r'Cannot load library ".*?": (.*)', str(error))
        if failure:
            return f" Its plugin does not load, which mostly means that a driver is missing: {failure[1]}."
    return ""


def _last_line(error: RuntimeError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "no reason given"


def _nvidia_gpus() -> list[Device]:
    return [
        Device(
            name=gpu.name,
            kind="cuda",
            runs_on=gpu.name,
            full_name=gpu.full_name,
            memory_bytes=gpu.memory_bytes,
            driver=f"NVIDIA {gpu.driver}",
        )
        for gpu in gpus()
    ]
