"""Cache of compiled programs: executors share them, and unused ones are kept for later plans while there is room."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakSet, WeakValueDictionary

from placeit.core.memory import Use, own_use, trim_memory

__all__ = ["Programs", "searching"]

_Program = TypeVar("_Program")
_Key = TypeVar("_Key", bound=Hashable)

_TARGET = 0.75  # share of an exceeded limit to shrink to, so that it is not exceeded again at once
_SHARE = 8  # one in eight of the cached programs is released at a time
_MAX_IDLE_BYTES = 64e6  # limit on the weights of cached programs while no search is under way

_LOCK = threading.RLock()  # reentrant, as the garbage collector may call code that takes it
_SEARCHES: set[object] = set()  # contexts of searching() that have not ended
_ALL: WeakSet[Programs[Any, Any]] = WeakSet()


@contextlib.contextmanager
def searching() -> Iterator[None]:
    """Keep unused programs in this process until the end of the context, as a search opens the same segments many times.

    When the last of several contexts ends, programs beyond the usual limit are released.
    """
    search = object()
    with _LOCK:
        _SEARCHES.add(search)
    try:
        yield
    finally:
        with _LOCK:
            _SEARCHES.discard(search)
            every = [] if _SEARCHES else list(_ALL)
        for programs in every:
            programs.trim()


class Programs(Generic[_Key, _Program]):
    """A least-recently-used cache of programs by key. Programs that an executor uses are never released.

    While a search is under way (:func:`searching`), programs are kept until a limit is exceeded. The memory of a program can
    only be measured: besides its weights, in the layout that the device prefers, it has kernels, buffers, threads, and memory
    that an allocator cannot use again. So the limit is on the growth of the process since it was smallest. Memory that is left
    when no more programs can be released belongs to other code, and does not count from then on. At other times, the cached
    programs have at most 64 MB of weights in all: a plan's larger programs are released when its executor is closed.

    Several threads may use it at once; they make programs one after the other.

    Args:
        room: bytes and threads by which the process may grow.
        max_programs: maximum number of programs that exist.
        max_weights: maximum bytes of the weights of all programs, for devices with separate memory.
        weights: returns the bytes of a program's weights, given its key.
        used: measures the bytes and threads of the process.
    """

    def __init__(
        self,
        room: Use,
        *,
        max_programs: int,
        max_weights: float,
        weights: Callable[[_Key], float],
        used: Callable[[], Use] = own_use,
    ) -> None:
        self._room, self._max_programs, self._max_weights = room, max_programs, max_weights
        self._weights, self._used = weights, used
        self._alive: WeakValueDictionary[_Key, _Program] = WeakValueDictionary()  # all programs that exist
        self._recent: OrderedDict[_Key, _Program] = OrderedDict()  # cached programs, the most recently used one last
        self._baseline = used()
        self._lock = threading.Lock()
        with _LOCK:
            _ALL.add(self)

    def __len__(self) -> int:
        return len(self._alive)

    def __contains__(self, key: _Key) -> bool:
        return key in self._alive

    def get(self, keys: Sequence[_Key], make: Callable[[Sequence[int]], Iterable[_Program]]) -> list[_Program]:
        """Return the programs of keys, and make the missing ones.

        Args:
            keys: keys of programs; several may be equal.
            make: makes the missing programs, in order. Its argument is their indices in ``keys``, the first one of equal keys.
        """
        with self._lock:
            first = {key: i for i, key in reversed([*enumerate(keys)])}
            found = {key: program for key in first if (program := self._alive.get(key)) is not None}
            missing = sorted(i for key, i in first.items() if key not in found)
            if missing:
                self._make_room(sum(self._weights(keys[i]) for i in missing))
            for i, program in zip(missing, make(missing) if missing else (), strict=True):
                found[keys[i]] = self._alive[keys[i]] = program
            if missing:
                trim_memory()  # compiling needs several times the memory of its result
            for key in first:
                self._recent[key] = found[key]
                self._recent.move_to_end(key)
            self._make_room()
            return [found[key] for key in keys]

    def clear(self) -> None:
        """Release all programs that no executor uses, and return their memory to the system."""
        with self._lock:
            self._recent.clear()
            trim_memory()

    def trim(self, more: float = 0.0) -> None:
        """Release programs beyond the limits, so that ``more`` bytes can be allocated, and return their memory to the system.

        Does nothing while another thread is in :meth:`get`, which makes room itself: the garbage collector may call this on
        any thread, also on a thread that the other one waits for.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._make_room(more)
                trim_memory()
            finally:
                self._lock.release()

    def _make_room(self, more: float = 0.0) -> None:
        if not _SEARCHES:
            cached = sum(map(self._weights, self._recent))
            while cached > _MAX_IDLE_BYTES:
                cached -= self._weights(self._recent.popitem(last=False)[0])
        if not self._exceeded(1.0, more):
            return
        trim_memory()
        while self._recent and self._exceeded(_TARGET, more):
            for _ in range(len(self._recent) // _SHARE + 1):
                self._recent.popitem(last=False)
            trim_memory()
        if not self._recent:
            self._baseline = self._used()

    def _exceeded(self, share: float, more: float) -> bool:
        """Return whether a share of a limit would be exceeded if ``more`` bytes were allocated."""
        now = self._used()
        self._baseline = Use(min(self._baseline.bytes, now.bytes), min(self._baseline.threads, now.threads))
        return (
            now.bytes + more - self._baseline.bytes > share * self._room.bytes
            or now.threads - self._baseline.threads > share * self._room.threads
            or len(self._alive) > share * self._max_programs
            or sum(map(self._weights, [*self._alive])) > share * self._max_weights
        )
