"""Background work in a process that serves requests: it uses a share of a core, when nothing else wants the core."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from placeit.core.threads import TASKS, Job, Worker, cpu_seconds, run_in_thread

__all__ = ["Background", "in_background"]

T = TypeVar("T")

_Priority = tuple[int, os.sched_param]

_here = threading.local()
_kept_idle: set[int] = set()


def in_background() -> bool:
    """Return whether this thread works in the background; work there is not to be divided among several threads."""
    return getattr(_here, "background", False)


class Background:
    """A thread under ``SCHED_IDLE`` that uses a share of a core on average: it rests after each piece of work.

    A piece cannot be divided: compiling a large model takes all of a core while nothing else wants it, and a long rest follows.
    CPU time counts, including the CPU time of threads that a runtime starts during a piece. Their CPU time in later pieces does
    not count, as it cannot be told from the requests that they run.

    Such threads inherit the low priority. With it, their requests would wait for everything else that wants the cores. So they
    are given the main thread's priority when the piece is over. Only a process with ``CAP_SYS_NICE``, or a sufficient
    ``RLIMIT_NICE``, may do that; in others, work that starts threads runs at ordinary priority.

    Args:
        core: share of a core, on average.

    Attributes:
        seconds: CPU seconds used so far.
    """

    def __init__(self, core: float) -> None:
        self.seconds = 0.0
        self._core, self._rest = core, 0.0
        main = os.getpid()
        self._usual = os.sched_getscheduler(main), os.sched_getparam(main)
        self._may_rise = self._usual[0] != os.SCHED_IDLE and _may_rise(self._usual)
        self._idle = Worker("placeit refining", around=_idle)
        self._ordinary = self._idle if self._may_rise else Worker("placeit compiling", around=_marked)

    @property
    def rested(self) -> bool:
        """True if the rest after the last piece of work is over."""
        return time.monotonic() >= self._rest

    def begin(self, what: Callable[[], T], *, starts_threads: bool = False) -> Job[T]:
        """Begin a piece of work; ``starts_threads`` if it may start threads that go on when it is over."""
        job = Job(what)
        worker = self._ordinary if starts_threads else self._idle
        worker.submit(lambda: self._run(job))
        return job

    def check(self) -> None:
        """Raise ExecutionError if a thread has ended."""
        self._idle.check()
        self._ordinary.check()

    def close(self) -> None:
        """Stop the threads when the piece of work under way has ended."""
        self._idle.close()
        self._ordinary.close()

    def _run(self, job: Job[T]) -> None:
        before, begin = _threads(), time.thread_time()
        job.run()
        started = _started(before)
        spent = time.thread_time() - begin + sum(cpu_seconds(thread) for thread in started)
        while self._may_rise and started:
            for thread in started:
                _rise(thread, self._usual)
            started = _started(before)  # by one of these, before its priority was raised
        self.seconds += spent
        self._rest = time.monotonic() + spent * (1 / self._core - 1)
        job.ended.open()


@contextlib.contextmanager
def _marked() -> Iterator[None]:
    _here.background = True
    yield


@contextlib.contextmanager
def _idle() -> Iterator[None]:
    """Have the thread run only when nothing else wants its core."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _kept_idle.add(me := threading.get_native_id())
    try:
        with _marked():
            yield
    finally:
        _kept_idle.discard(me)


def _threads() -> set[int]:
    return {int(task.name) for task in TASKS.iterdir()}


def _started(before: set[int]) -> list[int]:
    """Return threads that were started since ``before`` and have this thread's priority, except those that are to keep it."""
    mine, found = os.sched_getscheduler(0), list[int]()
    for thread in _threads() - before - _kept_idle:
        with contextlib.suppress(OSError):  # it has ended
            if os.sched_getscheduler(thread) == mine:
                found.append(thread)
    return found


def _rise(thread: int, usual: _Priority) -> None:
    """Give a thread the usual priority, unless it has ended. Raises PermissionError if the process may not."""
    with contextlib.suppress(ProcessLookupError):
        os.sched_setscheduler(thread, *usual)


def _may_rise(usual: _Priority) -> bool:
    """Return whether the process may raise the priority of its threads again."""

    def rise() -> None:
        with _idle():
            _rise(threading.get_native_id(), usual)

    try:
        run_in_thread(rise)
    except PermissionError:
        return False
    return True
