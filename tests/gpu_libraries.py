"""PyTorch and CuPy on a real GPU, for tests marked ``gpu``, which run with each of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from placeit.core.errors import DeviceError
from placeit.core.extras import installed
from placeit.devices.onnxruntime import onnxruntime
from placeit.runtime.accelerators.library import StreamLibrary

__all__ = ["ON_GPU", "needs_ort_gpu"]


def by_torch() -> StreamLibrary:
    from placeit.runtime.accelerators.torch_library import TorchLibrary

    return TorchLibrary("cuda")


def by_cupy() -> StreamLibrary:
    from placeit.runtime.accelerators.cupy_library import CupyLibrary

    return CupyLibrary()


def has_cupy() -> bool:
    if not installed("cupy"):
        return False
    try:
        by_cupy()
    except DeviceError:
        return False
    return True


def param(library: Any, name: str, *, there: bool) -> Any:
    skip = pytest.mark.skipif(not there, reason=f"needs an NVIDIA GPU and {name} for it")
    return pytest.param(library, id=name, marks=[pytest.mark.gpu, skip])


ON_GPU = [param(by_torch, "PyTorch", there=torch.cuda.is_available()), param(by_cupy, "CuPy", there=has_cupy())]
"""Functions that open each library on a GPU."""

needs_ort_gpu = pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime().get_available_providers(), reason="needs onnxruntime-gpu"
)
