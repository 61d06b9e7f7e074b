"""Devices, the links between them, and clusters of devices and links."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.address import Address
from placeit.core.errors import ClusterError, DeviceError

__all__ = ["Cluster", "Device", "Link", "Power", "links_to_list"]


@dataclass(frozen=True)
class Power:
    """Power of a device in watts; ``idle_w`` is 0 if only the busy power is known."""

    idle_w: float
    busy_w: float


@dataclass(frozen=True)
class Device:
    """A device that runs ops.

    Attributes:
        name: canonical name, unique in its cluster (``CPU@0``, ``GPU.1``, or a name given by a cluster file).
        kind: runtime that drives it (``openvino``, ``null``); ``described`` for a device that exists in simulation only.
        address: the real device behind it, which ``name`` spells unless a cluster file renames it; None for a described device.
        full_name: its name by the driver or the data sheet.
        memory_bytes: memory that weights and tensors may take; ``inf`` if unknown.
        all_cores: cores that a device of all cores (``CPU``) may use on its machine, as far as they are known.
        slowdown: factor by which a real device is slowed on purpose (1 = not emulated).
        tags: hardware features.
        power: idle and busy watts, if known.
        flops_per_s: peak rate in float32, for described devices.
        bytes_per_s: memory bandwidth, for described devices.
        op_overhead_s: fixed cost of one op, for described devices.
        driver: versions of the runtime and the driver; measured costs are valid for these only.
        plain: whether nothing runs beside it, so that its runtime may use it as it does without placeit: threads that wait for
            the next run may keep their cores busy.
        unusable: why nothing can run on it, in the words of its plugin; empty if it is usable, or has not been tried.
    """

    name: str
    kind: str = "openvino"
    address: Address | None = None
    full_name: str = ""
    memory_bytes: float = float("inf")
    all_cores: tuple[int, ...] = ()
    slowdown: float = 1.0
    tags: frozenset[str] = frozenset()
    power: Power | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    op_overhead_s: float = 0.0
    driver: str = ""
    plain: bool = False
    unusable: str = ""

    @property
    def described(self) -> bool:
        """True if the device exists in simulation only."""
        return self.kind == "described"

    @property
    def where(self) -> Address:
        """The device's address. Raises DeviceError if it has none."""
        if self.address is None:
            raise DeviceError(f"{self.name} has no address: it exists in simulation only, and nothing can run there.")
        return self.address

    @property
    def core_set(self) -> bool:
        """True if the device is a set of CPU cores, or all of them, driven by any runtime."""
        return self.address is not None and self.address.core_set

    @property
    def cores(self) -> tuple[int, ...]:
        """CPU cores that the device is bound to; empty if it is not a CPU core set."""
        if self.address is None or not self.address.core_set:
            return ()
        return self.address.cores or self.all_cores

    def driven_by(self, runtime: str) -> Device:
        """Return the same hardware as a device of another kind, which its name states (``ort:CPU@0``)."""
        address = replace(self.where, runtime=runtime)
        return replace(self, name=str(address), kind=runtime, address=address)

    @property
    def emulated(self) -> bool:
        """True if the device is a real one that is slowed down on purpose."""
        return self.slowdown != 1.0


@dataclass(frozen=True)
class Link:
    """A directed link between two devices.

    Attributes:
        bandwidth: bytes per second.
        latency: seconds.
        origin: ``measured``, ``emulated`` (a real link throttled on purpose) or ``described`` (one end or both exist in
            simulation only).
    """

    bandwidth: float
    latency: float
    origin: str = "measured"


@dataclass(frozen=True, eq=False)
class Cluster:
    """Devices and the links between them.

    Attributes:
        devices: the devices, in the order in which every array of the package numbers them.
        links: links by (source name, destination name). A pair of real devices without a link here is measured when needed.
    """

    devices: tuple[Device, ...]
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Cluster: {', '.join(self.names)}; {len(self.links)} links>"

    def __post_init__(self) -> None:
        if not self.devices:
            raise ClusterError("A cluster needs at least one device, and this one has none.")
        names = self.names
        for name in names:
            if names.count(name) > 1:
                raise ClusterError(f"Two devices of the cluster are named '{name}'; names must be unique.")
        for (src, dst), link in self.links.items():
            for end in (src, dst):
                if end not in names:
                    raise ClusterError(f"The link {src} -> {dst} names the unknown device '{end}'; known: {', '.join(names)}.")
            if not link.bandwidth > 0:
                raise ClusterError(f"The link {src} -> {dst} has bandwidth {link.bandwidth} bytes/s; it must be positive.")
            if not (0 <= link.latency < float("inf")):
                raise ClusterError(f"The link {src} -> {dst} has latency {link.latency} s; it must be finite and not negative.")

    def __len__(self) -> int:
        return len(self.devices)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Device names, in the order of ``devices``."""
        return tuple(device.name for device in self.devices)

    @property
    def emulated_names(self) -> list[str]:
        """Names of devices and links that are slowed down on purpose."""
        devices = [device.name for device in self.devices if device.emulated]
        return devices + [f"{src} -> {dst}" for (src, dst), link in self.links.items() if link.origin == "emulated"]

    @property
    def executable(self) -> bool:
        """True if every device is real, or emulated by a real one."""
        return not any(device.described for device in self.devices)

    def only(self, names: Collection[str]) -> Cluster:
        """Return a cluster of the named devices and the links between them. Raises ClusterError if a name is unknown."""
        for name in names:
            if name not in self.names:
                raise ClusterError(f"There is no device '{name}' in the cluster; its devices are {', '.join(self.names)}.")
        links = {ends: link for ends, link in self.links.items() if set(ends) <= set(names)}
        return Cluster(tuple(device for device in self.devices if device.name in names), links)

    def missing_links(self) -> list[tuple[str, str]]:
        """Return the ordered pairs of distinct devices whose link is unknown."""
        return [(a, b) for a in self.names for b in self.names if a != b and (a, b) not in self.links]

    def conflicts(self) -> NDArray[np.bool_]:
        """Return which devices share hardware (``CPU@0-1``, ``CPU@0``) and so never run at the same time, ``bool[D, D]``.

        The array is symmetric, with False on the diagonal. ``CPU`` shares cores with every core set of its node. Described
        devices share nothing.
        """
        matrix = np.zeros((len(self), len(self)), bool)
        for i, device in enumerate(self.devices):
            for j, other in enumerate(self.devices):
                if i != j and device.address is not None and other.address is not None:
                    matrix[i, j] = device.address.shares(other.address)
        return matrix

    def apart(self) -> list[int]:
        """Return the numbers of devices that share no hardware, ascending; of core sets that overlap, the largest is chosen."""
        conflicts, chosen = self.conflicts(), list[int]()
        for d in sorted(range(len(self)), key=lambda d: -len(self.devices[d].cores)):
            if not conflicts[d, chosen].any():
                chosen.append(d)
        return sorted(chosen)

    def bandwidth(self) -> NDArray[np.float64]:
        """Return bandwidths in bytes per second, ``float64[D, D]``, ``inf`` on the diagonal. Raises ClusterError if unknown."""
        return self._matrix("bandwidth", float("inf"))

    def latency(self) -> NDArray[np.float64]:
        """Return latencies in seconds, ``float64[D, D]``; zero on the diagonal. Raises ClusterError if a link is unknown."""
        return self._matrix("latency", 0.0)

    def _matrix(self, what: str, diagonal: float) -> NDArray[np.float64]:
        missing = self.missing_links()
        if missing:
            raise ClusterError(f"The link {missing[0][0]} -> {missing[0][1]} is unknown: measure it or describe it.")
        matrix = np.full((len(self), len(self)), diagonal)
        for i, src in enumerate(self.names):
            for j, dst in enumerate(self.names):
                if i != j:
                    matrix[i, j] = getattr(self.links[src, dst], what)
        return matrix


def links_to_list(links: Mapping[tuple[str, str], Link]) -> list[dict[str, Any]]:
    """Return links between devices as a list for JSON; a bandwidth too high to be measured is null."""
    return [
        {
            "src": src,
            "dst": dst,
            "bandwidth_bytes_per_s": link.bandwidth if math.isfinite(link.bandwidth) else None,
            "latency_s": link.latency,
            "origin": link.origin,
        }
        for (src, dst), link in links.items()
    ]
