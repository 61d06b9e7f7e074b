"""Devices of other nodes. On its node, a device is driven by another kind of device."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.runtime.devices.base import RuntimeDevice, Transport
from placeit.runtime.devices.kernels import Kernel
from placeit.runtime.devices.kinds import Counts, DeviceKind
from placeit.runtime.nodes.device import NodeDevice, NodeLink

if TYPE_CHECKING:
    from placeit.backends.base import Model
    from placeit.planning.coarsen import Grouping

__all__ = ["on_node"]


class _NodeKind(DeviceKind):
    """Devices of other nodes (:class:`placeit.runtime.nodes.device.NodeDevice`).

    Args:
        kind: the kind that drives the devices on their node.
    """

    def __init__(self, kind: DeviceKind) -> None:
        self._kind = kind
        self.label, self.package, self.mode = kind.label, kind.package, kind.mode
        self.formats, self.whole_file, self.bundle_format = kind.formats, kind.whole_file, kind.bundle_format

    def open(self, device: Device, precision: str) -> RuntimeDevice:
        """Start an actor on the node. Raises DeviceError."""
        return NodeDevice(device, precision)

    def expected(self, device: Device, precision: str) -> RuntimeDevice:
        """Make a device of a node that may be missing."""
        return NodeDevice(device, precision, expected=True)

    def supported(self, model: Model, device: Device) -> Collection[str]:
        """Return the ops that the runtime of the node supports. Raises DeviceError."""
        return self._kind.supported(model, device)

    def kernels(self, model: Model, grouping: Grouping, device: Device, precision: str, passes: int) -> Sequence[Kernel] | None:
        """Measure the kernels on the node. Raises DeviceError."""
        return self._kind.kernels(model, grouping, device, precision, passes)

    def link(self, source: RuntimeDevice, destination: RuntimeDevice) -> Transport | None:
        """Open a socket between two devices. Raises DeviceError if they share hardware."""
        if isinstance(source, NodeDevice) and isinstance(destination, NodeDevice) and source.where.shares(destination.where):
            raise DeviceError(
                f"{source.name} and {destination.name} share hardware of the node '{source.where.node}': choose others."
            )
        if isinstance(source, NodeDevice) or isinstance(destination, NodeDevice):
            return NodeLink(source, destination)
        return None

    def open_sizes(self, device: Device) -> bool:
        """Return whether the device runs segments of models with open sizes, at any size."""
        return self._kind.open_sizes(device)


class _CountingNodeKind(_NodeKind):
    """Devices whose programs can count the time of each kernel."""

    def counting(self, device: Device, precision: str) -> RuntimeDevice:
        """Start an actor on the node that counts. Raises DeviceError."""
        return NodeDevice(device, precision, counting=True)


@functools.cache
def on_node(kind: DeviceKind) -> DeviceKind:
    """Return the kind of devices of other nodes that a kind drives there."""
    return _CountingNodeKind(kind) if isinstance(kind, Counts) else _NodeKind(kind)
