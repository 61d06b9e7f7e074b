"""Memory and threads of the process, and a setting, for applications only, to keep freed memory."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Use", "freed_memory_is_kept", "keep_freed_memory", "own_use", "return_freed_memory", "trim_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -3, -4, -8
_KEEPING = ((_M_TRIM_THRESHOLD, -1), (_M_MMAP_MAX, 0), (_M_TOP_PAD, 2**26), (_M_ARENA_MAX, 1))
"""Never trim, never map a single tensor, never drop an empty heap, create no further heaps."""
_AS_USUAL = ((_M_TRIM_THRESHOLD, 2**17), (_M_MMAP_MAX, 2**16), (_M_TOP_PAD, 2**17))
"""The default settings of glibc."""
_RETURNING = ((_M_TRIM_THRESHOLD, 2**20), (_M_MMAP_THRESHOLD, 2**20), (_M_ARENA_MAX, 2))
"""Return what is free above 1 MiB, always map blocks of that size singly, and create one more heap."""
_contexts: list[bool] = []  # an entry for each open context of :func:`keep_freed_memory`


def keep_freed_memory() -> contextlib.ExitStack:
    """Make the C library keep freed memory instead of returning large blocks to the system.

    Memory that comes from the system has a page fault for each 4 KiB when it is first written. These faults took two thirds of
    the CPU time of a network with tensors of 32 MB, and half of the time of two trainings on a busy virtual machine.

    Threads that share the main thread's memory behave like it: all that are started later, unless libraries have started some
    before. Other threads have heaps of 64 MB, which they keep; they never keep larger tensors. Only glibc has these settings.

    Returns:
        A context. When it is left or closed, and no other caller's context is open, free memory is returned to the system, then
        and from then on. A program that keeps memory to its end may drop the context. Two effects stay: threads continue to
        share memory, and glibc always maps blocks of more than 128 KiB singly.
    """
    context = contextlib.ExitStack()
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        _set(library, _KEEPING)
        _contexts.append(True)
        context.callback(_close_context, library)
    return context


def _close_context(library: ctypes.CDLL) -> None:
    _contexts.pop()
    if not _contexts:
        _set(library, _AS_USUAL)
        trim_memory()


def _set(library: ctypes.CDLL, values: tuple[tuple[int, int], ...]) -> None:
    for parameter, value in values:
        library.mallopt(parameter, value)


def return_freed_memory() -> None:
    """Make the C library return freed memory to the system from now on, as far as it can, until the process ends."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        _set(library, _RETURNING)


def freed_memory_is_kept() -> bool:
    """Return whether :func:`keep_freed_memory` is in force; the time of large tensors depends on it."""
    return bool(_contexts)


def trim_memory() -> None:
    """Return free memory to the system once, even if freed memory is kept otherwise."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


@dataclass(frozen=True)
class Use:
    """Resources that a process uses, or may use.

    Attributes:
        bytes: private memory of the process, without mapped files.
        threads: number of threads.
    """

    bytes: float
    threads: float


def own_use() -> Use:
    """Return the resources that this process uses; zeros if the system does not report them."""
    found = {"RssAnon": 0, "Threads": 0}
    with contextlib.suppress(OSError), Path("/proc/self/status").open(encoding="ascii", errors="replace") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0])
    return Use(1024.0 * found["RssAnon"], found["Threads"])
