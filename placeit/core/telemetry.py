"""Import OpenVINO and ONNX Runtime without their telemetry: placeit sends nothing over the network.

Both libraries decide about telemetry while they are imported. Neither has a switch for it other than a file or a variable of
the environment:

- OpenVINO (2026.4) reports its import, and later its conversions, by the package ``openvino_telemetry``, if that can be
  imported. The documented switch is ``opt_in_out --opt_out``, which writes to the user's home folder. Without the package,
  OpenVINO uses a stand-in that does nothing. So placeit makes the package look missing while OpenVINO is imported.
- ONNX Runtime (1.31) makes a database in the user's home folder and starts a thread that sends its content, before its
  function ``disable_telemetry_events`` can be called. It reads ``ORT_DISABLE_TELEMETRY`` at that moment, so placeit sets the
  variable while ONNX Runtime is imported.

Both changes are undone after the import. A program that has imported one of the libraries before, or set the variable, has
decided itself, and placeit does not change that.

The code that first imports ONNX Runtime also decides which messages it writes to stderr. Here it writes errors only: for each
session on an NVIDIA GPU, ONNX Runtime (1.31) warns that no plug-in provides the session, which is no fault.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["import_onnxruntime", "import_openvino"]

_REPORTER = "openvino_telemetry"
_SWITCH = "ORT_DISABLE_TELEMETRY"
_ERRORS = 3  # the least severe messages that ONNX Runtime writes
_lock = threading.RLock()


def import_openvino() -> Any:
    """Return the module ``openvino``. Importing it takes a third of a second, so not before it is needed."""
    with _without_reporter():
        import openvino  # noqa: TID251
    return openvino


def import_onnxruntime() -> Any:
    """Return the module ``onnxruntime``. Raises ImportError if it is not installed."""
    known = "onnxruntime" in sys.modules
    with _switched_off():
        import onnxruntime  # noqa: TID251
    if not known:
        onnxruntime.set_default_logger_severity(_ERRORS)
    return onnxruntime


@contextlib.contextmanager
def _without_reporter() -> Iterator[None]:
    with _lock:
        if "openvino" in sys.modules or _REPORTER in sys.modules:
            yield
            return
        sys.modules[_REPORTER] = None  # type: ignore[assignment]
        try:
            yield
        finally:
            del sys.modules[_REPORTER]


@contextlib.contextmanager
def _switched_off() -> Iterator[None]:
    with _lock:
        if "onnxruntime" in sys.modules or _SWITCH in os.environ:
            yield
            return
        os.environ[_SWITCH] = "1"
        try:
            yield
        finally:
            del os.environ[_SWITCH]
