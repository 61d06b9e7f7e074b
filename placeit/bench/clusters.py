"""The described clusters of PlaceBench: devices of the catalogue, and links.

Bandwidths are powers of two, and all times are multiples of 2**-40 s. Sums of times are therefore exact in any order, and the
value of a placement is bit-identical on all machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Device
from placeit.devices.described import catalog

__all__ = ["CLUSTERS", "DescribedCluster", "on_grid"]

_TICKS = 2.0**40  # per second


class _Link(NamedTuple):
    bandwidth: float
    latency_s: float


_MEMORY = _Link(2.0**35, 2e-6)  # 32 GiB/s: a copy in the memory that all devices of a chip use
_PEER = _Link(2.0**38, 3e-6)  # 256 GiB/s: NVLink, each way (A100: 300 GB/s)
_HOST = _Link(2.0**33, 10e-6)  # 8 GiB/s: PCI Express 3.0 x16, twice, through the memory of the host
_FABRIC = _Link(2.0**35, 5e-6)  # 32 GiB/s: InfiniBand of 400 Gbit/s, as far as a power of two fits
_ETHERNET = _Link(2.0**27, 100e-6)  # 128 MiB/s: Gigabit Ethernet
_WIRELESS = _Link(2.0**26, 1e-3)  # 64 MiB/s: Wi-Fi 6


class DescribedCluster(NamedTuple):
    """Devices and links that exist in simulation only.

    Attributes:
        summary: the cluster in a few words.
        catalogue: name of each device in the catalogue, by its name here.
        link: the link between any two devices.
        near: the link between two devices of one node, whose names are ``NODE/DEVICE``.
    """

    summary: str
    catalogue: Mapping[str, str]
    link: _Link
    near: _Link | None = None

    @property
    def devices(self) -> list[Device]:
        """The devices, with the figures of their data sheets."""
        return [catalog()[name][0] for name in self.catalogue.values()]

    def links(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return bandwidths in bytes per second and latencies in seconds, ``float64[D, D]`` each."""
        node = np.array([name.rpartition("/")[0] for name in self.catalogue])
        near = (node[:, None] == node) & (self.near is not None)
        bandwidth, latency = (np.where(near, close, far) for close, far in zip(self.near or self.link, self.link, strict=True))
        np.fill_diagonal(bandwidth, np.inf)
        np.fill_diagonal(latency, 0.0)
        return bandwidth, on_grid(latency)


def on_grid(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round times to multiples of 2**-40 s, about a picosecond."""
    rounded: NDArray[np.float64] = np.rint(seconds * _TICKS) / _TICKS
    return rounded


CLUSTERS: Mapping[str, DescribedCluster] = {
    "boards": DescribedCluster(
        "two boards on Gigabit Ethernet", {"jetson": "jetson-orin-nano", "pi": "raspberry-pi-5"}, _ETHERNET
    ),
    "soc": DescribedCluster(
        "CPU, GPU and NPU of one chip", {part: f"core-ultra-7-155h-{part}" for part in ("cpu", "gpu", "npu")}, _MEMORY
    ),
    "gpus4": DescribedCluster("four A100 with peer links", {f"gpu{i}": "a100-40gb" for i in range(4)}, _PEER),
    "gpus8": DescribedCluster("eight T4 without peer links", {f"gpu{i}": "t4" for i in range(8)}, _HOST),
    "edge": DescribedCluster(
        "five unequal nodes on Wi-Fi",
        {"agx": "jetson-agx-orin", "nx": "jetson-orin-nx", "nano": "jetson-orin-nano"}
        | dict.fromkeys(("pi0", "pi1"), "raspberry-pi-5"),
        _WIRELESS,
    ),
    "gpus64": DescribedCluster(
        "eight nodes of eight H100", {f"node{i // 8}/gpu{i % 8}": "h100-sxm" for i in range(64)}, _FABRIC, _PEER
    ),
}  # fmt: skip
"""The clusters by name."""
