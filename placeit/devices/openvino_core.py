"""The process's OpenVINO core."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["openvino_core"]


@functools.cache
def openvino_core() -> Any:
    """Return the only OpenVINO core: plugins and their thread pool are loaded once.

    It is never let go. OpenVINO's CPU plugin gives the thread that loads it a stack for signal handlers, and frees it with its
    core. Where cores overlap, or go on another thread, a freed stack stays in use, and the next signal, such as Ctrl-C, ends
    the process (2026.4).
    """
    import openvino  # slow to import, so not before somebody asks for devices

    return openvino.Core()
