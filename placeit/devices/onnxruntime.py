"""ONNX Runtime, which is an optional dependency."""

from __future__ import annotations

from typing import Any

from placeit.core.errors import DeviceError
from placeit.core.telemetry import import_onnxruntime

__all__ = ["onnxruntime"]


def onnxruntime() -> Any:
    """Import ONNX Runtime, without its telemetry. Raises DeviceError, saying how to install it."""
    try:
        return import_onnxruntime()
    except ImportError as error:
        raise DeviceError(
            f"ONNX Runtime cannot be imported ({error}): install it with `pip install placeit[ort]`, or for NVIDIA GPUs with "
            "`pip install onnxruntime-gpu`, or choose devices that OpenVINO drives."
        ) from error
