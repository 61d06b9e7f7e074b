"""Devices that say themselves that they are lost, and open themselves anew: devices of other nodes.

A device of this process is lost if it fails at run time: :meth:`placeit.runtime.device_pool.DevicePool.fail`.
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
    """A device that can be lost, or lose its link with another one.

    Attributes:
        gone: why the device is lost; None while it is there.
        cut: why its link with another device is lost, by the name of that device.
        silent_s: seconds from its last sign of life to the moment when it was found lost; 0 before.
    """

    gone: DeviceError | None
    cut: dict[str, DeviceError]
    silent_s: float

    def reopened(self) -> RuntimeDevice:
        """Open the device anew. Raises DeviceError if it is not there, or has changed."""
        ...

    def link(self, source: RuntimeDevice, destination: RuntimeDevice) -> Transport:
        """Open a link from or to it. Raises DeviceError."""
        ...

    def mend(self, other: RuntimeDevice) -> None:
        """Open the lost link with another device anew, in both directions. Raises DeviceError."""
        ...


def lost_of(names: Sequence[str], devices: Sequence[RuntimeDevice]) -> dict[frozenset[str], DeviceError]:
    """Return why devices and links are lost: by the name of the device, or by the names of both ends of the link."""
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
    """Open lost devices and links anew that are there again.

    Returns:
        All devices and links as they are now, and the names of devices, and of both ends of links, that are there again.
    """
    now, between, back = [*devices], {**links}, list[frozenset[str]]()
    for d, device in enumerate(devices):
        if not isinstance(device, Losable) or device.gone is None:
            continue
        try:
            now[d] = device.reopened()
            with contextlib.ExitStack() as stack:
                stack.callback(now[d].close)
                made = _links(device, d, now, links)
                stack.pop_all()
        except DeviceError as error:
            now[d] = device
            _LOG.debug("%s is not there again: %s", names[d], error)
        else:
            between |= made
            for other in now:
                if isinstance(other, Losable):
                    other.cut.pop(names[d], None)
            back.append(frozenset({names[d]}))
    for d, device in enumerate(now):
        for e in range(d):
            other = now[e]
            if isinstance(device, Losable) and names[e] in device.cut and not (_gone(device) or _gone(other)):
                try:
                    device.mend(other)
                except DeviceError as error:
                    _LOG.debug("The link between %s and %s is still lost: %s", names[d], names[e], error)
                else:
                    back.append(frozenset({names[d], names[e]}))
    return tuple(now), between, back


def _links(device: Losable, d: int, devices: Sequence[RuntimeDevice], links: Links) -> dict[tuple[int, int], Transport]:
    """Open the links of a device anew if their other end is there."""
    pairs = [pair for pair in links if d in pair and not any(_gone(devices[end]) for end in pair)]
    return {(a, b): device.link(devices[a], devices[b]) for a, b in pairs}


def _gone(device: object) -> bool:
    return isinstance(device, Losable) and device.gone is not None
