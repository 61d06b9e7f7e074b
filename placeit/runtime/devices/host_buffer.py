"""Tensors in the host's memory, which OpenVINO and ONNX Runtime read and write in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from placeit.core.telemetry import import_openvino
from placeit.runtime.blank import blank_value
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.devices.openvino_c import NativeTensor

__all__ = ["HostBuffer"]


class HostBuffer:
    """A tensor in host memory, shared with OpenVINO without a copy.

    One with open sizes belongs to OpenVINO: who writes it gives it a shape, and more memory if needed.

    Args:
        spec: its shape and type.
        tensor: the ``openvino.Tensor`` that holds it, or what the C library knows it as; None to allocate one.

    Attributes:
        tensor: the ``openvino.Tensor``.
        native: what the C library knows it as; None if it does not.
    """

    space = "host"

    def __init__(self, spec: BufferSpec, tensor: Any = None) -> None:
        self.spec = spec
        self.native = tensor if isinstance(tensor, NativeTensor) else None
        if self.native is not None:
            tensor = _shared(self.native.view())
        if tensor is None and spec.limits is not None:
            openvino = import_openvino()
            tensor = openvino.Tensor(openvino.Type(np.dtype(spec.dtype)), openvino.Shape(spec.memory_shape))
            tensor.data[...] = 0
        self.tensor = _shared(np.zeros(spec.memory_shape, spec.dtype)) if tensor is None else tensor

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(self.tensor.get_byte_size())

    def array(self) -> NDArray[np.generic]:
        """View the value in its logical shape."""
        data = cast("NDArray[np.generic]", self.tensor.data)
        return data.transpose(0, 3, 1, 2) if self.spec.channels_last else data

    def fill(self, value: NDArray[np.generic]) -> None:
        """Copy there."""
        if self.spec.limits is not None:
            self.resize(value.shape)
        self.array()[...] = value

    def copy(self, memory: NDArray[np.generic]) -> None:
        """Copy a value there that lies in memory as this one does, with its shape if sizes are open."""
        if self.tensor.data.shape != memory.shape:
            self.tensor.shape = memory.shape
        self.tensor.data[...] = memory

    def resize(self, shape: Sequence[int]) -> None:
        """Give a tensor with open sizes a logical shape, and more memory if needed. Values are lost."""
        self.tensor.shape = self.spec.in_memory(shape)

    def blank(self, sentinel: int) -> None:
        """Fill the memory."""
        self.tensor.data[...] = blank_value(self.tensor.data.dtype, sentinel)


def _shared(array: NDArray[np.generic]) -> Any:
    """Share an array with OpenVINO."""
    return import_openvino().Tensor(array, shared_memory=True)
