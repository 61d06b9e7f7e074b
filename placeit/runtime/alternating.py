"""Instances that keep state and are shared by several slots of a sequence, with the buffers of one slot at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from placeit.runtime.devices.base import Buffer, Instance, Rebinds, Runnable
from placeit.runtime.devices.host_buffer import HostBuffer

__all__ = ["Alternating", "SharesState", "alternating"]


@runtime_checkable
class SharesState(Instance, Protocol):
    """An instance whose state requests in several slots of a sequence can use.

    Attributes:
        alternates: whether its state can be shared.
    """

    alternates: bool

    def beside(self, outputs: Sequence[Buffer]) -> Instance:
        """Return an instance for another slot, with the same state and other output buffers."""
        ...


class Alternating:
    """The buffers of one slot for an instance that several slots of a sequence share.

    So a device can run the next request of the sequence on the same state while another device still reads the outputs of the
    previous request. Runs of the instance must not overlap. Buffers of a slot may be changed while the instance runs with the
    buffers of another slot.

    Args:
        instance: the instance.
        outputs: buffers of its outputs.
        last: a list, shared by the slots, whose only item is the slot that ran last; None for the first slot.

    Attributes:
        instance: the instance, which keeps the state.
    """

    rebinds = True
    alternates = True

    def __init__(self, instance: Runnable, outputs: Sequence[Buffer], last: list[Alternating | None] | None = None) -> None:
        self.instance, self._outputs = instance, [*outputs]
        self._bound: dict[int, Buffer] = {}
        self._last: list[Alternating | None] = [None] if last is None else last
        self._changed = True

    def beside(self, outputs: Sequence[Buffer]) -> Alternating:
        """Return the buffers of another slot for the same instance."""
        return Alternating(self.instance, outputs, self._last)

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` in this slot from now on."""
        self._bound[index], self._changed = buffer, True

    def write_to(self, index: int, buffer: Buffer) -> None:
        """Write output ``index`` to ``buffer`` in this slot from now on."""
        self._outputs[index], self._changed = buffer, True

    def output(self, index: int) -> Buffer:
        """Return the buffer that output ``index`` is written to."""
        return self._outputs[index]

    def run(self) -> None:
        """Run with the buffers of this slot. Raises RuntimeError or DeviceError."""
        if self._changed or self._last[0] is not self:
            self._last[0] = None
            for index, buffer in enumerate(self._outputs):
                self.instance.write_to(index, buffer)
            for index, buffer in self._bound.items():
                self.instance.bind(index, buffer)
            self._last[0], self._changed = self, False
        self.instance.run()


def alternating(made: Instance, outputs: int) -> Instance:
    """Wrap an instance that keeps state, so that slots can share it; return it if it can be shared, or has fixed buffers."""
    if isinstance(made, SharesState):
        return made
    buffers = [made.output(i) for i in range(outputs)]
    if isinstance(made, Rebinds) and all(type(buffer) is HostBuffer for buffer in buffers):
        return Alternating(made, buffers)  # type: ignore[arg-type]
    return made
