"""Inputs and outputs of a model in one slot, without a copy where they are large.

Segments read a large input from the caller's own array, if its memory layout fits. A large output is returned to the caller in
place: as long as the caller has an array that shares its memory, later requests write to other memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from placeit.core.narrowing import narrowed
from placeit.core.telemetry import import_openvino
from placeit.runtime.devices.base import Buffer, BufferSpec
from placeit.runtime.devices.host_buffer import HostBuffer

__all__ = ["COPIED", "LARGE", "Entrance", "Exit", "is_lendable"]

LARGE = 1 << 18  # bytes from which on binding memory to a request takes less time than copying
COPIED = 4 << 20  # bytes of all inputs and outputs up to which a server copies them, as that takes less time than binding
_KEPT = 3  # blocks of memory kept for an output; a caller that keeps the last answer has one of them

Bind = Callable[[HostBuffer], object]
"""Has the segments that read an input, or write an output, use a buffer from now on."""


def is_lendable(buffer: Buffer) -> bool:
    """Return whether callers may be given the memory of a buffer of this kind, or give theirs in its place."""
    return (
        isinstance(buffer, HostBuffer)
        and buffer.spec.limits is None
        and not buffer.spec.channels_last
        and buffer.spec.dtype != "bfloat16"
        and buffer.nbytes >= LARGE
    )


class _End:
    """An input or an output of the model.

    Attributes:
        buffer: its memory.
    """

    buffer: Buffer
    _bind: Bind | None

    @property
    def lends(self) -> bool:
        """True if callers may be given its memory, or give theirs in its place."""
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
        """Its memory, if it is plain."""
        return cast("NDArray[np.generic]", narrowed(HostBuffer, self.buffer).tensor.data)


class Entrance(_End):
    """An input of the model.

    Args:
        buffer: its own memory.
        bind: has segments read a buffer instead; None if they cannot.
    """

    def __init__(self, buffer: Buffer, bind: Bind | None) -> None:
        self.buffer, self._bind = buffer, bind
        self._lent: NDArray[np.generic] | None = None  # the array that is read in its place

    def put(self, value: NDArray[np.generic]) -> None:
        """Have the next requests read a value, which must not change until they have ended."""
        if self._bind is not None and value.flags.c_contiguous and value.flags.writeable and value.flags.aligned:
            if self._lent is not value:
                self._bind(HostBuffer(_spec(self.buffer), _shared(value)))
                self._lent = value
            return
        self.take_back()
        self.buffer.fill(value)

    def fill(self, value: NDArray[np.generic]) -> None:
        """Copy a value into its own memory, and have the next requests read that."""
        self.take_back()
        self.buffer.fill(value)

    def take_back(self) -> None:
        """Have the next requests read its own memory."""
        if self._lent is not None and self._bind is not None:
            self._bind(narrowed(HostBuffer, self.buffer))
            self._lent = None

    def keep(self) -> None:
        """Have all requests from now on read its own memory."""
        self.take_back()
        self._bind = None


class _Memory:
    """Memory of an output, which callers may have."""

    def __init__(self, spec: BufferSpec) -> None:
        self.array = np.zeros(spec.shape, spec.dtype)
        self.buffer = HostBuffer(spec, _shared(self.array))
        self._references = sys.getrefcount(self.array)

    @property
    def is_lent(self) -> bool:
        """True if an array of a caller shares it."""
        return sys.getrefcount(self.array) > self._references


class Exit(_End):
    """An output of the model.

    Args:
        buffer: buffer that a segment writes.
        bind: has the segment write to another buffer; None if it cannot, and the output is copied.

    Attributes:
        buffer: buffer that the segment writes now.
    """

    def __init__(self, buffer: Buffer, bind: Bind | None) -> None:
        self.buffer, self._bind = buffer, bind
        self._kept: list[_Memory] = []
        self.make_room()

    def get(self) -> NDArray[np.generic]:
        """Return the value that was written last: a copy, or memory that no request writes to while a caller has it."""
        for memory in self._kept:
            if memory.buffer is self.buffer:
                return memory.array.view()
        return np.array(self.buffer.array(), order="C")

    def write_to(self, out: NDArray[np.generic]) -> bool:
        """Have the next request write to a caller's array; return False if the output has to be copied there instead."""
        if self._bind is None or not (out.flags.c_contiguous and out.flags.aligned):
            return False
        self._use(HostBuffer(_spec(self.buffer), _shared(out)))
        return True

    def make_room(self) -> None:
        """Have the next request write to memory that no caller has."""
        if self._bind is None:
            return
        free = [memory for memory in self._kept if not memory.is_lent]
        if any(memory.buffer is self.buffer for memory in free):
            return
        if not free:
            free = [_Memory(_spec(self.buffer))]
            self._kept = [*free, *self._kept][:_KEPT]
        self._use(free[0].buffer)

    def keep(self) -> None:
        """Have all requests from now on write to the memory that it has now."""
        self._bind = None
        self._kept.clear()

    def _use(self, buffer: HostBuffer) -> None:
        assert self._bind is not None  # noqa: S101
        self._bind(buffer)
        self.buffer = buffer


def _spec(buffer: Buffer) -> BufferSpec:
    return narrowed(HostBuffer, buffer).spec


def _shared(array: NDArray[np.generic]) -> Any:
    return import_openvino().Tensor(array, shared_memory=True)
