"""Arrays of other libraries, on the host and on GPUs: everything with DLPack or CUDA's array interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import UsageError

__all__ = ["CudaArray", "DLPackArray", "GpuArray", "gpu_array", "host_array"]

_GPU_DEVICE_TYPES = (2, 13)  # DLDeviceType: kDLCUDA, kDLCUDAManaged


@runtime_checkable
class DLPackArray(Protocol):
    """An array that other libraries can use without a copy, such as PyTorch's and CuPy's (the array API's interchange)."""

    @property
    def shape(self) -> Any:
        """The sizes."""
        ...

    @property
    def dtype(self) -> Any:
        """The type, whose text ends in NumPy's spelling: ``torch.float32``."""
        ...

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, int]: ...


@runtime_checkable
class CudaArray(Protocol):
    """An array on a GPU with the CUDA array interface, such as Numba's."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


@dataclass(eq=False)
class GpuArray:
    """An array of a caller that is on a GPU.

    Attributes:
        value: the array.
        shape: its shape.
        dtype: its type.
        place: the GPU, as a library of streams names it; None before the library has adopted the array.
        view: the array as the library's tensor, once it has been adopted.
        ready: event of the library, behind the work of the caller that may still be writing the array; None if there is no such
            work.
    """

    value: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    place: Any = None
    view: Any = None
    ready: Any = None


def gpu_array(what: str, value: object) -> GpuArray | None:
    """Return an array on a GPU with its shape and type; None for anything else.

    Args:
        what: name of the array in errors; it begins a sentence.
        value: any object.

    Raises:
        UsageError: the array has a type that NumPy lacks.
    """
    if isinstance(value, np.ndarray):
        return None
    if isinstance(value, GpuArray):
        return value
    try:
        if isinstance(value, DLPackArray):
            if value.__dlpack_device__()[0] not in _GPU_DEVICE_TYPES:
                return None
            return GpuArray(value, tuple(value.shape), np.dtype(str(value.dtype).rpartition(".")[2]))
        if isinstance(value, CudaArray):
            interface = value.__cuda_array_interface__
            return GpuArray(value, tuple(interface["shape"]), np.dtype(interface["typestr"]))
    except TypeError as error:
        raise UsageError(f"{what} has a type that NumPy lacks ({error}): convert it.") from error
    return None


def host_array(what: str, value: object) -> NDArray[np.generic]:
    """Return an array in the host's memory; it is copied only if it is elsewhere.

    Args:
        what: name of the array in errors; it begins a sentence.
        value: an array of any library, or anything that ``np.asarray`` accepts.

    Raises:
        UsageError: the value is no array, or cannot be copied from its GPU.
    """
    on_gpu = gpu_array(what, value)
    try:
        if on_gpu is None:
            array = np.asarray(value)
            if array is not value and array.dtype == object and isinstance(value, DLPackArray):  # lacks NumPy's protocols
                array = np.from_dlpack(value)
            return array
        if on_gpu.ready is not None:
            on_gpu.ready.synchronize()
        copied: NDArray[np.generic] = np.from_dlpack(on_gpu.value, device="cpu")
        return copied
    except (ValueError, TypeError, RuntimeError, BufferError, AttributeError) as error:  # lists of different lengths, gradients
        where = "is no array that NumPy can read" if on_gpu is None else "is on a GPU, and cannot be copied to the host"
        raise UsageError(f"{what} {where} ({error}): give a NumPy array.") from error
