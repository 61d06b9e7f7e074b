"""ONNX Runtime, an optional dependency: import it, and read its exceptions."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

from placeit.core.errors import DeviceError, first_line
from placeit.core.extras import install, installed
from placeit.core.telemetry import import_onnxruntime

__all__ = ["explaining", "has_onnxruntime", "onnxruntime", "ort_failures", "ort_reason"]


def onnxruntime() -> Any:
    """Import ONNX Runtime, without its telemetry. Raises DeviceError, saying how to install it."""
    try:
        return import_onnxruntime()
    except ImportError as error:
        raise DeviceError(
            f"ONNX Runtime cannot be imported ({error}): install it with `{install('ort')}`, or for NVIDIA GPUs with "
            "`pip install onnxruntime-gpu`, or choose devices that OpenVINO drives."
        ) from error


def has_onnxruntime() -> bool:
    """Return whether ONNX Runtime is installed, with the package that reads its files, without importing them."""
    return all(map(installed, ("onnxruntime", "onnx")))


@functools.cache
def ort_failures() -> tuple[type[Exception], ...]:
    """Return the error classes of ONNX Runtime, whose only common base is Exception, and of protobuf for more than 2 GB."""
    from google.protobuf.message import EncodeError

    state = onnxruntime().capi.onnxruntime_pybind11_state
    own = [kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    return (*own, EncodeError, RuntimeError, ValueError, TypeError, MemoryError)


@contextlib.contextmanager
def explaining(what: str) -> Iterator[None]:
    """Convert exceptions of ONNX Runtime to a DeviceError that says ``what`` failed."""
    try:
        yield
    except ort_failures() as error:
        raise DeviceError(f"{what}: {ort_reason(error)}") from error


def ort_reason(error: BaseException) -> str:
    """Return the first line of a message of ONNX Runtime, without its error codes and places in its source."""
    line = first_line(error).removeprefix("[ONNXRuntimeError] : ")
    return re.sub(r"^(\d+ : \w+ : )?(Exception during initialization: )?(/\S+:\d+ .*?\) )?", "", line) or line
