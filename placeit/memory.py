"""A setting of the process that trainings profit from; for applications, not for libraries, to make."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, rather than give every large tensor back to the system.

    On a busy virtual machine the kernel was seen to take half of the time of two trainings without this, on the same machine
    when idle next to nothing. Other C libraries than glibc have no such setting.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            library.mallopt(parameter, 2**30)
