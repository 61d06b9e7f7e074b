"""Tensors that are sent through sockets: the form in which they are sent, and the buffers that receive them.

A tensor of open sizes is sent together with its sizes. It is copied before it is sent, since the memory of its buffer may move
when its sizes change, and received in separate memory until it is complete.
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
from placeit.runtime.devices.base import Buffer, InHostMemory
from placeit.runtime.nodes.coding import Coding, coded, coded_type, decoded
from placeit.runtime.nodes.wire import Frame, ProtocolError

__all__ = ["Outgoing", "ReceivingBuffers", "bytes_of", "outgoing"]

_CODINGS = frozenset(Coding)
_max_bytes = functools.cache(memory_bytes)


class Outgoing(NamedTuple):
    """A tensor in the form that is sent.

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
    """Return a buffer's value in the form that is sent: a view of its memory if possible, else a copy.

    The value is copied if it is coded, if its sizes are open and may change later, if the memory is not the host's, or if NumPy
    lacks its type, which is sent as float32.
    """
    found = buffer.memory() if isinstance(buffer, InHostMemory) else None
    memory = np.require(buffer.spec.to_memory_order(buffer.array()), requirements="C") if found is None else found
    value, scale = coded(coding, memory)
    used = 0 if value is memory else coding
    if buffer.spec.limits is None and memory.shape == buffer.spec.memory_shape:
        return Outgoing(bytes_of(value), used, scale, ())
    return Outgoing(bytes_of(value.copy() if value is found else value), used, scale, memory.shape)


@dataclass(eq=False)
class _Incoming:
    """A buffer that receives tensors, and the parts that have been received of the last one.

    Attributes:
        buffer: the buffer.
        in_place: whether tensors are received directly in the buffer, unless they are coded.
        dtype: element type in which its tensors are sent, unless they are coded.
        staging: separate memory, for tensors that are not received directly.
        first_frame: header of the first part of the last tensor; None before the first tensor.
        missing_bytes: bytes of that tensor that have not been received.
    """

    buffer: Buffer
    in_place: bool
    dtype: np.dtype[np.generic]
    staging: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    first_frame: Frame | None = None
    missing_bytes: int = 0

    @classmethod
    def of(cls, buffer: Buffer) -> Self:
        """Receive tensors directly in a buffer of host memory and fixed shape, and in separate memory for any other buffer."""
        spec = buffer.spec
        memory = buffer.memory() if isinstance(buffer, InHostMemory) and spec.limits is None else None
        if memory is not None and memory.flags.writeable and memory.shape == spec.memory_shape:
            return cls(buffer, True, memory.dtype)
        in_numpy = numpy_can_hold(spec.dtype) or spec.dtype.startswith("complex")
        return cls(buffer, False, np.dtype(spec.dtype if in_numpy else np.float32))  # the type of the buffer's ``array``

    def layout(self, frame: Frame) -> tuple[tuple[int, ...], np.dtype[np.generic], int]:
        """Return shape in memory order, type and bytes of a frame's tensor. Raises ProtocolError if it does not fit."""
        spec, dtype = self.buffer.spec, self.dtype
        if frame.coding not in _CODINGS or (frame.coding and dtype != np.float32):
            raise ProtocolError(f"a tensor of coding {frame.coding} for the buffer {frame.target}, which is not expected")
        shape = frame.sizes or spec.memory_shape
        if spec.limits is not None:
            is_valid = fits(frame.sizes, frame.sizes, spec.in_memory(spec.limits))
        else:  # sizes that depend on the data are at most the buffer's sizes
            is_valid = len(shape) == len(spec.shape) and all(map(operator.le, shape, spec.memory_shape))
        if not is_valid:
            raise ProtocolError(f"a tensor of sizes {[*frame.sizes]} for the buffer {frame.target}, which does not take them")
        count, wire_type = math.prod(shape), coded_type(frame.coding, dtype)
        if count * dtype.itemsize > _max_bytes():
            raise ProtocolError(f"a tensor of {count * dtype.itemsize} bytes, which is more than this machine's memory")
        return shape, wire_type, count * wire_type.itemsize

    def target_memory(self, frame: Frame) -> NDArray[np.generic] | None:
        """Return the buffer's memory if a tensor is received directly there; else None."""
        if not self.in_place or frame.coding != Coding.NONE or frame.sizes or not isinstance(self.buffer, InHostMemory):
            return None
        memory = self.buffer.memory()  # it may have been replaced, or have smaller sizes now
        return memory if memory is not None and memory.shape == self.buffer.spec.memory_shape else None

    def write_back(self) -> None:
        """Copy a tensor that was received in separate memory into the buffer. Raises DeviceError."""
        if self.first_frame is not None and self.target_memory(self.first_frame) is None:
            shape, dtype, nbytes = self.layout(self.first_frame)
            value = decoded(self.first_frame.coding, self.staging[:nbytes].view(dtype).reshape(shape), self.first_frame.finish)
            self.buffer.fill(self.buffer.spec.to_logical_order(value))


class ReceivingBuffers:
    """Buffers that receive payloads, by number: a frame can write to no other memory.

    For a tensor of open sizes, memory is allocated by the sizes in its frames, within the limits of its buffer and this
    machine's memory. The system provides pages only when they are written to, so a header alone takes no memory.
    """

    def __init__(self) -> None:
        self._incoming: dict[int, _Incoming] = {}

    def expect(self, number: int, buffer: Buffer) -> None:
        """Receive tensors for a buffer from now on."""
        self._incoming[number] = _Incoming.of(buffer)

    def forget(self, number: int) -> None:
        """Receive no more tensors for a buffer."""
        self._incoming.pop(number, None)

    def place(self, frame: Frame) -> memoryview:
        """Return the memory for a part of a tensor. Raises ProtocolError if it is not expected."""
        incoming, nbytes = self._checked(frame)
        if frame.offset + frame.size > nbytes:
            raise ProtocolError(f"{frame.offset + frame.size} bytes for the buffer {frame.target}, which has {nbytes}")
        memory = incoming.target_memory(frame)
        if memory is not None:
            return bytes_of(memory)[frame.offset : frame.offset + frame.size]
        if incoming.staging.nbytes < nbytes:
            incoming.staging = np.empty(nbytes, np.uint8)
        return bytes_of(incoming.staging)[frame.offset : frame.offset + frame.size]

    def _checked(self, frame: Frame) -> tuple[_Incoming, int]:
        """Return the state of the tensor that a frame is a part of, and the bytes of all its parts. Raises ProtocolError."""
        incoming = self._incoming.get(frame.target)
        if incoming is None:
            raise ProtocolError(f"a tensor for the buffer {frame.target}, which is not expected")
        first = incoming.first_frame
        if first is not None and first.epoch == frame.epoch and (first.coding, first.sizes) != (frame.coding, frame.sizes):
            raise ProtocolError(f"parts of different tensors for the buffer {frame.target}")
        return incoming, incoming.layout(frame)[2]

    def add_part(self, frame: Frame) -> bool:
        """Record a part that was received; return whether it was the last one. Raises ProtocolError if it is not expected."""
        incoming, nbytes = self._checked(frame)
        if incoming.first_frame is None or incoming.first_frame.epoch != frame.epoch:
            incoming.first_frame, incoming.missing_bytes = frame, nbytes
        elif incoming.missing_bytes == 0:
            raise ProtocolError(f"more than one tensor for the buffer {frame.target} in one run")
        incoming.missing_bytes = max(0, incoming.missing_bytes - frame.size)
        return incoming.missing_bytes == 0

    def write_back(self, number: int) -> None:
        """Copy a tensor that was received in separate memory into its buffer. Nothing that uses the buffer may be running."""
        self._incoming[number].write_back()


def bytes_of(memory: NDArray[np.generic]) -> memoryview:
    """Return a view of C-contiguous memory as bytes."""
    return memoryview(memory.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
