"""The functions of each kind of device, besides running segments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.registry import entry_table, load_entry
from placeit.devices.plugins import GROUP
from placeit.runtime.devices.base import RuntimeDevice, Transport

if TYPE_CHECKING:
    from placeit.backends.base import Model
    from placeit.planning.coarsen import Grouping
    from placeit.runtime.devices.accelerator import Streams
    from placeit.runtime.devices.kernels import Kernel

__all__ = ["DeviceKind", "device_kind"]

_KINDS = {
    "openvino": "placeit.runtime.devices.openvino:KIND",
    "ort": "placeit.runtime.kinds.ort:KIND",
    "torch": "placeit.runtime.kinds.pytorch:KIND [torch]",
    "throughput": "placeit.runtime.devices.throughput:KIND",
}
"""Where each kind of device is, by ``Device.kind``. A module is imported when a device of its kind is used."""
_NODE = "placeit.runtime.nodes.kind:KIND"
"""Where the kind of all devices of other nodes is, whatever drives them there."""


def _has_to_be_there(device: Device, _precision: str) -> RuntimeDevice:
    raise DeviceError(f"{device.name} has to be there when it is opened.")


@dataclass(frozen=True)
class DeviceKind:
    """The functions that make up a kind of device.

    Attributes:
        open: ``open(device, precision)`` makes the device that runs segments. Raises DeviceError.
        supported: ``supported(model, device)`` names the ops that the device can run. Raises DeviceError if the device runs no
            such models at all.
        kernels: ``kernels(model, grouping, device, precision, passes)`` measures the kernels of a pass over the whole model; a
            runtime without per-op times runs the groups one by one. Raises DeviceError.
        streams: ``streams(devices, precision)`` drives all devices of a cluster through streams, launched ahead; None if it
            cannot, or none of them has streams. Raises DeviceError.
        link: ``link(source, destination)`` opens the link between two devices, at least one of which is of this kind. The kind
            of the source is asked first. None if this kind has no link for them. Tensors then stay in place if both devices
            read the same memory, and otherwise go through the host's memory
            (:class:`placeit.runtime.devices.hand_over.HandOver`). Raises DeviceError.
        version: ``version()`` names the version of the runtime that drives the device, on which measured costs depend.
        devices: ``devices()`` lists the devices of this machine that only this kind knows. Devices of a kind ``sleep`` are
            called ``sleep:0`` or ``sleep:west``, which are also their addresses. Raises DeviceError if it cannot tell.
        open_sizes: ``open_sizes(device)`` is true if the device runs segments of models with open sizes, at any size.
        expected: ``expected(device, precision)`` makes a device that need not be there yet, and counts as lost until it is
            (:class:`placeit.runtime.reopening.Losable`). Raises DeviceError if devices of this kind have to be there.
    """

    open: Callable[[Device, str], RuntimeDevice]
    supported: Callable[[Model, Device], Collection[str]]
    kernels: Callable[[Model, Grouping, Device, str, int], Sequence[Kernel]]
    streams: Callable[[Sequence[Device], str], Streams | None] = lambda _devices, _precision: None
    link: Callable[[RuntimeDevice, RuntimeDevice], Transport | None] = lambda _source, _destination: None
    version: Callable[[], str] = lambda: ""
    devices: Callable[[], Sequence[Device]] = lambda: ()
    open_sizes: Callable[[Device], bool] = lambda _device: False
    expected: Callable[[Device, str], RuntimeDevice] = _has_to_be_there


def device_kind(device: Device) -> DeviceKind:
    """Find the kind of a device.

    Raises:
        DeviceError: this version has no such kind.
        UsageError: the plug-in with the kind cannot be loaded.
    """
    kind: DeviceKind
    if device.address is not None and device.address.node:
        kind = EntryPoint("node", _NODE, GROUP).load()
    elif device.kind in _KINDS:  # looking through all installed packages takes a while
        kind = EntryPoint(device.kind, _KINDS[device.kind], GROUP).load()
    else:
        table = entry_table("kind of device", GROUP, _KINDS)
        if device.kind not in table:
            raise DeviceError(
                f"{device.name} is a device of kind '{device.kind}', which this version cannot run; it runs {', '.join(table)}."
            )
        kind = load_entry("kind of device", table, device.kind)
    return kind
