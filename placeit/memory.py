"""How the process keeps memory that is freed; a setting for applications, not for libraries, to make."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, rather than give large tensors back to the system.

    Memory that comes from the system has a page fault for every 4 KiB that is first written. That was two thirds of the CPU
    time of a network whose layers make tensors of 32 MB, and half of the time of two trainings on a busy virtual machine.

    Threads that share the main thread's memory (those started later, unless libraries have started some before) are like it.
    The others have heaps of 64 MB, which they keep; they never keep larger tensors. Other C libraries than glibc have no such
    settings.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        # never trim, never map a tensor by itself, never drop an empty heap, start no further ones
        for parameter, value in ((_M_TRIM_THRESHOLD, -1), (_M_MMAP_MAX, 0), (_M_TOP_PAD, 2**26), (_M_ARENA_MAX, 1)):
            library.mallopt(parameter, value)
