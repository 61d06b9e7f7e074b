"""Ask plug-ins' kinds of device for their devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from typing import Protocol

from placeit.core.cluster import Device
from placeit.core.registry import entry_table, load_entry

__all__ = ["GROUP", "Finder", "load_finder", "plugin_kinds"]

GROUP = "placeit.device_kinds"
"""The entry-point group in which plug-ins register their kinds of devices."""


class Finder(Protocol):
    """The part of a ``DeviceKind`` (:mod:`placeit.runtime.devices.kinds`) that finds devices."""

    @property
    def devices(self) -> Callable[[], Sequence[Device]]:
        """Function that returns the devices that only this kind knows."""
        ...

    @property
    def version(self) -> Callable[[], str]:
        """Function that returns the version of the runtime."""
        ...


def plugin_kinds() -> dict[str, EntryPoint]:
    """Return the kinds of device from plug-ins, by name, without importing them. Raises UsageError if two have one name."""
    return entry_table("kind of device", GROUP, {})


def load_finder(kind: str) -> Finder:
    """Import a plug-in's kind of device. Raises UsageError if that fails."""
    finder: Finder = load_entry("kind of device", plugin_kinds(), kind)
    return finder
