"""Background work in a process that serves requests: it uses a share of an otherwise idle core."""

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
_always_idle: set[int] = set()


def in_background() -> bool:
    """Return whether this thread works in the background. Such work must not be divided among several threads."""
    return getattr(_here, "background", False)


class Background:
    """A thread under ``SCHED_IDLE`` that uses a share of a core on average, by pausing after each job.

    A job is not interrupted: compiling a large model uses a whole idle core, and a long pause follows. CPU time counts,
    including the CPU time of threads that a runtime starts during a job. Their CPU time after the job does not count, as it
    cannot be distinguished from the requests that they run.

    Such threads inherit the low priority, with which their requests would wait for all other work on the cores. So they get
    the main thread's priority when the job is over. Only a process with ``CAP_SYS_NICE``, or a sufficient ``RLIMIT_NICE``, may
    do that; in other processes, jobs that start threads run at normal priority.

    Args:
        core: share of a core, on average.

    Attributes:
        seconds: CPU seconds used so far.
    """

    def __init__(self, core: float) -> None:
        self.seconds = 0.0
        self._core, self._rest = core, 0.0
        main = os.getpid()
        self._normal = os.sched_getscheduler(main), os.sched_getparam(main)
        self._can_raise = self._normal[0] != os.SCHED_IDLE and _can_raise(self._normal)
        self._idle = Worker("placeit refining", around=_idle)
        self._ordinary = self._idle if self._can_raise else Worker("placeit compiling", around=_marked_background)

    @property
    def rested(self) -> bool:
        """True if the pause after the last job is over."""
        return time.monotonic() >= self._rest

    def begin(self, what: Callable[[], T], *, starts_threads: bool = False) -> Job[T]:
        """Start a job; ``starts_threads`` if it may start threads that outlive it."""
        job = Job(what)
        worker = self._ordinary if starts_threads else self._idle
        worker.submit(lambda: self._run(job))
        return job

    def check(self) -> None:
        """Raise ExecutionError if a thread has ended."""
        self._idle.check()
        self._ordinary.check()

    def close(self) -> None:
        """Stop the threads when the current job has ended."""
        self._idle.close()
        self._ordinary.close()

    def _run(self, job: Job[T]) -> None:
        before, begin = _threads(), time.thread_time()
        job.run()
        started = _new_threads(before)
        spent = time.thread_time() - begin + sum(cpu_seconds(thread) for thread in started)
        while self._can_raise and started:
            for thread in started:
                _raise_priority(thread, self._normal)
            started = _new_threads(before)  # one of them may have started another one before its priority was raised
        self.seconds += spent
        self._rest = time.monotonic() + spent * (1 / self._core - 1)
        job.ended.open()


@contextlib.contextmanager
def _marked_background() -> Iterator[None]:
    _here.background = True
    yield


@contextlib.contextmanager
def _idle() -> Iterator[None]:
    """Run the calling thread only when its core is idle, in the block."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _always_idle.add(me := threading.get_native_id())
    try:
        with _marked_background():
            yield
    finally:
        _always_idle.discard(me)


def _threads() -> set[int]:
    return {int(task.name) for task in TASKS.iterdir()}


def _new_threads(before: set[int]) -> list[int]:
    """Return the threads with this thread's priority that were started since ``before``, except threads that stay idle."""
    mine, found = os.sched_getscheduler(0), list[int]()
    for thread in _threads() - before - _always_idle:
        with contextlib.suppress(OSError):  # it has ended
            if os.sched_getscheduler(thread) == mine:
                found.append(thread)
    return found


def _raise_priority(thread: int, normal: _Priority) -> None:
    """Give a thread the normal priority, unless it has ended. Raises PermissionError if the process may not."""
    with contextlib.suppress(ProcessLookupError):
        os.sched_setscheduler(thread, *normal)


def _can_raise(normal: _Priority) -> bool:
    """Return whether the process may raise the priority of its threads again."""

    def raise_own() -> None:
        with _idle():
            _raise_priority(threading.get_native_id(), normal)

    try:
        run_in_thread(raise_own)
    except PermissionError:
        return False
    return True
