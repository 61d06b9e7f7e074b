"""State of segments on nodes: copies that stay on the node, and values that are sent to another device."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.narrowing import narrowed
from placeit.core.telemetry import import_openvino
from placeit.runtime.devices.base import Buffer
from placeit.runtime.nodes.remote import RemoteBuffer, RemoteDevice, RemoteInstance, RemoteProgram

__all__ = ["KeptCopy", "KeptVariable", "RemoteKeepingInstance", "SentVariable", "sent"]


class SentVariable(NamedTuple):
    """The value of a variable in the form that is sent to or from a node.

    Attributes:
        type_name: OpenVINO's name of its element type.
        shape: its shape.
        data: its bytes.
    """

    type_name: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    def tensor(self) -> Any:
        """Return the value as an ``openvino.Tensor``."""
        openvino = import_openvino()
        made = openvino.Tensor(getattr(openvino.Type, self.type_name), openvino.Shape(self.shape))
        made.data.reshape(-1).view(np.uint8)[...] = self.data  # OpenVINO shows types that NumPy lacks as others of their size
        return made


def sent(tensor: Any) -> SentVariable:
    """Copy an ``openvino.Tensor`` into the form that is sent."""
    data = np.array(tensor.data).reshape(-1).view(np.uint8)
    return SentVariable(tensor.element_type.get_type_name(), tuple(tensor.shape), data)


class KeptCopy:
    """A copy of an instance's state on its node. The node releases it when this object is garbage-collected.

    Args:
        device: the device of the node.
        number: number of the copy there.
    """

    def __init__(self, device: RemoteDevice, number: int) -> None:
        self.device, self.number = device, number
        weakref.finalize(self, device.tell, "forget_states", number).atexit = False


class KeptVariable(NamedTuple):
    """The value of a variable in a copy that is on a node."""

    copy: KeptCopy
    name: str

    def fetch(self) -> Any:
        """Fetch the value from the node, as an ``openvino.Tensor``. Raises DeviceError."""
        return self.copy.device.ask("fetch_state", self.copy.number, self.name).tensor()


class RemoteKeepingInstance(RemoteInstance):
    """An instance of a segment with state on a node: see :class:`placeit.runtime.devices.state.KeepsState`.

    Segments of an earlier run of its slots, which may still run after a failure elsewhere, end before its state is used, and do
    not change it later.
    """

    def __init__(self, device: RemoteDevice, program: RemoteProgram) -> None:
        super().__init__(device, program)
        self._sharers = weakref.WeakSet([self])

    def beside(self, outputs: Sequence[Buffer]) -> RemoteKeepingInstance:
        """Return an instance for another slot; see :class:`placeit.runtime.alternating.SharesState`."""
        made = RemoteKeepingInstance(self.device, self.program)
        made.outputs = [narrowed(RemoteBuffer, buffer) for buffer in outputs]
        made.keeps_state, made.shares, made._sharers = True, self.number, self._sharers
        self._sharers.add(made)
        return made

    def keep_state(self, *, keep: bool) -> None:
        """Choose whether later runs continue from the current state, or each start from the initial one. Raises DeviceError."""
        self.keeps_state = keep
        if self.slot is not None:  # otherwise the node is told when the slot is wired
            self._ask("keep_state", keep)

    def _ask(self, what: str, *arguments: Any) -> Any:
        slots = [one.slot for one in self._sharers if one.slot is not None]
        return self.device.ask(what, self.number, {slot.number: slot.retire() for slot in slots}, *arguments)

    def reset_state(self) -> None:
        """Return to the initial state. Raises DeviceError."""
        self._ask("reset_state")

    def states(self) -> dict[str, KeptVariable]:
        """Return copies of the values of its variables, which stay on the node. Raises DeviceError."""
        copy = KeptCopy(self.device, self._ask("copy_states"))
        return {name: KeptVariable(copy, name) for name in self.program.variables}

    def set_states(self, states: Mapping[str, Any]) -> None:
        """Set its variables to values from ``states``; values on another device are sent. Raises DeviceError."""
        self._ask("set_states", {name: self._encoded(states[name]) for name in self.program.variables})

    def _encoded(self, value: Any) -> int | SentVariable:
        """Return the number of the copy that has a value if the copy is on the same device, or else the value."""
        if isinstance(value, KeptVariable):
            if value.copy.device is self.device:
                return value.copy.number
            value = value.fetch()
        return sent(value)

    def state_bytes(self) -> int:
        """Return the bytes of its state. Raises DeviceError."""
        return int(self._ask("state_bytes"))
