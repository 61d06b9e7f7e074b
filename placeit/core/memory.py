"""Memory and threads of the process, and a setting, for applications only, to keep freed memory."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Use", "freed_memory_is_kept", "give_back_freed_memory", "keep_freed_memory", "own_use"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_KEEPING = ((_M_TRIM_THRESHOLD, -1), (_M_MMAP_MAX, 0), (_M_TOP_PAD, 2**26), (_M_ARENA_MAX, 1))
"""Never trim, never map a tensor by itself, never drop an empty heap, start no further ones."""
_AS_USUAL = ((_M_TRIM_THRESHOLD, 2**17), (_M_MMAP_MAX, 2**16), (_M_TOP_PAD, 2**17))
"""The settings that glibc has by itself."""
_kept: list[bool] = []


def keep_freed_memory() -> contextlib.ExitStack:
    """Make the C library keep freed memory instead of returning large blocks to the system.

    Memory that comes from the system has a page fault for every 4 KiB that is first written. That was two thirds of the CPU
    time of a network whose layers make tensors of 32 MB, and half of the time of two trainings on a busy virtual machine.

    Threads that share the main thread's memory (those started later, unless libraries have started some before) are like it.
    The others have heaps of 64 MB, which they keep; they never keep larger tensors. Other C libraries than glibc have no such
    settings.

    Returns:
        A context. Leaving or closing it has what is freed given back from then on, and once what is free by then, unless
        somebody else wants it kept. A program that wants it to its end need not keep the context. Two things stay: threads go
        on sharing memory, and glibc maps what is larger than 128 KiB by itself, however often that happens.
    """
    held = contextlib.ExitStack()
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        _set(library, _KEEPING)
        _kept.append(True)
        held.callback(_let_go, library)
    return held


def _let_go(library: ctypes.CDLL) -> None:
    _kept.pop()
    if not _kept:
        _set(library, _AS_USUAL)
        give_back_freed_memory()


def _set(library: ctypes.CDLL, values: tuple[tuple[int, int], ...]) -> None:
    for parameter, value in values:
        library.mallopt(parameter, value)


def freed_memory_is_kept() -> bool:
    """Return whether :func:`keep_freed_memory` is in force, on which the time of large tensors depends."""
    return bool(_kept)


def give_back_freed_memory() -> None:
    """Return free memory to the system once, even if freed memory is kept otherwise."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


@dataclass(frozen=True)
class Use:
    """Resources that a process uses, or may use.

    Attributes:
        bytes: of memory that it has to itself, without files that are mapped.
        threads: that it runs.
    """

    bytes: float
    threads: float


def own_use() -> Use:
    """Measure the resources of this process; zero if the system does not report them."""
    found = {"RssAnon": 0, "Threads": 0}
    with contextlib.suppress(OSError), Path("/proc/self/status").open(encoding="ascii", errors="replace") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0])
    return Use(1024.0 * found["RssAnon"], found["Threads"])
