"""A thread that runs jobs in order, bound to CPU cores, and a gate at which threads wait safely with interrupts."""

from __future__ import annotations

import _thread
import atexit
import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Generic, TypeVar

from placeit import _core
from placeit.core.errors import DeviceError, ExecutionError

__all__ = ["CHECK_S", "EXITING", "TASKS", "Gate", "Job", "Worker", "apart", "cpu_seconds", "exit_without_libraries", "within"]

T = TypeVar("T")

TASKS = Path("/proc/self/task")  # the threads of this process
CHECK_S = 0.5  # seconds between two checks of a thread that waits: that what it waits for is still there
_TIMEOUT_S = 10.0  # seconds that closing waits for a thread whose job does not end
_EXIT_TIMEOUT_S = 2.0  # seconds that Python's exit waits for threads that run Python code


class Gate:
    """A gate at which threads wait until it is opened.

    It is like ``threading.Event``, but stays valid after any exception at any moment. A signal handler that raises inside
    ``Event.wait`` can leave the event's lock taken, and then the thread that sets the event hangs for ever.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._shut = threading.Lock()
        self._shut.acquire()

    def open(self) -> None:
        """Open the gate. No two threads may do so at the same time."""
        if not self.is_open:
            self.is_open = True
            self._shut.release()

    def wait(self, timeout: float = -1) -> bool:
        """Wait until the gate is open, at most ``timeout`` seconds (no limit if negative), and return whether it is open."""
        if not self.is_open and self._shut.acquire(timeout=timeout if timeout >= 0 else -1):
            self._shut.release()  # for the next thread that waits
        return self.is_open


class Job(Generic[T]):
    """A piece of work for the thread of a :class:`Worker`, and its result or exception.

    Attributes:
        ended: gate that opens when the job is over.
    """

    def __init__(self, what: Callable[[], T]) -> None:
        self.ended = Gate()
        self._what = what
        self._made: list[T] = []
        self._failures: list[BaseException] = []

    def __call__(self) -> None:
        """Run the job on this thread, and open the gate."""
        self.run()
        self.ended.open()

    def run(self) -> None:
        """Run the job on this thread; the caller has to open the gate."""
        try:
            self._made.append(self._what())
        except BaseException as error:  # noqa: BLE001 (``result`` raises it in the thread that waits)
            self._failures.append(error)

    def wait(self, check: Callable[[], object]) -> None:
        """Wait until the job is over; call ``check``, which may raise, twice a second until then."""
        while not self.ended.wait(CHECK_S):
            check()

    def result(self) -> T:
        """Return the job's result, or raise its exception, once; call it after the gate has opened."""
        if self._failures:
            raise self._failures.pop()  # popped, so that the exception does not keep its own frames alive
        return self._made[0]


def apart(job: Callable[[], T], check: Callable[[], object] = lambda: None) -> T:
    """Run a job on a new thread, and return its result or raise its exception; call ``check`` twice a second until then.

    This is for jobs that must not be left half done: a signal handler, or ``check``, raises in the thread that waits here, and
    the job goes on to its end.
    """
    piece = Job(job)
    worker = Worker("placeit apart")
    worker.submit(piece)
    try:
        piece.wait(check)
    finally:
        worker.lane.close()  # the thread ends with the job
    worker.close()
    return piece.result()


def exit_without_libraries() -> None:
    """Have the process exit without the exit functions of C and C++ libraries, which a thread that never ends may be using."""
    library = ctypes.CDLL(None)
    library.on_exit(library._exit, None)


def within(seconds: float, job: Callable[[], None]) -> bool:
    """Run a job on a new thread and return whether it ended within some seconds; otherwise it continues."""
    ended = Gate()
    worker = Worker("placeit closing")
    worker.submit(job)
    worker.submit(ended.open)
    if ended.wait(seconds):
        worker.close()
    return ended.is_open


def cpu_seconds(thread: int | None) -> float:
    """Return the CPU seconds that a thread has used, by its native number; 0 if it has ended."""
    try:
        return float((TASKS / str(thread) / "schedstat").read_text().split()[0]) * 1e-9
    except OSError:
        return 0.0


class Worker:
    """A thread that runs the jobs queued on its lane, one at a time and in order.

    Jobs are Python functions. A job must not raise, since that would end the thread. Executors queue segments, which may need
    no Python. The thread also ends when nothing refers to the worker any more.

    Args:
        name: thread name.
        cores: CPU cores to run on; empty for all that the process may use.
        around: returns a context that the thread enters before the first job and leaves after the last one.

    Attributes:
        lane: the thread's queue.

    Raises:
        DeviceError: the process may not run on any of the cores, or may not have another thread.
    """

    def __init__(
        self, name: str, cores: tuple[int, ...] = (), around: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        self.lane = _core.Lane()
        self.submit: Callable[[Callable[[], object]], object] = self.lane.submit
        # a callback in C, since one in Python could be interrupted, and then nothing would tell the thread to end
        self._fate = _Fate(weakref.ref(self, self.lane.close))
        self._thread = threading.Thread(target=_work, args=(self.lane, cores, around, self._fate), name=name, daemon=True)
        # started on another thread, since Thread.start waits for an event
        _thread.start_new_thread(self._fate.start, (self._thread,))
        while not self._fate.settled.wait(CHECK_S):
            pass
        error = self._fate.error
        if isinstance(error, OSError):
            raise DeviceError(
                f"{name}: no thread can be bound to the CPU cores {', '.join(map(str, cores))} ({error.strerror}): they do not "
                "exist, or this process may not use them; see `placeit devices`."
            ) from error
        if error is not None:
            raise DeviceError(f"{name}: its thread cannot be started ({error}): close what runs beside it.") from error

    def check(self) -> None:
        """Raise ExecutionError if the thread has ended, in which case submitted jobs will never be reported."""
        if not self.alive:
            if self._fate.error is None:
                self._refuse(self.check)
            raise ExecutionError(
                f"{self._thread.name} has died of {type(self._fate.error).__name__}: {self._fate.error}. Nothing more can run "
                "there: open a new session or runtime."
            ) from self._fate.error

    @property
    def alive(self) -> bool:
        """True if the thread runs or is about to start."""
        return not self._fate.ended  # Thread.is_alive is false for ever if a signal handler raised in it

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds that the thread has used; 0 if it has ended."""
        return cpu_seconds(self._thread.native_id)

    def _refuse(self, job: Callable[[], object]) -> None:  # noqa: ARG002
        raise ExecutionError(f"{self._thread.name} is closed, and nothing more can run there: open a new session or runtime.")

    def close(self) -> None:
        """Finish all submitted jobs and stop; later submissions raise ExecutionError.

        A job that does not end within ten seconds is left running: its thread is a daemon and ends with it.
        """
        self.submit = self._refuse
        self.lane.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(_TIMEOUT_S)


class _Fate:
    """State of a worker's thread, without a reference to the worker itself.

    Attributes:
        worker: the worker; when nothing else refers to it, the lane is closed.
        ``settled``: gate that opens when the thread has started, or has failed to start.
        ended: whether the thread runs nothing any more.
        error: why the thread could not start, or the exception that ended it.
    """

    def __init__(self, worker: weakref.ref[Worker]) -> None:
        self.worker = worker
        self.settled = Gate()
        self.ended = False
        self.error: BaseException | None = None

    def start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError as error:
            self.error = error
            self.settled.open()


def _work(
    lane: _core.Lane,
    cores: tuple[int, ...],
    around: Callable[[], AbstractContextManager[object]],
    fate: _Fate,
) -> None:
    try:
        if cores:
            os.sched_setaffinity(0, cores)
    except OSError as error:
        fate.error, fate.ended = error, True
        return
    finally:
        fate.settled.open()
    try:
        with around():
            lane.work()
    except BaseException as error:  # noqa: BLE001 (``Worker.check`` reports it)
        fate.error = error
    finally:
        fate.ended = True


EXITING = Gate()
"""Opens when Python begins to exit."""


def _leave(process: int) -> None:
    EXITING.open()
    if os.getpid() == process:  # a fork has none of the threads
        _core.leave(_EXIT_TIMEOUT_S)


atexit.register(_leave, os.getpid())
