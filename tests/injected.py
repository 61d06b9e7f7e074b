"""Failures put into running code: one at each place that calls something, one after the other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, ModuleType
from typing import Any, TypeAlias

__all__ = ["Failures"]

Place: TypeAlias = tuple[CodeType, int]
"""Where something is called: a function, and the instruction of it."""

_SURE = ("__exit__", "release")  # of locks, which cannot fail
_OF_COLLECTOR = ("gc_callback",)  # Hypothesis's, in which an error would be unraisable


class Failures:
    """Raises once at each place in some modules that calls anything, each time on its so-manieth call.

    Places are found as they are reached, so that none has to be listed, by a profile function of the threads that are started
    inside :meth:`watched`. The call fails instead of being made. A thread that was hit is not watched any more until it calls
    :meth:`watch`.

    Args:
        modules: whose calls fail.
        threads: begins of the names of the threads that this is about.
        error: makes what is raised.
        occurrence: which call at a place fails.

    Attributes:
        hit: where calls have failed, in words.
    """

    def __init__(
        self,
        modules: tuple[ModuleType, ...],
        threads: tuple[str, ...],
        error: Callable[[str], BaseException],
        occurrence: int = 1,
    ) -> None:
        self._files = {module.__file__ for module in modules}
        self.threads, self._error, self._occurrence = threads, error, occurrence
        self._seen: dict[Place, int] = {}
        self._armed = False
        self.hit: list[str] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch threads that are started in this context."""
        threading.setprofile(self._profile)
        try:
            yield
        finally:
            threading.setprofile(None)  # type: ignore[arg-type]

    def watch(self) -> bool:
        """Watch the thread that calls, if it is one of those; return whether it is."""
        mine = threading.current_thread().name.startswith(self.threads)
        if mine:
            sys.setprofile(self._profile)
        return mine

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Let one call fail in this context, if a place is reached at which no call has failed."""
        self._armed = True
        for place, count in self._seen.items():
            if count < self._occurrence:
                self._seen[place] = 0
        try:
            yield
        finally:
            self._armed = False

    def _profile(self, frame: FrameType, event: str, what: Any) -> None:
        caller = frame.f_back if event == "call" else frame
        if not self._armed or event not in ("call", "c_call") or caller is None or caller.f_code.co_filename not in self._files:
            return
        if not threading.current_thread().name.startswith(self.threads) or (event == "c_call" and what.__name__ in _SURE):
            return
        if frame.f_code.co_name in _OF_COLLECTOR:  # which the interpreter calls anywhere
            return
        place = caller.f_code, caller.f_lasti
        self._seen[place] = count = self._seen.get(place, 0) + 1
        if count == self._occurrence:
            self._armed = False
            called = frame.f_code.co_qualname if event == "call" else what.__qualname__
            self.hit.append(f"{called} in {caller.f_code.co_qualname}, line {caller.f_lineno}")
            raise self._error(self.hit[-1])
