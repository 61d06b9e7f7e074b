"""The kind of devices of other nodes."""

from __future__ import annotations

import functools
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
    from placeit.backends.base import Model
    from placeit.planning.coarsen import Grouping

__all__ = ["KIND"]


def _here(device: Device) -> Device:
    """Return a stand-in for the device: the CPU of this machine, whose OpenVINO is the same."""
    return replace(device, name="CPU", address=Address("CPU"), slowdown=1.0)


def _supported(model: Model, device: Device) -> Collection[str]:
    return device_kind(_here(device)).supported(model, _here(device))


def _kernels(model: Model, grouping: Grouping, device: Device, precision: str, passes: int) -> Sequence[Kernel]:
    return device_kind(_here(device)).kernels(model, grouping, _here(device), precision, passes)


def _link(source: RuntimeDevice, destination: RuntimeDevice) -> Transport | None:
    if isinstance(source, NodeDevice) and isinstance(destination, NodeDevice) and source.where.shares(destination.where):
        raise DeviceError(f"{source.name} and {destination.name} share cores of the node '{source.where.node}': choose others.")
    if isinstance(source, NodeDevice) or isinstance(destination, NodeDevice):
        return NodeLink(source, destination)
    return None


def _version() -> str:
    return device_kind(Device("CPU", address=Address("CPU"))).version()


KIND = DeviceKind(
    NodeDevice,
    _supported,
    _kernels,
    link=_link,
    version=_version,
    open_sizes=lambda _: True,
    expected=functools.partial(NodeDevice, expected=True),
)
