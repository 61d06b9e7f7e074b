"""The connection of this process to other nodes, for discovery of devices there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError

__all__ = ["OtherNodes", "not_connected", "other_nodes", "set_connection"]


class OtherNodes(Protocol):
    """A connection to other nodes, as :class:`placeit.devices.nodes.connection.Nodes` is."""

    def device(self, address: Address) -> Device:
        """Return a device of a node. Raises DeviceError if it does not exist."""
        ...

    def tried(self, device: Device) -> Device:
        """Run an op on a device of a node, if it has to be tried; the result says if and why it cannot. Raises DeviceError."""
        ...

    def warn_of_shared_cores(self, devices: Sequence[Device]) -> None:
        """Warn, once, if devices of several nodes share cores of one machine."""
        ...


_connection: OtherNodes | None = None


def set_connection(nodes: OtherNodes | None) -> None:
    """Set the connection of this process; None for no connection."""
    global _connection
    _connection = nodes


def other_nodes() -> OtherNodes:
    """Return the connection of this process. Raises DeviceError if it has no connection."""
    if _connection is None:
        raise not_connected()
    return _connection


def not_connected() -> DeviceError:
    """Return the error for a process that has no connection and needs one."""
    return DeviceError(
        "This process is connected to no Ray cluster, whose nodes could be used: give --ray-address HOST:PORT (for a first "
        "try, `placeit cluster up` starts one), or call placeit.devices.nodes.connection.connect."
    )
