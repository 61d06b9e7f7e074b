"""The OpenVINO core that the whole process shares."""

from __future__ import annotations

import functools
from typing import Any

from placeit.core.telemetry import import_openvino

__all__ = ["openvino_core"]


@functools.cache
def openvino_core() -> Any:
    """Return the OpenVINO core of the process; plugins and their thread pool are loaded once.

    It is never released. OpenVINO's CPU plugin gives the thread that loads it a stack for signal handlers, and frees the stack
    with its core. If cores overlap, or are freed on another thread, a freed stack stays in use, and the next signal, such as
    Ctrl-C, ends the process (2026.4).
    """
    return import_openvino().Core()  # slow to import, so not before devices are needed
