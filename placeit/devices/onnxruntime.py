"""ONNX Runtime, which is an optional dependency."""

from __future__ import annotations

import os
from typing import Any

from placeit.core.errors import DeviceError

__all__ = ["onnxruntime"]


def onnxruntime() -> Any:
    """Import ONNX Runtime. Raises DeviceError, saying how to install it.

    Its telemetry (1.31) writes to the user's home folder and sends to Microsoft, which nobody has asked for here: it is off
    unless the user's environment says otherwise.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise DeviceError(
            f"ONNX Runtime is not there ({error}): install it with `pip install placeit[ort]`, or for NVIDIA GPUs with `pip "
            "install onnxruntime-gpu`, or choose devices that OpenVINO drives."
        ) from error
    return onnxruntime
