"""OpenVINO and ONNX Runtime, imported so that they report nothing to their makers: placeit sends nothing over the network.

Both libraries decide while they are imported, and neither has a switch for that but a file or a variable of the environment:

- OpenVINO (2026.4) reports that it is imported, and later what it converts, by the package ``openvino_telemetry``, wherever it
  can be imported. What is documented is ``opt_in_out --opt_out``, which writes to the user's home folder. Where the package is
  missing, OpenVINO takes a stand-in of its own that does nothing. So it counts as missing while OpenVINO is imported.
- ONNX Runtime (1.31) makes a database in the user's home folder and starts a thread that sends what is in it, before its
  function ``disable_telemetry_events`` can be called. It reads ``ORT_DISABLE_TELEMETRY`` at that moment, so that is set while
  ONNX Runtime is imported.

Both are put back when the import is over. Who has imported one of the libraries before, or set the variable, has decided, and
nothing of that is changed.

Whoever imports ONNX Runtime also decides which messages it writes to stderr. Here these are errors: for each session on an
NVIDIA GPU, ONNX Runtime (1.31) warns that no plug-in provides it, which is no fault.
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
