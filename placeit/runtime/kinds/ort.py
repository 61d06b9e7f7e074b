"""Devices that ONNX Runtime drives: the host runs core sets, and streams run NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from placeit.backends.base import Model
from placeit.core.cluster import Device
from placeit.devices.onnxruntime import onnxruntime
from placeit.planning.coarsen import Grouping
from placeit.runtime.devices.accelerator import Streams
from placeit.runtime.devices.base import RuntimeDevice
from placeit.runtime.devices.kernels import Kernel
from placeit.runtime.devices.kinds import DeviceKind
from placeit.runtime.devices.ort import OrtDevice, on_gpu, supported
from placeit.runtime.group_times import groups_as_kernels

__all__ = ["KIND"]


def _kernels(model: Model, grouping: Grouping, device: Device, precision: str, passes: int) -> list[Kernel]:
    return groups_as_kernels(model, grouping, device, precision, passes=passes)


def _open(device: Device, precision: str) -> RuntimeDevice:
    if not on_gpu(device):
        return OrtDevice(device, precision=precision)
    from placeit.runtime.accelerators.ort_program import open_streams
    from placeit.runtime.accelerators.stream_device import StreamDevice

    return StreamDevice(open_streams([device], precision))


def _streams(devices: Sequence[Device], precision: str) -> Streams | None:
    if not all(device.kind == "ort" and on_gpu(device) for device in devices):
        return None
    from placeit.runtime.accelerators.ort_program import open_streams

    return open_streams(devices, precision)


def _version() -> str:
    return f"ONNX Runtime {onnxruntime().__version__}"


KIND = DeviceKind(_open, supported, _kernels, _streams, version=_version, open_sizes=lambda device: not on_gpu(device))
