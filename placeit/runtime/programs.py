"""Compiled segments, shared by the executors that use them, and kept for later plans while there is room."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakSet, WeakValueDictionary

from placeit.core.memory import Use, give_back_freed_memory, own_use

__all__ = ["Programs", "searching"]

_Program = TypeVar("_Program")
_Key = TypeVar("_Key", bound=Hashable)

_AIM = 0.75  # of a bound that is exceeded, so that it is not at once exceeded again
_SHARE = 8  # of those that are kept, one in so many goes at a time
_IDLE_BYTES = 64e6  # of weights in programs that are kept while no search is under way

_LOCK = threading.RLock()  # also for what the garbage collector calls
_SEARCHES: set[object] = set()  # that are under way
_ALL: WeakSet[Programs[Any, Any]] = WeakSet()


@contextlib.contextmanager
def searching() -> Iterator[None]:
    """Keep unused programs in this process until the end of the context: a search opens equal plans and segments many times.

    At the end of the last of several contexts, programs beyond what is kept otherwise are released.
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
    """Finds the programs that executors use by key, and keeps some that no executor uses, those used last.

    While a search is under way (:func:`searching`), programs are kept until a limit is exceeded. What a program takes can only
    be measured: beside its weights, in the order that the device likes, there are kernels, buffers, threads, and memory that an
    allocator cannot use again. So what counts is by how much the process has grown since it had least. What is there when
    nothing more can be released is somebody else's, and does not count from then on. At other times, programs with more
    than 64 MB of weights in all are not kept: those of a plan go when its executor is closed.

    Several threads may use it at once; their programs are made in turn.

    Args:
        room: what the process may grow by.
        most: how many programs, and how many bytes of weights, are kept; the latter for devices with memory of their own.
        weights: bytes of the weights of a program, by its key.
        used: measures what the process takes.
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
        self._known: WeakValueDictionary[_Key, _Program] = WeakValueDictionary()  # all that there are
        self._kept: OrderedDict[_Key, _Program] = OrderedDict()  # those that are kept, used or not, the last used last
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
            keys: of programs; several may be equal.
            make: makes those that are not there, in order; it is given their places in ``keys``, the first of equal ones.
        """
        with self._lock:
            first = {key: place for place, key in reversed([*enumerate(keys)])}
            found = {key: program for key in first if (program := self._known.get(key)) is not None}
            missing = sorted(place for key, place in first.items() if key not in found)
            for place, program in zip(missing, make(missing) if missing else (), strict=True):
                found[keys[place]] = self._known[keys[place]] = program
            if missing:
                give_back_freed_memory()  # compiling needs several times what its result takes
            for key in first:
                self._kept[key] = found[key]
                self._kept.move_to_end(key)
            self._make_room()
            return [found[key] for key in keys]

    def clear(self) -> None:
        """Release all programs that no executor uses, and return their memory to the system."""
        with self._lock:
            self._kept.clear()
            give_back_freed_memory()

    def trim(self) -> None:
        """Release programs beyond what is kept while no search is under way, and return their memory to the system.

        Nothing happens while another thread looks programs up, which makes room itself: this may be called by the garbage
        collector on any thread, also on one that the other thread waits for.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._make_room()
                give_back_freed_memory()
            finally:
                self._lock.release()

    def _make_room(self) -> None:
        if not _SEARCHES:
            left = sum(map(self._weights, self._kept))
            while left > _IDLE_BYTES:
                left -= self._weights(self._kept.popitem(last=False)[0])
        if not self._exceeded(1.0):
            return
        give_back_freed_memory()
        while self._kept and self._exceeded(_AIM):
            for _ in range(len(self._kept) // _SHARE + 1):
                self._kept.popitem(last=False)
            give_back_freed_memory()
        if not self._kept:
            self._least = self._used()

    def _exceeded(self, share: float) -> bool:
        now = self._used()
        self._least = Use(min(self._least.bytes, now.bytes), min(self._least.threads, now.threads))
        return (
            now.bytes - self._least.bytes > share * self._room.bytes
            or now.threads - self._least.threads > share * self._room.threads
            or len(self._known) > share * self._most[0]
            or sum(map(self._weights, [*self._known])) > share * self._most[1]
        )
