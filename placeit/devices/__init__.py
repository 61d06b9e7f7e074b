"""Device names, discovery of real devices, cluster files, and described devices.

May import ``core``. Read :mod:`~placeit.devices.names` first, then :mod:`~placeit.devices.kinds` and
:mod:`~placeit.devices.discovery`.
"""

from __future__ import annotations

from placeit.core.address import Address
from placeit.devices.clusterfile import discover
from placeit.devices.described import catalog, roofline_seconds
from placeit.devices.names import parse_device, parse_devices

__all__ = ["Address", "catalog", "discover", "parse_device", "parse_devices", "roofline_seconds"]
