"""Devices that PyTorch drives: the host runs core sets, and streams run accelerators."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from placeit.backends.base import Model, TorchKernels
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.planning.coarsen import Grouping
from placeit.runtime.accelerators.stream_device import StreamDevice
from placeit.runtime.accelerators.torch_accelerator import open_accelerator
from placeit.runtime.devices.accelerator import Streams
from placeit.runtime.devices.base import RuntimeDevice
from placeit.runtime.devices.kernels import Kernel
from placeit.runtime.devices.kinds import DeviceKind
from placeit.runtime.devices.pytorch import TorchDevice
from placeit.runtime.group_times import groups_as_kernels

__all__ = ["KIND"]


def _supported(model: Model, device: Device) -> Collection[str]:
    if not isinstance(model, TorchKernels):
        raise DeviceError(f"PyTorch drives {device.name}, and {model.path} is not a PyTorch model: choose other devices.")
    return model.with_kernel(device.where.family.upper())


def _kernels(model: Model, grouping: Grouping, device: Device, precision: str, passes: int) -> list[Kernel]:
    return groups_as_kernels(model, grouping, device, precision, passes=passes)


def _open(device: Device, precision: str) -> RuntimeDevice:
    if device.core_set:
        return TorchDevice(device, precision=precision)
    return StreamDevice(open_accelerator([device], precision))


def _streams(devices: Sequence[Device], precision: str) -> Streams | None:
    own = {device.where.family for device in devices if device.kind == "torch" and not device.core_set}
    if len(own) != 1 or any(device.kind != "torch" for device in devices):
        return None
    return open_accelerator(devices, precision)


def _version() -> str:
    return f"PyTorch {torch.__version__}"


KIND = DeviceKind(_open, _supported, _kernels, _streams, version=_version)
