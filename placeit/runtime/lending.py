"""Inputs and outputs of a model in one slot; large ones are passed without a copy.

Segments read a large input from the caller's array, if its memory layout fits. A large output is returned to the caller without
a copy: as long as the caller has an array that shares its memory, later requests write to other memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from placeit.core.narrowing import narrowed
from placeit.runtime.devices.base import Buffer, BufferSpec
from placeit.runtime.devices.host_buffer import HostBuffer, shared_tensor

__all__ = ["MAX_COPIED_BYTES", "MIN_LENT_BYTES", "InputPort", "OutputPort", "is_lendable"]

MIN_LENT_BYTES = 1 << 18  # from this size on, binding memory to a request takes less time than copying
MAX_COPIED_BYTES = 4 << 20  # bytes of all inputs and outputs; up to this size, copying takes a server less time than binding
_MAX_BLOCKS = 3  # blocks of memory for an output; a caller that keeps the last answer has one of them

Bind = Callable[[HostBuffer], object]
"""Binds the segments that read an input, or write an output, to a buffer."""


def is_lendable(buffer: Buffer) -> bool:
    """Return whether a buffer can be exchanged with callers: for the array of an input, or as the array of an output."""
    return (
        isinstance(buffer, HostBuffer)
        and buffer.spec.limits is None
        and not buffer.spec.channels_last
        and buffer.spec.dtype != "bfloat16"
        and buffer.nbytes >= MIN_LENT_BYTES
    )


class _Port:
    """An input or an output of the model in one slot.

    Attributes:
        buffer: the buffer that holds its value.
    """

    buffer: Buffer
    _bind: Bind | None

    @property
    def lends(self) -> bool:
        """True if its memory can be exchanged with callers."""
        return self._bind is not None

    @property
    def plain(self) -> bool:
        """True if its memory holds the value in the shape, layout and type that callers use."""
        buffer = self.buffer
        if not isinstance(buffer, HostBuffer) or buffer.spec.limits is not None:
            return False
        memory, spec = buffer.tensor.data, buffer.spec
        return bool(memory.flags.c_contiguous and memory.shape == spec.shape and memory.dtype.name == spec.dtype)

    @property
    def memory(self) -> NDArray[np.generic]:
        """The array that holds its value, if it is plain."""
        return cast("NDArray[np.generic]", narrowed(HostBuffer, self.buffer).tensor.data)


class InputPort(_Port):
    """An input of the model in one slot.

    Args:
        buffer: its own buffer.
        bind: binds segments to another buffer; None if they cannot read another one.
    """

    def __init__(self, buffer: Buffer, bind: Bind | None) -> None:
        self.buffer, self._bind = buffer, bind
        self._lent: NDArray[np.generic] | None = None  # the caller's array that segments read instead

    @property
    def value(self) -> NDArray[Any]:
        """The value that the next requests read."""
        return self.buffer.array() if self._lent is None else self._lent

    def put(self, value: NDArray[np.generic]) -> None:
        """Set the value that the next requests read; it must not change until they have ended."""
        if self._bind is not None and value.flags.c_contiguous and value.flags.writeable and value.flags.aligned:
            if self._lent is not value:
                self._bind(HostBuffer(_spec(self.buffer), shared_tensor(value)))
                self._lent = value
            return
        self.unlend()
        self.buffer.fill(value)

    def fill(self, value: NDArray[np.generic]) -> None:
        """Copy a value into its own buffer, which the next requests read."""
        self.unlend()
        self.buffer.fill(value)

    def unlend(self) -> None:
        """Bind segments to its own buffer again."""
        if self._lent is not None and self._bind is not None:
            self._bind(narrowed(HostBuffer, self.buffer))
            self._lent = None

    def stop_lending(self) -> None:
        """Bind segments to its own buffer for all requests from now on."""
        self.unlend()
        self._bind = None


class _OutputMemory:
    """A block of memory for an output, which callers may share."""

    def __init__(self, spec: BufferSpec) -> None:
        self.array = np.zeros(spec.shape, spec.dtype)
        self.buffer = HostBuffer(spec, shared_tensor(self.array))
        self._references = sys.getrefcount(self.array)

    @property
    def is_lent(self) -> bool:
        """True if a caller has an array that shares this memory."""
        return sys.getrefcount(self.array) > self._references


class OutputPort(_Port):
    """An output of the model in one slot.

    Args:
        buffer: the buffer that a segment writes.
        bind: binds the segment to another buffer; None if it cannot write to another one, so that the output is copied.

    Attributes:
        buffer: the buffer that the segment is bound to.
    """

    def __init__(self, buffer: Buffer, bind: Bind | None) -> None:
        self.buffer, self._bind = buffer, bind
        self._blocks: list[_OutputMemory] = []
        self.make_room()

    def get(self) -> NDArray[np.generic]:
        """Return the value that was written last: a copy, or memory that no request writes to while a caller has it."""
        for block in self._blocks:
            if block.buffer is self.buffer:
                return block.array.view()
        return np.array(self.buffer.array(), order="C")

    def write_to(self, out: NDArray[np.generic]) -> bool:
        """Bind the next request to a caller's array; return False if the output has to be copied there instead."""
        if self._bind is None or not (out.flags.c_contiguous and out.flags.aligned):
            return False
        self._use(HostBuffer(_spec(self.buffer), shared_tensor(out)))
        return True

    def make_room(self) -> None:
        """Bind the next request to memory that no caller has."""
        if self._bind is None:
            return
        free = [block for block in self._blocks if not block.is_lent]
        if any(block.buffer is self.buffer for block in free):
            return
        if not free:
            free = [_OutputMemory(_spec(self.buffer))]
            self._blocks = [*free, *self._blocks][:_MAX_BLOCKS]
        self._use(free[0].buffer)

    def stop_lending(self) -> None:
        """Write to the current buffer in all requests from now on."""
        self._bind = None
        self._blocks.clear()

    def _use(self, buffer: HostBuffer) -> None:
        assert self._bind is not None  # noqa: S101
        self._bind(buffer)
        self.buffer = buffer


def _spec(buffer: Buffer) -> BufferSpec:
    return narrowed(HostBuffer, buffer).spec
