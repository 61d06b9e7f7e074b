"""CPU cores in OpenVINO's throughput mode: a model is served by several streams, which run requests at the same time."""

from __future__ import annotations

from placeit.core.cluster import Device
from placeit.runtime.devices.base import RuntimeDevice
from placeit.runtime.kinds.openvino import DrivenByOpenVino

__all__ = ["KIND"]


class _ThroughputKind(DrivenByOpenVino):
    """See :class:`placeit.runtime.devices.throughput.ThroughputDevice`."""

    label = "OpenVINO's throughput mode"
    hardware = ("CPU",)
    elsewhere = "OpenVINO's throughput mode is known of the CPU only (throughput:CPU), not of {}"
    mode = True

    def open(self, device: Device, precision: str) -> RuntimeDevice:
        """Open CPU cores. Raises DeviceError for other hardware."""
        from placeit.runtime.devices.throughput import ThroughputDevice

        return ThroughputDevice(device, precision=precision)


KIND = _ThroughputKind()
