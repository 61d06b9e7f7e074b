"""Base class of kinds of devices, and the kind of each device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from placeit.backends.base import Format
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.devices.kinds import GROUP, KINDS, Kind, load_kind, plugin_kinds
from placeit.runtime.devices.base import RuntimeDevice, Transport

if TYPE_CHECKING:
    from placeit.backends.base import Model
    from placeit.planning.coarsen import Grouping
    from placeit.runtime.devices.accelerator import Streams
    from placeit.runtime.devices.kernels import Kernel

__all__ = ["Counts", "DeviceKind", "device_kind"]

_NODE = "placeit.runtime.kinds.node:on_node"
"""Function that returns the kind for devices of other nodes, given the kind that drives them on their node."""


class DeviceKind(Kind, ABC):
    """A kind of device: how its devices are found, named and opened, and what they run.

    A subclass is one file, whose ``KIND`` is an instance of it. Attributes, and methods that need no open device, are described
    in :class:`placeit.devices.kinds.Kind`.
    """

    formats: tuple[Format, ...] = ("openvino",)
    whole_file: Format | None = None
    bundle_format: Format | None = None

    @abstractmethod
    def open(self, device: Device, precision: str) -> RuntimeDevice:
        """Open a device to run segments on. Raises DeviceError."""

    @abstractmethod
    def supported(self, model: Model, device: Device) -> Collection[str]:
        """Return the names of the ops that the device can run. Raises DeviceError if it cannot run models of this format."""

    def kernels(self, model: Model, grouping: Grouping, device: Device, precision: str, passes: int) -> Sequence[Kernel] | None:  # noqa: ARG002
        """Measure the kernels of a pass over the whole model. Raises DeviceError.

        Returns:
            The kernels; None if the runtime does not report times of ops. Then the groups are timed one by one
            (:mod:`placeit.runtime.group_times`), on the eager kind (``compiles``) of a kind that compiles.
        """
        return None

    def streams(self, devices: Sequence[Device], precision: str) -> Streams | None:  # noqa: ARG002
        """Open streams that drive all devices of a cluster; None if this kind cannot, or no device has streams.

        Raises:
            DeviceError: the streams cannot be opened.
        """
        return None

    def link(self, source: RuntimeDevice, destination: RuntimeDevice) -> Transport | None:  # noqa: ARG002
        """Open the link between two devices, at least one of which is of this kind; None if this kind has no link for them.

        The kind of the source is asked first. Without a link, tensors stay in place if both devices read the same memory, and
        otherwise go through the host's memory (:class:`placeit.runtime.devices.hand_over.HandOver`). Raises DeviceError.
        """
        return None

    def open_sizes(self, device: Device) -> bool:  # noqa: ARG002
        """Return whether the device runs segments of models with open sizes, at any size."""
        return False

    def expected(self, device: Device, precision: str) -> RuntimeDevice:  # noqa: ARG002
        """Make a device that may be missing, and counts as lost until it can be opened.

        See :class:`placeit.runtime.reopening.Losable`. Raises DeviceError if the kind does not support that.
        """
        raise DeviceError(f"{device.name} has to be available when it is opened.")


@runtime_checkable
class Counts(Protocol):
    """A kind whose devices can count the time of each kernel of a segment, as OpenVINO does."""

    def counting(self, device: Device, precision: str) -> RuntimeDevice:
        """Open a device whose programs count the time of each kernel. Raises DeviceError."""


def device_kind(device: Device) -> DeviceKind:
    """Find the kind of a device.

    Raises:
        DeviceError: this version has no such kind.
        UsageError: the plug-in with the kind cannot be loaded.
    """
    kind = load_kind(device.kind)
    if not isinstance(kind, DeviceKind):
        listing = ", ".join([*KINDS, *plugin_kinds()])
        raise DeviceError(
            f"{device.name} is a device of kind '{device.kind}', which this version cannot run; it runs {listing}."
        )
    if device.address is None or not device.address.node:
        return kind
    made: DeviceKind = EntryPoint("node", _NODE, GROUP).load()(kind)
    return made
