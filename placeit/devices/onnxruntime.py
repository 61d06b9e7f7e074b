"""ONNX Runtime, an optional dependency: import it, and read its exceptions."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import threading
from collections.abc import Iterator
from typing import Any

from placeit.core.errors import DeviceError, first_line, not_in_time
from placeit.core.extras import install, installed
from placeit.core.telemetry import import_onnxruntime
from placeit.devices.first_import import import_failure, known_failure

__all__ = ["explaining", "has_onnxruntime", "onnxruntime", "onnxruntime_failure", "ort_failures", "ort_reason", "stopping"]

_PACKAGE = "onnxruntime"
_OTHERS = "choose devices that OpenVINO drives"


def onnxruntime() -> Any:
    """Import ONNX Runtime, without its telemetry. Raises DeviceError, saying how to install it."""
    if why := known_failure(_PACKAGE):
        raise DeviceError(f"ONNX Runtime cannot be used: {why}. Install another version of it, or {_OTHERS}.")
    try:
        return import_onnxruntime()
    except ImportError as error:
        raise DeviceError(
            f"ONNX Runtime cannot be imported ({error}): install it with `{install('ort')}`, or for NVIDIA GPUs with "
            f"`pip install onnxruntime-gpu`, or {_OTHERS}."
        ) from error


def has_onnxruntime() -> bool:
    """Return whether ONNX Runtime, with the package that reads its files, is installed and can be imported."""
    return all(map(installed, (_PACKAGE, "onnx"))) and not onnxruntime_failure()


def onnxruntime_failure() -> str:
    """Return why ONNX Runtime is installed and cannot be imported; empty if it can be, or is not installed."""
    return import_failure(_PACKAGE, import_onnxruntime.__name__) if installed(_PACKAGE) else ""


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


@contextlib.contextmanager
def stopping(options: Any, seconds: float) -> Iterator[None]:
    """Stop the making of a session with these options after some seconds, if this version of ONNX Runtime can.

    Raises ExecutionError if it was stopped.
    """
    stop = getattr(options, "set_load_cancellation_flag", None)
    if seconds == math.inf or stop is None:
        yield
        return
    seconds = max(0.0, seconds)
    timer = threading.Timer(seconds, stop, (True,))
    if seconds > 0:
        timer.start()
    else:
        stop(True)
    try:
        yield
    except onnxruntime().capi.onnxruntime_pybind11_state.ModelLoadCanceled as error:
        raise not_in_time("ONNX Runtime", seconds) from error
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()


def ort_reason(error: BaseException) -> str:
    """Return the first line of a message of ONNX Runtime, without its error codes and places in its source."""
    line = first_line(error).removeprefix("[ONNXRuntimeError] : ")
    return re.sub(r"^(\d+ : \w+ : )?(Exception during initialization: )?(/\S+:\d+ .*?\) )?", "", line) or line
