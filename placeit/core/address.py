"""Addresses of devices: the hardware, its machine, and the runtime if it is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Address", "format_cores"]


@dataclass(frozen=True)
class Address:
    """Address of a real device. ``str()`` spells it as :func:`placeit.devices.parse_device` reads it: ``edge1/ort:CPU@0-3``.

    Attributes:
        hardware: ``CPU``, ``GPU.0``, ``NPU``, ``cuda:0``, or the name that a plug-in's kind of device gives it (``sleep:0``).
        cores: cores of a CPU core set, ascending. Empty for other devices, and for ``CPU``, which is all cores.
        node: the machine that has the device; empty for this one.
        runtime: kind of device, if the name states it: ``ort`` for ``ort:CPU@0``; else empty.
        part: one of several equal parts of a GPU's SMs: ``(2, 4)`` of ``cuda:0@2of4``; ``(1, 1)`` for the whole device.
    """

    hardware: str
    cores: tuple[int, ...] = ()
    node: str = ""
    runtime: str = ""
    part: tuple[int, int] = (1, 1)

    @property
    def core_set(self) -> bool:
        """True if the device is a set of CPU cores, or all of them."""
        return self.hardware == "CPU"

    @property
    def whole_cpu(self) -> bool:
        """True if the device is all cores, which the runtime uses as it does without placeit."""
        return self.core_set and not self.cores

    @property
    def family(self) -> str:
        """The hardware without its number: ``CPU``, ``GPU`` for ``GPU.1``, ``cuda`` for ``cuda:0``."""
        family, colon, _ = self.hardware.partition(":")
        return family if colon else family.partition(".")[0]

    @property
    def number(self) -> int | None:
        """Number within its family: 1 for ``GPU.1`` and ``cuda:1``; None if the hardware is not numbered in this way."""
        number = self.hardware[len(self.family) + 1 :]
        return int(number) if number.isdecimal() else None

    @property
    def unit(self) -> str:
        """The hardware by a single name: OpenVINO calls its first GPU both ``GPU`` and ``GPU.0``."""
        return self.hardware if ":" in self.hardware else self.hardware.removesuffix(".0")

    def shares(self, other: Address) -> bool:
        """Return whether work at the other address takes hardware from work at this one: a core, all cores, a whole device.

        Parts of a GPU share nothing if it is divided into the same number of parts for both; otherwise they may overlap.
        """
        if self.node != other.node or self.unit != other.unit:
            return False
        if self.part[1] == other.part[1] > 1:
            return self.part == other.part
        return not (self.cores and other.cores) or not set(self.cores).isdisjoint(other.cores)

    def __str__(self) -> str:
        cores = f"@{format_cores(self.cores)}" if self.cores else ""
        part = "" if self.part == (1, 1) else "@{}of{}".format(*self.part)
        runtime = f"{self.runtime}:" if self.runtime else ""
        node = f"{self.node}/" if self.node else ""
        return f"{node}{runtime}{self.hardware}{cores}{part}"


def format_cores(cores: Sequence[int]) -> str:
    """Write ascending core numbers as addresses have them: ``(0, 1, 2, 4)`` is ``0-2+4``."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return "+".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
