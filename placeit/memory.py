"""How the process keeps memory that is freed; a setting for applications, not for libraries, to make."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, and all threads share it, rather than give large tensors back to the system.

    A tensor on fresh pages costs a page fault for every 4 KiB that is first written, and threads of one process fault one at a
    time. That was two thirds of the time of a network whose layers make tensors of 32 MB, which two cores then computed hardly
    faster than one; and half of two trainings on a busy virtual machine. Call this before starting threads: they get memory of
    their own otherwise, of which no piece is larger than 64 MB. Other C libraries than glibc have no such settings.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for parameter, value in ((_M_TRIM_THRESHOLD, 2**30), (_M_MMAP_THRESHOLD, 2**30), (_M_ARENA_MAX, 1)):
            library.mallopt(parameter, value)
