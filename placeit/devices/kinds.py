"""Kinds of devices as the layers below the runtime see them: their names, hardware, formats and baselines.

Each kind is one file, in ``placeit/runtime/kinds/`` or in a plug-in. Only the tables below name the kinds of this package.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from typing import Protocol, runtime_checkable

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import UsageError
from placeit.core.registry import entry_table, load_entry

__all__ = [
    "GROUP",
    "HARDWARE",
    "KINDS",
    "FindsHardware",
    "Kind",
    "OnOpenVino",
    "driven_by_openvino",
    "kind_of",
    "kinds",
    "load_kind",
    "plugin_kinds",
    "unusable_runtimes",
]

GROUP = "placeit.device_kinds"
"""The entry-point group in which plug-ins register their kinds of devices."""
KINDS = {
    "openvino": "placeit.runtime.kinds.openvino:KIND",
    "ort": "placeit.runtime.kinds.ort:KIND",
    "torch": "placeit.runtime.kinds.pytorch:KIND",
    "throughput": "placeit.runtime.kinds.throughput:KIND",
    "inductor": "placeit.runtime.kinds.inductor:KIND",
}
"""Where each kind of this package is, by ``Device.kind``. A module is imported when its kind is asked for something."""
HARDWARE = {"cuda": "placeit.runtime.kinds.cuda:KIND"}
"""Where each kind of hardware is that some kind of :data:`KINDS` drives, chosen by the model."""


class Kind:
    """The part of a kind of device that needs no open device; :class:`placeit.runtime.devices.kinds.DeviceKind` adds the rest.

    Attributes:
        label: name of the runtime in messages; empty for a plug-in's kind, whose own name is used.
        formats: formats of segments that its devices compile, the preferred one first (:data:`placeit.backends.base.Format`).
        package: distribution of its runtime, whose version recordings hold; empty for no distribution.
        hardware: families of placeit's hardware that device names may ask this kind for (``ort:CPU@0``), and that it drives if
            the hardware's own kind takes no format of the model. None for any hardware by name, and none by itself.
        elsewhere: end of the message that refuses other hardware, after ``label``, with ``{}`` for the hardware's name.
        mode: whether it is another mode of the runtime of the hardware's own kind, with the same driver and precisions.
        whole_file: format of model files that its plain device opens as they are; None if it runs segments only.
        bundle_format: format to which segments in bundles are converted if all devices are core sets whose names do not ask for
            this kind; None for the first of ``formats``, which segments have otherwise.
        on_nodes: whether other nodes can have its devices: it then asks the node of a device for what depends on the machine
            (:func:`placeit.runtime.nodes.remote_calls.call_with_program`).
        compiles: kind whose core sets run a model eagerly, op by op, and for which this kind compiles whole models; else empty.
        one_precision: reason why :meth:`other_precision` is None, worded to follow the name of the device.
    """

    label: str = ""
    formats: tuple[str, ...] = ("openvino",)
    package: str = ""
    hardware: tuple[str, ...] | None = None
    elsewhere: str = "does not run on {}"
    mode: bool = False
    whole_file: str | None = None
    bundle_format: str | None = None
    on_nodes: bool = False
    compiles: str = ""
    one_precision: str = "computes in the types of the model"

    def version(self) -> str:
        """Return the version of the runtime, on which measured costs depend. Raises DeviceError if it is not installed."""
        return ""

    def installed(self) -> bool:
        """Return whether its runtime is installed, and can be imported, without importing it."""
        return True

    def unusable(self) -> str:
        """Return why its runtime, although installed, cannot be used; empty if it can be used or is not installed."""
        return ""

    def driver(self, device: Device) -> str:
        """Return the runtime with its version, for ``Device.driver``. Raises DeviceError if it is not installed.

        Args:
            device: hardware, as its own kind has found it.
        """
        runtime = self.version() or device.where.runtime
        return runtime if kind_of(device).formats else f"{runtime}, {device.driver}"

    def devices(self) -> Sequence[Device]:
        """Return the devices of this machine that only this kind knows. Raises DeviceError if it cannot tell.

        Devices of a plug-in's kind ``sleep`` are called ``sleep:0`` or ``sleep:west``, which are also their addresses.
        """
        return ()

    def tried(self, device: Device) -> Device:
        """Run an op on a device of this machine, if that has to be tried; the result's ``unusable`` says why it failed."""
        return device

    def throughput_mode(self, cores: Device) -> Device | None:  # noqa: ARG002
        """Return a core set in its runtime's mode that serves most requests per second; None if it has no such mode."""
        return None

    def compiled(self, cores: Device) -> Device | None:  # noqa: ARG002
        """Return a core set that runs models op by op as a device of this kind, which compiles them; None if it does not.

        Searches try the whole model and their best split there.

        Args:
            cores: a core set of any kind.
        """
        return None

    def other_precision(self, device: Device, precision: str) -> str | None:  # noqa: ARG002
        """Return another precision in which a device may be faster or more exact; None if it has none."""
        return None


@runtime_checkable
class FindsHardware(Protocol):
    """A kind that finds hardware by names without a prefix: ``CPU@0``, ``GPU.1``, ``cuda:0``."""

    def find(self, address: Address) -> Device:
        """Return the device at an address of this machine. Raises DeviceError if it does not exist."""
        ...


@runtime_checkable
class OnOpenVino(Protocol):
    """A kind for whose devices OpenVINO compiles whole models by the name of the hardware, and times each kernel."""

    def found(self) -> list[Device]:
        """Return the devices that OpenVINO lists. Each has run an op, or says why it is unusable."""
        ...


class _Unknown(Kind):
    formats = ()


_UNKNOWN = _Unknown()


def kinds() -> Iterator[tuple[str, Kind]]:
    """Yield name and kind of each kind of this package. Plug-ins' kinds are used only where a device name asks for them."""
    for name in KINDS:
        kind = load_kind(name)
        if kind is not None:
            yield name, kind


def unusable_runtimes() -> dict[str, str]:
    """Return why runtimes that are installed cannot be used, by the name of the runtime."""
    return {kind.label: why for _, kind in kinds() if (why := kind.unusable())}


def load_kind(name: str) -> Kind | None:
    """Import a kind of device; None if neither this version nor a plug-in has it.

    Raises:
        UsageError: the plug-in with the kind cannot be loaded, or its kind is not an instance of :class:`Kind`.
    """
    target = KINDS.get(name) or HARDWARE.get(name)
    if target is not None:
        kind: object = EntryPoint(name, target, GROUP).load()
    else:
        table = plugin_kinds()
        if name not in table:
            return None
        kind = load_entry("kind of device", table, name)
        if not isinstance(kind, Kind):
            raise UsageError(
                f"The kind of device '{name}' ({table[name].value}) is not an instance of a subclass of DeviceKind "
                "(docs/plugins.md#devices)."
            )
    assert isinstance(kind, Kind)  # noqa: S101
    return kind


def kind_of(device: Device) -> Kind:
    """Return the kind that drives a device, here or on another node; a kind without formats if this version lacks it.

    Raises:
        UsageError: the plug-in with the kind cannot be loaded.
    """
    return _UNKNOWN if device.described else load_kind(device.kind) or _UNKNOWN


def driven_by_openvino(device: Device) -> bool:
    """Return whether OpenVINO drives a device by its own name, one request at a time."""
    return isinstance(kind_of(device), OnOpenVino)


def plugin_kinds() -> dict[str, EntryPoint]:
    """Return the kinds of device from plug-ins, by name, without importing them. Raises UsageError if two have one name."""
    return _plugin_kinds(tuple(sys.path))


@functools.lru_cache(maxsize=1)  # looking through all installed packages takes a while
def _plugin_kinds(_path: tuple[str, ...]) -> dict[str, EntryPoint]:
    table = entry_table("kind of device", GROUP, KINDS | HARDWARE)
    return {name: entry for name, entry in table.items() if name not in KINDS and name not in HARDWARE}
