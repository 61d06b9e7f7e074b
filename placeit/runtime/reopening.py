"""Devices that detect their own loss and can be opened anew: devices of other nodes.

Devices of this process are declared lost when they fail at run time (:meth:`placeit.runtime.device_pool.DevicePool.fail`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from placeit.core.errors import DeviceError
from placeit.runtime.devices.base import RuntimeDevice, Transport

__all__ = ["Losable", "lost_of", "reopened"]

_LOG = logging.getLogger("placeit")


@runtime_checkable
class Losable(Protocol):
    """A device that can be lost, or lose its link with another device.

    Attributes:
        gone: error that says why the device is lost; None while it is available.
        cut: errors that say why links with other devices are lost, by the other device's name.
        silent_s: seconds between its last sign of life and the detection of its loss; 0 before.
    """

    gone: DeviceError | None
    cut: dict[str, DeviceError]
    silent_s: float

    def reopened(self) -> RuntimeDevice:
        """Open the device anew, as a new object. Raises DeviceError if it is not available, or has changed."""
        ...

    def link(self, source: RuntimeDevice, destination: RuntimeDevice) -> Transport:
        """Open a link from or to the device. Raises DeviceError."""
        ...

    def mend(self, other: RuntimeDevice) -> None:
        """Restore the lost link with another device, in both directions. Raises DeviceError."""
        ...


def lost_of(names: Sequence[str], devices: Sequence[RuntimeDevice]) -> dict[frozenset[str], DeviceError]:
    """Return the errors of lost devices and links: by the name of the device, or by the names of the link's ends."""
    found: dict[frozenset[str], DeviceError] = {}
    for name, device in zip(names, devices, strict=False):
        gone, cut = getattr(device, "gone", None), getattr(device, "cut", {})  # isinstance(device, Losable) would take long
        if gone is not None:
            found[frozenset({name})] = gone
        for other, why in [*cut.items()]:
            found[frozenset({name, other})] = why
    return found


Links: TypeAlias = Mapping[tuple[int, int], Transport]


def reopened(
    names: Sequence[str], devices: Sequence[RuntimeDevice], links: Links
) -> tuple[tuple[RuntimeDevice, ...], Links, list[frozenset[str]]]:
    """Try to restore lost devices and links.

    Returns:
        All devices and links after that, and the names of the restored devices, and of both ends of each restored link.
    """
    current, current_links, restored = [*devices], {**links}, list[frozenset[str]]()
    for d, device in enumerate(devices):
        if not isinstance(device, Losable) or device.gone is None:
            continue
        try:
            current[d] = device.reopened()
            with contextlib.ExitStack() as stack:
                stack.callback(current[d].close)
                opened = _links(device, d, current, links)
                stack.pop_all()
        except DeviceError as error:
            current[d] = device
            _LOG.debug("%s is still lost: %s", names[d], error)
        else:
            current_links |= opened
            for other in current:
                if isinstance(other, Losable):
                    other.cut.pop(names[d], None)
            restored.append(frozenset({names[d]}))
    for d, device in enumerate(current):
        for e in range(d):
            other = current[e]
            if isinstance(device, Losable) and names[e] in device.cut and not (_gone(device) or _gone(other)):
                try:
                    device.mend(other)
                except DeviceError as error:
                    _LOG.debug("The link between %s and %s is still lost: %s", names[d], names[e], error)
                else:
                    restored.append(frozenset({names[d], names[e]}))
    return tuple(current), current_links, restored


def _links(device: Losable, d: int, devices: Sequence[RuntimeDevice], links: Links) -> dict[tuple[int, int], Transport]:
    """Open the links of a device anew whose other end is available."""
    pairs = [pair for pair in links if d in pair and not any(_gone(devices[end]) for end in pair)]
    return {(a, b): device.link(devices[a], devices[b]) for a, b in pairs}


def _gone(device: object) -> bool:
    return isinstance(device, Losable) and device.gone is not None
