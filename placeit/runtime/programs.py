"""Compiled segments, shared by the executors that use them, and kept for later plans while there is room."""

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

_AIM = 0.75  # share of an exceeded bound to come down to, so that it is not exceeded again at once
_SHARE = 8  # one in eight of the kept programs is released at a time
_IDLE_BYTES = 64e6  # most bytes of weights in programs that are kept while no search is under way

_LOCK = threading.RLock()  # reentrant, as the garbage collector may call code that takes it
_SEARCHES: set[object] = set()  # searches that are under way
_ALL: WeakSet[Programs[Any, Any]] = WeakSet()


@contextlib.contextmanager
def searching() -> Iterator[None]:
    """Keep unused programs in this process until the end of the context: a search opens equal plans and segments many times.

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
    """Finds programs by key, and keeps the ones that were used last when no executor uses them any more.

    While a search is under way (:func:`searching`), programs are kept until a limit is exceeded. The memory of a program can
    only be measured: besides its weights, in the layout that the device prefers, it has kernels, buffers, threads, and memory
    that an allocator cannot use again. So the limit is on the growth of the process since it was smallest. Memory that is left
    when no more programs can be released belongs to other code, and does not count from then on. At other times, kept programs
    have at most 64 MB of weights in all: a plan's larger programs are released when its executor is closed.

    Several threads may use it at once; their programs are made in turn.

    Args:
        room: bytes and threads by which the process may grow.
        most: how many programs, and how many bytes of weights, are kept; the latter for devices with separate memory.
        weights: bytes of the weights of a program, by its key.
        used: measures the bytes and threads of the process.
    """

    def __init__(
        self,
        room: Use,
        *,
        most: tuple[int, float],
        weights: Callable[[_Key], float],
        used: Callable[[], Use] = own_use,
    ) -> None:
        self._room, self._most, self._weights, self._used = room, most, weights, used
        self._known: WeakValueDictionary[_Key, _Program] = WeakValueDictionary()  # all that exist
        self._kept: OrderedDict[_Key, _Program] = OrderedDict()  # kept ones, used or not; the last used is last
        self._least = used()
        self._lock = threading.Lock()
        with _LOCK:
            _ALL.add(self)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: _Key) -> bool:
        return key in self._known

    def get(self, keys: Sequence[_Key], make: Callable[[Sequence[int]], Iterable[_Program]]) -> list[_Program]:
        """Return the programs of keys.

        Args:
            keys: keys of programs; several may be equal.
            make: makes the missing programs, in order; its argument is their places in ``keys``, the first of equal ones.
        """
        with self._lock:
            first = {key: place for place, key in reversed([*enumerate(keys)])}
            found = {key: program for key in first if (program := self._known.get(key)) is not None}
            missing = sorted(place for key, place in first.items() if key not in found)
            if missing:
                self._make_room(sum(self._weights(keys[place]) for place in missing))
            for place, program in zip(missing, make(missing) if missing else (), strict=True):
                found[keys[place]] = self._known[keys[place]] = program
            if missing:
                trim_memory()  # compiling needs several times the memory of its result
            for key in first:
                self._kept[key] = found[key]
                self._kept.move_to_end(key)
            self._make_room()
            return [found[key] for key in keys]

    def clear(self) -> None:
        """Release all programs that no executor uses, and return their memory to the system."""
        with self._lock:
            self._kept.clear()
            trim_memory()

    def trim(self, more: float = 0.0) -> None:
        """Release programs beyond the limit, if ``more`` bytes are to be taken, and return their memory to the system.

        Nothing happens while another thread looks programs up, which makes room itself: this may be called by the garbage
        collector on any thread, also on one that the other thread waits for.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._make_room(more)
                trim_memory()
            finally:
                self._lock.release()

    def _make_room(self, more: float = 0.0) -> None:
        if not _SEARCHES:
            left = sum(map(self._weights, self._kept))
            while left > _IDLE_BYTES:
                left -= self._weights(self._kept.popitem(last=False)[0])
        if not self._exceeded(1.0, more):
            return
        trim_memory()
        while self._kept and self._exceeded(_AIM, more):
            for _ in range(len(self._kept) // _SHARE + 1):
                self._kept.popitem(last=False)
            trim_memory()
        if not self._kept:
            self._least = self._used()

    def _exceeded(self, share: float, more: float) -> bool:
        now = self._used()
        self._least = Use(min(self._least.bytes, now.bytes), min(self._least.threads, now.threads))
        return (
            now.bytes + more - self._least.bytes > share * self._room.bytes
            or now.threads - self._least.threads > share * self._room.threads
            or len(self._known) > share * self._most[0]
            or sum(map(self._weights, [*self._known])) > share * self._most[1]
        )
