"""Compiled segments, kept for later plans while there is room."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from placeit.core.memory import Use, give_back_freed_memory, own_use

__all__ = ["Programs"]

_Program = TypeVar("_Program")
_Key = TypeVar("_Key", bound=Hashable)

_AIM = 0.75  # of a bound that is exceeded, so that it is not at once exceeded again
_SHARE = 8  # of those that are kept, one in so many goes at a time


class Programs(Generic[_Key, _Program]):
    """Keeps programs by key. If a limit is exceeded, unused programs are released, least recently used first.

    What a program takes can only be measured: beside its weights, in the order that the device likes, there are kernels,
    buffers, threads, and memory that an allocator cannot use again. So what counts is by how much the process has grown since
    it had least. What is there when no unused program is left is somebody else's, and does not count from then on.

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
        self._kept: OrderedDict[_Key, _Program] = OrderedDict()
        self._least = used()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: _Key) -> bool:
        return key in self._kept

    def get(self, keys: Sequence[_Key], make: Callable[[Sequence[int]], Iterable[_Program]]) -> list[_Program]:
        """Return the programs of keys.

        Args:
            keys: of programs; several may be equal.
            make: makes those that are not there, in order; it is given their places in ``keys``, the first of equal ones.
        """
        with self._lock:
            first = {key: place for place, key in reversed([*enumerate(keys)])}
            missing = sorted(first[key] for key in first if key not in self._kept)
            for place, program in zip(missing, make(missing) if missing else (), strict=True):
                self._kept[keys[place]] = program
            if missing:
                give_back_freed_memory()  # compiling needs several times what its result takes
            for key in first:
                self._kept.move_to_end(key)
            programs = [self._kept[key] for key in keys]
            self._make_room()
            return programs

    def clear(self) -> None:
        """Release all programs, and return their memory to the system."""
        with self._lock:
            self._kept.clear()
            give_back_freed_memory()

    def _make_room(self) -> None:
        if not self._exceeded(1.0):
            return
        give_back_freed_memory()
        busy: list[tuple[_Key, _Program]] = []
        while self._kept and self._exceeded(_AIM):
            for _ in range(len(self._kept) // _SHARE + 1):
                key, program = self._kept.popitem(last=False)
                rest = weakref.ref(program)
                del program
                used = rest()
                if used is not None:
                    busy.append((key, used))
            give_back_freed_memory()
        if not self._kept:
            self._least = self._used()
        for key, program in reversed(busy):
            self._kept[key] = program
            self._kept.move_to_end(key, last=False)

    def _exceeded(self, share: float) -> bool:
        now = self._used()
        self._least = Use(min(self._least.bytes, now.bytes), min(self._least.threads, now.threads))
        return (
            now.bytes - self._least.bytes > share * self._room.bytes
            or now.threads - self._least.threads > share * self._room.threads
            or len(self._kept) > share * self._most[0]
            or sum(map(self._weights, self._kept)) > share * self._most[1]
        )
