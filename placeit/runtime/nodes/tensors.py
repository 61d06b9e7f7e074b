"""Tensors on their way through a socket: the form in which they are sent, and the buffers that they arrive in.

A tensor of open sizes is sent with the sizes that it has. The memory of its buffer may move as its sizes change, so it is
copied before it is sent, and received beside its buffer until all of it has come.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError
from placeit.core.narrowing import narrowed
from placeit.core.sizes import Limits, fits
from placeit.devices.host import memory_bytes
from placeit.runtime.devices.base import Buffer
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.nodes.coding import Coding, coded, coded_type, decode
from placeit.runtime.nodes.wire import Frame, ProtocolError

__all__ = ["Outgoing", "ReceivingBuffers", "bytes_of", "memory_of", "outgoing"]


_CODINGS = frozenset(Coding)


class Outgoing(NamedTuple):
    """A tensor as it is sent.

    Attributes:
        payload: its bytes, coded.
        coding: coding of the bytes; see :mod:`placeit.runtime.nodes.coding`.
        scale: scale of the coding.
        sizes: sizes of its dimensions, in memory order, if they are open; empty if they are fixed.
    """

    payload: memoryview
    coding: int
    scale: float
    sizes: tuple[int, ...]


def outgoing(buffer: Buffer, coding: int) -> Outgoing:
    """Return a buffer's value as it is sent; a copy if it is coded, or if its sizes are open and may so change later.

    Raises:
        DeviceError: it is not in host memory, or not contiguous.
    """
    memory = memory_of(buffer)
    value, scale = coded(coding, memory)
    used = 0 if value is memory else coding
    if _limits(buffer) is None:
        return Outgoing(bytes_of(value), used, scale, ())
    return Outgoing(bytes_of(value.copy() if value is memory else value), used, scale, memory.shape)


@dataclass(eq=False)
class _Arrival:
    """A buffer, and the parts of a tensor that have come for it.

    Attributes:
        buffer: the buffer.
        memory: its memory, at its current sizes.
        limits: limits of its sizes, in memory order; None if they are fixed.
        staged: memory beside the buffer.
        first: the header of the first part of the last tensor; None before the first one.
        missing: bytes of that tensor that have not come.
    """

    buffer: Buffer
    memory: NDArray[np.generic]
    limits: Limits | None
    staged: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    first: Frame | None = None
    missing: int = 0

    def form(self, frame: Frame) -> tuple[tuple[int, ...], np.dtype[np.generic], int]:
        """Return shape in memory order, type and bytes of the tensor that a frame is a part of. Raises ProtocolError."""
        dtype = self.memory.dtype
        if frame.coding not in _CODINGS or (frame.coding and dtype != np.float32):
            raise ProtocolError(f"a tensor of coding {frame.coding} for the buffer {frame.target}, which is not expected")
        if self.limits is None:
            shape = self.memory.shape
            known = not frame.sizes
        else:
            shape = frame.sizes
            known = fits(shape, shape, self.limits)
        if not known:
            raise ProtocolError(f"a tensor of sizes {[*frame.sizes]} for the buffer {frame.target}, which does not take them")
        count, wanted = math.prod(shape), coded_type(frame.coding, dtype)
        if count * dtype.itemsize > _most_bytes():
            raise ProtocolError(f"a tensor of {count * dtype.itemsize} bytes, which is more than this machine's memory")
        return shape, wanted, count * wanted.itemsize

    def is_beside(self, frame: Frame) -> bool:
        """Return whether a tensor is not received in the buffer itself, as it is coded or its sizes are open."""
        return frame.coding != Coding.NONE or self.limits is not None


class ReceivingBuffers:
    """Buffers that payloads arrive in, by number: the only memory that a frame can write to.

    For a tensor of open sizes, memory is allocated for the sizes in its frames, within the limits of its buffer and this
    machine's memory. The system provides memory only when it is written to, so that a frame alone takes none.
    """

    def __init__(self) -> None:
        self._arrivals: dict[int, _Arrival] = {}

    def expect(self, number: int, buffer: Buffer) -> None:
        """Receive into a buffer from now on. Raises DeviceError if it is not in host memory, or not contiguous."""
        self._arrivals[number] = _Arrival(buffer, memory_of(buffer), _limits(buffer))

    def forget(self, number: int) -> None:
        """Expect nothing for a buffer any more."""
        self._arrivals.pop(number, None)

    def place(self, frame: Frame) -> memoryview:
        """Return the memory for a part of a tensor. Raises ProtocolError if it is not expected."""
        arrival, nbytes = self._checked(frame)
        if frame.offset + frame.size > nbytes:
            raise ProtocolError(f"{frame.offset + frame.size} bytes for the buffer {frame.target}, which has {nbytes}")
        if not arrival.is_beside(frame):
            return bytes_of(arrival.memory)[frame.offset : frame.offset + frame.size]
        if arrival.staged.nbytes < nbytes:
            arrival.staged = np.empty(nbytes, np.uint8)
        return bytes_of(arrival.staged)[frame.offset : frame.offset + frame.size]

    def _checked(self, frame: Frame) -> tuple[_Arrival, int]:
        """Return the state of the tensor that a frame is a part of, and the bytes of all its parts. Raises ProtocolError."""
        arrival = self._arrivals.get(frame.target)
        if arrival is None:
            raise ProtocolError(f"a tensor for the buffer {frame.target}, which is not expected")
        first = arrival.first
        if first is not None and first.epoch == frame.epoch and (first.coding, first.sizes) != (frame.coding, frame.sizes):
            raise ProtocolError(f"parts of different tensors for the buffer {frame.target}")
        return arrival, arrival.form(frame)[2]

    def took(self, frame: Frame) -> bool:
        """Count a part that has come; return whether it was the last one. Raises ProtocolError if it is not expected."""
        arrival, nbytes = self._checked(frame)
        if arrival.first is None or arrival.first.epoch != frame.epoch:
            arrival.first, arrival.missing = frame, nbytes
        elif arrival.missing == 0:
            raise ProtocolError(f"more than one tensor for the buffer {frame.target} in one run")
        arrival.missing = max(0, arrival.missing - frame.size)
        return arrival.missing == 0

    def settle(self, number: int) -> None:
        """Write a tensor that was received beside its buffer into the buffer. Nothing that uses the buffer may be running."""
        arrival = self._arrivals[number]
        frame = arrival.first
        if frame is None or not arrival.is_beside(frame):
            return
        shape, dtype, nbytes = arrival.form(frame)
        if arrival.limits is not None:
            narrowed(HostBuffer, arrival.buffer).tensor.shape = shape
            arrival.memory = memory_of(arrival.buffer)
        decode(frame.coding, arrival.staged[:nbytes].view(dtype).reshape(shape), frame.finish, arrival.memory)


@functools.cache
def _most_bytes() -> float:
    return memory_bytes()


def _limits(buffer: Buffer) -> Limits | None:
    """Return the limits of the sizes of a buffer, in memory order; None if they are fixed."""
    spec = buffer.spec if isinstance(buffer, HostBuffer) else None
    return None if spec is None or spec.limits is None else spec.in_memory(spec.limits)


def memory_of(buffer: Buffer) -> NDArray[np.generic]:
    """Return the memory of a buffer in host memory, without a copy. Raises DeviceError if it is not C-contiguous."""
    tensor = getattr(buffer, "tensor", None)
    memory: NDArray[np.generic] = buffer.array() if tensor is None else tensor.data
    if not memory.flags.c_contiguous:
        raise DeviceError("A buffer that is sent to another node is not contiguous in memory.")
    return memory


def bytes_of(memory: NDArray[np.generic]) -> memoryview:
    """Return a view of C-contiguous memory as bytes."""
    return memoryview(memory.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
