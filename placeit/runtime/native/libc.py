"""Functions of the C library, and native entries of segments, as compiled functions call them: by address, without the GIL.

Addresses are passed as numbers, so that what calls them can be cached on disk.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from placeit.simulator.queues import inline, int64

__all__ = [
    "addresses",
    "call",
    "initialise",
    "lock",
    "monotonic",
    "now",
    "post",
    "ring",
    "sleep_until",
    "timespecs",
    "unlock",
    "wait",
]

LOCK, UNLOCK, WAIT, POST, GETTIME, NANOSLEEP, RING = range(7)
_NAMES = (
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
    "sem_wait",
    "sem_post",
    "clock_gettime",
    "clock_nanosleep",
    "eventfd_write",
)
_CLOCK_MONOTONIC, _TIMER_ABSTIME = 1, 1  # the clock of time.perf_counter
_ROOM = 128  # bytes, more than a mutex or a semaphore takes on any platform


@functools.cache
def addresses() -> NDArray[np.int64] | None:
    """``int64[7]``, where the functions are that :func:`lock` and the others call; None where the C library lacks one."""
    libc = ctypes.CDLL(None)
    try:
        return np.array([ctypes.cast(getattr(libc, name), ctypes.c_void_p).value for name in _NAMES], np.int64)
    except AttributeError:
        return None


def initialise(semaphores: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Make a mutex and so many semaphores at zero.

    Returns:
        The memory that they are in, which has to stay; ``int64[1 + semaphores]``, their addresses, that of the mutex first.
    """
    libc = ctypes.CDLL(None)
    memory = np.zeros((1 + semaphores, _ROOM), np.uint8)
    where = memory.ctypes.data + _ROOM * np.arange(1 + semaphores, dtype=np.int64)
    failed = libc.pthread_mutex_init(ctypes.c_void_p(int(where[0])), None)
    for address in where[1:].tolist():
        failed |= libc.sem_init(ctypes.c_void_p(address), 0, 0)
    if failed:
        raise OSError("The C library makes no mutex or semaphore.")
    return memory, where


def timespecs(count: int) -> NDArray[np.int64]:
    """``int64[count, 3]``: seconds, nanoseconds, and where these are in memory."""
    made = np.zeros((count, 3), np.int64)
    made[:, 2] = made.ctypes.data + made.strides[0] * np.arange(count)
    return made


def _make_call(_: Any, function: Any, argument: Any) -> Any:  # noqa: ARG001
    """Call ``int32 function(void *argument)``, both given as addresses."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])

    return types.int32(types.int64, types.int64), generate


def _make_call_with_two(_: Any, function: Any, first: Any, second: Any) -> Any:  # noqa: ARG001
    """Call ``int32 function(int32, int64)``, such as ``clock_gettime`` with the address of where to write."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), ir.IntType(64)])
        first = builder.trunc(args[1], ir.IntType(32))
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [first, args[2]])

    return types.int32(types.int64, types.int64, types.int64), generate


def _make_sleep(_: Any, function: Any, clock: Any, flags: Any, time: Any) -> Any:  # noqa: ARG001
    """Call ``int32 function(int32 clock, int32 flags, struct timespec *time, NULL)``."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        narrow, wide = ir.IntType(32), ir.IntType(64)
        kind = ir.FunctionType(narrow, [narrow, narrow, wide, wide])
        numbers = [builder.trunc(args[1], narrow), builder.trunc(args[2], narrow)]
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [*numbers, args[3], ir.Constant(wide, 0)])

    return types.int32(types.int64, types.int64, types.int64, types.int64), generate


_call = cast("Callable[[int, int], int]", intrinsic(_make_call))
_call_with_two = cast("Callable[[int, int, int], int]", intrinsic(_make_call_with_two))
_sleep = cast("Callable[[int, int, int, int], int]", intrinsic(_make_sleep))


@inline
def call(function: int, argument: int) -> int:
    """Call ``int32 function(void *argument)``, both given as addresses."""
    return int64(_call(function, argument))


@inline
def lock(libc: NDArray[np.int64], mutex: int) -> None:
    """Take a mutex."""
    call(libc[LOCK], mutex)


@inline
def unlock(libc: NDArray[np.int64], mutex: int) -> None:
    """Give a mutex back."""
    call(libc[UNLOCK], mutex)


@inline
def wait(libc: NDArray[np.int64], semaphore: int) -> None:
    """Wait for a semaphore; a signal may end that early."""
    call(libc[WAIT], semaphore)


@inline
def post(libc: NDArray[np.int64], semaphore: int) -> None:
    """Let somebody who waits for a semaphore go on."""
    call(libc[POST], semaphore)


@inline
def ring(libc: NDArray[np.int64], counter: int) -> None:
    """Add one to a counter of the kernel, an ``eventfd``, and so wake who waits for it."""
    _call_with_two(libc[RING], counter, 1)


@inline
def now(gettime: int, timespec: int) -> None:
    """Write the time of the clock of ``time.perf_counter`` into ``int64[2]``; both are addresses."""
    _call_with_two(gettime, _CLOCK_MONOTONIC, timespec)


@inline
def monotonic(libc: NDArray[np.int64], timespec: NDArray[np.int64]) -> float:
    """Return seconds by the clock of ``time.perf_counter``; ``timespec`` is a row of :func:`timespecs` to work in."""
    _call_with_two(libc[GETTIME], _CLOCK_MONOTONIC, timespec[2])
    return float(timespec[0] + 1e-9 * timespec[1])


@inline
def sleep_until(libc: NDArray[np.int64], timespec: NDArray[np.int64], deadline: float) -> None:
    """Sleep until a time of that clock; a signal may end that early."""
    timespec[0] = np.int64(deadline)
    timespec[1] = np.int64((deadline - np.int64(deadline)) * 1e9)
    _sleep(libc[NANOSLEEP], _CLOCK_MONOTONIC, _TIMER_ABSTIME, timespec[2])
