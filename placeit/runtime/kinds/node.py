"""Devices of other nodes, which OpenVINO drives there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.runtime.devices.base import RuntimeDevice, Transport
from placeit.runtime.devices.kernels import Kernel
from placeit.runtime.devices.kinds import DeviceKind, device_kind
from placeit.runtime.nodes.device import NodeDevice, NodeLink

if TYPE_CHECKING:
    from placeit.backends.base import Format, Model
    from placeit.planning.coarsen import Grouping

__all__ = ["KIND"]


class _NodeKind(DeviceKind):
    """See :class:`placeit.runtime.nodes.device.NodeDevice`."""

    bundle_format: Format | None = "openvino"

    def open(self, device: Device, precision: str) -> RuntimeDevice:
        """Start an actor on the node. Raises DeviceError."""
        return NodeDevice(device, precision)

    def expected(self, device: Device, precision: str) -> RuntimeDevice:
        """Make a device of a node that need not be there yet."""
        return NodeDevice(device, precision, expected=True)

    def supported(self, model: Model, device: Device) -> Collection[str]:
        """Return the ops that this machine's CPU supports, whose OpenVINO is the same. Raises DeviceError."""
        return device_kind(_here(device)).supported(model, _here(device))

    def kernels(self, model: Model, grouping: Grouping, device: Device, precision: str, passes: int) -> Sequence[Kernel]:
        """Measure the kernels on this machine's CPU. Raises DeviceError."""
        return device_kind(_here(device)).kernels(model, grouping, _here(device), precision, passes)

    def link(self, source: RuntimeDevice, destination: RuntimeDevice) -> Transport | None:
        """Open a socket between two devices. Raises DeviceError if they share cores."""
        if isinstance(source, NodeDevice) and isinstance(destination, NodeDevice) and source.where.shares(destination.where):
            raise DeviceError(
                f"{source.name} and {destination.name} share cores of the node '{source.where.node}': choose others."
            )
        if isinstance(source, NodeDevice) or isinstance(destination, NodeDevice):
            return NodeLink(source, destination)
        return None

    def version(self) -> str:
        """Return the version of this machine's OpenVINO, which is the same."""
        return device_kind(Device("CPU", address=Address("CPU"))).version()

    def open_sizes(self, device: Device) -> bool:  # noqa: ARG002
        """Return True: OpenVINO runs models with open sizes on CPUs."""
        return True


KIND = _NodeKind()


def _here(device: Device) -> Device:
    """Return a stand-in for the device: the CPU of this machine, whose OpenVINO is the same."""
    return replace(device, name="CPU", address=Address("CPU"), slowdown=1.0)
