"""State of a model's segments on nodes: copies of it that stay there, and values that are sent to another device."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.narrowing import narrowed
from placeit.core.telemetry import import_openvino
from placeit.runtime.devices.base import Buffer
from placeit.runtime.nodes.ahead import RemoteBuffer, RemoteDevice, RemoteInstance, RemoteProgram

__all__ = ["KeptCopy", "KeptVariable", "RemoteKeepingInstance", "SentVariable", "sent"]


class SentVariable(NamedTuple):
    """The value of a variable on its way to or from a node.

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
        made.data.reshape(-1).view(np.uint8)[...] = self.data  # types that NumPy lacks show as others of their size
        return made


def sent(tensor: Any) -> SentVariable:
    """Copy an ``openvino.Tensor`` into the form in which it is sent."""
    data = np.array(tensor.data).reshape(-1).view(np.uint8)
    return SentVariable(tensor.element_type.get_type_name(), tuple(tensor.shape), data)


class KeptCopy:
    """A copy of an instance's state on its node, which is released with the last reference to this object.

    Args:
        device: the device of the node.
        number: of the copy there.
    """

    def __init__(self, device: RemoteDevice, number: int) -> None:
        self.device, self.number = device, number
        weakref.finalize(self, _forget, device, number).atexit = False


def _forget(device: RemoteDevice, number: int) -> None:
    with contextlib.suppress(Exception):  # Ray may be about to shut down
        device.tell("forget_states", number)


class KeptVariable(NamedTuple):
    """The value of a variable in a copy on a node."""

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

    alternates = False  # until the node says so when the slot is wired

    def __init__(self, device: RemoteDevice, program: RemoteProgram) -> None:
        super().__init__(device, program)
        self._family = weakref.WeakSet([self])

    def beside(self, outputs: Sequence[Buffer]) -> RemoteKeepingInstance:
        """Return an instance for another slot; see :class:`placeit.runtime.alternating.SharesState`."""
        made = RemoteKeepingInstance(self.device, self.program)
        made.outputs = [narrowed(RemoteBuffer, buffer) for buffer in outputs]
        made.keeps_state, made.shares, made._family = True, self.number, self._family
        self._family.add(made)
        return made

    def keep_state(self, *, keep: bool) -> None:
        """Choose whether later runs continue from the current state, or each start from the initial one. Raises DeviceError."""
        self.keeps_state = keep
        if self.ahead is not None:  # otherwise the node is told when the slot is wired
            self._ask("keep_state", keep)

    def _ask(self, what: str, *arguments: Any) -> Any:
        slots = [one.ahead for one in self._family if one.ahead is not None]
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
        self._ask("set_states", {name: self._known(states[name]) for name in self.program.variables})

    def _known(self, value: Any) -> int | SentVariable:
        """Return the number of the copy with a value, if it is on the same device, or else the value itself."""
        if isinstance(value, KeptVariable):
            if value.copy.device is self.device:
                return value.copy.number
            value = value.fetch()
        return sent(value)

    def state_bytes(self) -> int:
        """Return the bytes of its state. Raises DeviceError."""
        return int(self._ask("state_bytes"))
