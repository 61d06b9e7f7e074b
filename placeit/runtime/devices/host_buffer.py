"""Buffers in the host's memory that OpenVINO and ONNX Runtime read and write in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from placeit.core.telemetry import import_openvino
from placeit.runtime.blank import blank_value
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.devices.openvino_c import NativeTensor

__all__ = ["HostBuffer", "shared_tensor"]


class HostBuffer:
    """A tensor in host memory, shared with OpenVINO without a copy.

    OpenVINO allocates a tensor with open sizes. Each write sets its shape, and allocates more memory if needed.

    Args:
        spec: shape and type.
        tensor: an ``openvino.Tensor``, or a tensor of OpenVINO's C library; None to allocate one.

    Attributes:
        tensor: the ``openvino.Tensor``.
        native: the tensor of the C library; None if that has not allocated the memory.
    """

    space = "host"

    def __init__(self, spec: BufferSpec, tensor: Any = None) -> None:
        self.spec = spec
        self.native = tensor if isinstance(tensor, NativeTensor) else None
        if self.native is not None:
            tensor = shared_tensor(self.native.view())
        if tensor is None and spec.limits is not None:
            openvino = import_openvino()
            tensor = openvino.Tensor(openvino.Type(np.dtype(spec.dtype)), openvino.Shape(spec.memory_shape))
            tensor.data[...] = 0
        self.tensor = shared_tensor(np.zeros(spec.memory_shape, spec.dtype)) if tensor is None else tensor

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(self.tensor.get_byte_size())

    def array(self) -> NDArray[np.generic]:
        """Return a view of the value in its logical shape."""
        return self.spec.to_logical_order(self.tensor.data)

    def memory(self) -> NDArray[np.generic]:
        """Return the memory, in memory order."""
        return cast("NDArray[np.generic]", self.tensor.data)

    def fill(self, value: NDArray[np.generic]) -> None:
        """Copy a value into the buffer. If sizes are open or depend on the data, the buffer gets the value's shape."""
        array = self.array()
        if self.spec.limits is not None or array.shape != value.shape:
            self.resize(value.shape)
            array = self.array()
        array[...] = value

    def copy(self, memory: NDArray[np.generic]) -> None:
        """Copy a value in memory order into the buffer. If sizes are open, the buffer gets the value's shape."""
        if self.tensor.data.shape != memory.shape:
            self.tensor.shape = memory.shape
        self.tensor.data[...] = memory

    def resize(self, shape: Sequence[int]) -> None:
        """Set the logical shape of a tensor with open sizes, with more memory if needed. Values are lost."""
        self.tensor.shape = self.spec.in_memory(shape)

    def blank(self, sentinel: int) -> None:
        """Fill the memory with NaN, or with the sentinel if its type has no NaN."""
        self.tensor.data[...] = blank_value(self.tensor.data.dtype, sentinel)


def shared_tensor(array: NDArray[np.generic]) -> Any:
    """Return an ``openvino.Tensor`` in the memory of an array."""
    return import_openvino().Tensor(array, shared_memory=True)
