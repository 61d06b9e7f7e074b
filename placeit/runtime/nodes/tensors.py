"""Tensors on their way through a socket: the form in which they are sent, and the buffers that they arrive in.

A tensor of open sizes is sent with the sizes that it has. The memory of its buffer may move as its sizes change, so it is
copied before it is sent, and received beside its buffer until all of it has come.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from placeit.backends.checking import numpy_can_hold
from placeit.core.sizes import fits
from placeit.devices.host import memory_bytes
from placeit.runtime.devices.base import Buffer, BufferSpec, InHostMemory
from placeit.runtime.nodes.coding import Coding, coded, coded_type, decoded
from placeit.runtime.nodes.wire import Frame, ProtocolError

__all__ = ["Outgoing", "ReceivingBuffers", "bytes_of", "outgoing"]

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
    """Return a buffer's value as it is sent: in its memory if possible, else a copy.

    It is a copy if it is coded, if its sizes are open and may so change later, if the memory is not the host's, or if NumPy
    lacks its type, which is sent as float32.
    """
    found = buffer.memory() if isinstance(buffer, InHostMemory) else None
    memory = np.require(_in_memory_order(buffer.spec, buffer.array()), requirements="C") if found is None else found
    value, scale = coded(coding, memory)
    used = 0 if value is memory else coding
    if buffer.spec.limits is None and memory.shape == buffer.spec.memory_shape:
        return Outgoing(bytes_of(value), used, scale, ())
    return Outgoing(bytes_of(value.copy() if value is found else value), used, scale, memory.shape)


def _sent_type(spec: BufferSpec) -> np.dtype[np.generic]:
    """Return the type as which values are sent that are not sent from their memory: the one that ``array`` gives them."""
    return np.dtype(spec.dtype if numpy_can_hold(spec.dtype) or spec.dtype.startswith("complex") else np.float32)


def _in_memory_order(spec: BufferSpec, value: NDArray[np.generic]) -> NDArray[np.generic]:
    return value.transpose(0, 2, 3, 1) if spec.channels_last else value


def _in_logical_order(spec: BufferSpec, value: NDArray[np.generic]) -> NDArray[np.generic]:
    return value.transpose(0, 3, 1, 2) if spec.channels_last else value


@dataclass(eq=False)
class _Arrival:
    """A buffer, and the parts of a tensor that have come for it.

    Attributes:
        buffer: the buffer.
        in_place: whether tensors are received in the buffer, unless they are coded.
        dtype: type of its tensor as it is sent.
        staged: memory beside the buffer.
        first: the header of the first part of the last tensor; None before the first one.
        missing: bytes of that tensor that have not come.
    """

    buffer: Buffer
    in_place: bool
    dtype: np.dtype[np.generic]
    staged: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    first: Frame | None = None
    missing: int = 0

    @classmethod
    def of(cls, buffer: Buffer) -> Self:
        """Receive tensors in a buffer of the host that has one shape, and beside any other buffer."""
        spec = buffer.spec
        memory = buffer.memory() if isinstance(buffer, InHostMemory) and spec.limits is None else None
        if memory is not None and memory.flags.writeable and memory.shape == spec.memory_shape:
            return cls(buffer, True, memory.dtype)
        return cls(buffer, False, _sent_type(spec))

    def form(self, frame: Frame) -> tuple[tuple[int, ...], np.dtype[np.generic], int]:
        """Return shape in memory order, type and bytes of the tensor that a frame is a part of. Raises ProtocolError."""
        spec, dtype = self.buffer.spec, self.dtype
        if frame.coding not in _CODINGS or (frame.coding and dtype != np.float32):
            raise ProtocolError(f"a tensor of coding {frame.coding} for the buffer {frame.target}, which is not expected")
        shape = frame.sizes or spec.memory_shape
        if spec.limits is not None:
            known = fits(frame.sizes, frame.sizes, spec.in_memory(spec.limits))
        else:  # no larger than the buffer, as sizes that depend on the data are
            known = len(shape) == len(spec.shape) and all(map(operator.le, shape, spec.memory_shape))
        if not known:
            raise ProtocolError(f"a tensor of sizes {[*frame.sizes]} for the buffer {frame.target}, which does not take them")
        count, wanted = math.prod(shape), coded_type(frame.coding, dtype)
        if count * dtype.itemsize > _max_bytes():
            raise ProtocolError(f"a tensor of {count * dtype.itemsize} bytes, which is more than this machine's memory")
        return shape, wanted, count * wanted.itemsize

    def direct(self, frame: Frame) -> NDArray[np.generic] | None:
        """Return the buffer's memory if a tensor is received there; None if it is received beside it."""
        if not self.in_place or frame.coding != Coding.NONE or frame.sizes or not isinstance(self.buffer, InHostMemory):
            return None
        memory = self.buffer.memory()  # it may have other memory by now, or have smaller sizes
        return memory if memory is not None and memory.shape == self.buffer.spec.memory_shape else None

    def settle(self) -> None:
        """Write a tensor that was received beside its buffer into the buffer. Raises DeviceError."""
        if self.first is not None and self.direct(self.first) is None:
            shape, dtype, nbytes = self.form(self.first)
            value = decoded(self.first.coding, self.staged[:nbytes].view(dtype).reshape(shape), self.first.finish)
            self.buffer.fill(_in_logical_order(self.buffer.spec, value))


class ReceivingBuffers:
    """Buffers that payloads arrive in, by number: the only memory that a frame can write to.

    For a tensor of open sizes, memory is allocated for the sizes in its frames, within the limits of its buffer and this
    machine's memory. The system provides memory only when it is written to, so that a frame alone takes none.
    """

    def __init__(self) -> None:
        self._arrivals: dict[int, _Arrival] = {}

    def expect(self, number: int, buffer: Buffer) -> None:
        """Receive into a buffer from now on."""
        self._arrivals[number] = _Arrival.of(buffer)

    def forget(self, number: int) -> None:
        """Expect nothing for a buffer any more."""
        self._arrivals.pop(number, None)

    def place(self, frame: Frame) -> memoryview:
        """Return the memory for a part of a tensor. Raises ProtocolError if it is not expected."""
        arrival, nbytes = self._checked(frame)
        if frame.offset + frame.size > nbytes:
            raise ProtocolError(f"{frame.offset + frame.size} bytes for the buffer {frame.target}, which has {nbytes}")
        memory = arrival.direct(frame)
        if memory is not None:
            return bytes_of(memory)[frame.offset : frame.offset + frame.size]
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
        self._arrivals[number].settle()


@functools.cache
def _max_bytes() -> float:
    return memory_bytes()


def bytes_of(memory: NDArray[np.generic]) -> memoryview:
    """Return a view of C-contiguous memory as bytes."""
    return memoryview(memory.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
