"""Ask the kinds of device that plug-ins bring for their devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from typing import Protocol

from placeit.core.cluster import Device
from placeit.core.registry import entry_table, load_entry

__all__ = ["GROUP", "Finder", "load_finder", "plugin_kinds"]

GROUP = "placeit.device_kinds"
"""The entry-point group in which a plug-in names its kinds of devices."""


class Finder(Protocol):
    """The part of a ``DeviceKind`` (:mod:`placeit.runtime.devices.kinds`) that devices are found with."""

    @property
    def devices(self) -> Callable[[], Sequence[Device]]:
        """Gives the devices that only this kind knows."""
        ...

    @property
    def version(self) -> Callable[[], str]:
        """Names the version of the runtime."""
        ...


def plugin_kinds() -> dict[str, EntryPoint]:
    """Kinds of device that plug-ins bring, by name; nothing is imported. Raises UsageError if two have one name."""
    return entry_table("kind of device", GROUP, {})


def load_finder(kind: str) -> Finder:
    """Import a plug-in's kind of device. Raises UsageError if it cannot be."""
    finder: Finder = load_entry("kind of device", plugin_kinds(), kind)
    return finder
