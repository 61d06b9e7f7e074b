"""The OpenVINO core that all of the process shares."""

from __future__ import annotations

import functools
from typing import Any

from placeit.core.telemetry import import_openvino

__all__ = ["openvino_core"]


@functools.cache
def openvino_core() -> Any:
    """Return the OpenVINO core of the process; plugins and their thread pool are loaded once.

    It is never let go. OpenVINO's CPU plugin gives the thread that loads it a stack for signal handlers, and frees it with its
    core. Where cores overlap, or go on another thread, a freed stack stays in use, and the next signal, such as Ctrl-C, ends
    the process (2026.4).
    """
    return import_openvino().Core()  # slow to import, so not before somebody asks for devices
