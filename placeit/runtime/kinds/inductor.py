"""CPU cores that run segments which Inductor, PyTorch's compiler, has compiled, as ``torch.compile`` compiles modules."""

from __future__ import annotations

import functools
import logging
import os
import shutil

from placeit.core.cluster import Device
from placeit.runtime.devices.base import RuntimeDevice
from placeit.runtime.kinds.pytorch import TorchKind

__all__ = ["KIND", "warn_missing"]

_LOG = logging.getLogger("placeit")


class _InductorKind(TorchKind):
    """Core sets (:class:`placeit.runtime.devices.inductor.InductorDevice`) for PyTorch models."""

    label = "Inductor"
    hardware = ("CPU",)
    elsewhere = "compiles PyTorch models for the CPU (inductor:CPU@0), not for {}"
    bundle_format = None
    on_nodes = False
    compiles = "torch"

    def open(self, device: Device, precision: str) -> RuntimeDevice:
        """Open a core set; without a C++ compiler, PyTorch runs its segments eagerly. Raises DeviceError."""
        if _lacks_compiler():
            from placeit.runtime.devices.pytorch import TorchDevice

            return TorchDevice(device, precision=precision)
        from placeit.runtime.devices.inductor import InductorDevice

        return InductorDevice(device, precision=precision)

    def open_sizes(self, device: Device) -> bool:  # noqa: ARG002
        """Return False: a program is compiled for one size."""
        return False

    def compiled(self, cores: Device) -> Device | None:
        """Return the device that compiles for a core set of PyTorch; None if there is no C++ compiler."""
        if cores.kind != self.compiles or _lacks_compiler():
            return None
        return cores.driven_by("inductor")


def _lacks_compiler() -> bool:
    """Return whether Inductor finds no C++ compiler, and log that once."""
    name = os.environ.get("CXX", "g++")
    lacking = shutil.which(name) is None
    if lacking:
        warn_missing(name)
    return lacking


@functools.cache
def warn_missing(name: str) -> None:
    """Log, once for each name, that no C++ compiler of that name exists."""
    _LOG.warning(
        "PyTorch models run eagerly only, since Inductor finds no C++ compiler '%s': install one, or set CXX to its path.", name
    )


KIND = _InductorKind()
