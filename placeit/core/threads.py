"""Worker threads, which run jobs in order on given CPU cores, and a gate: an event that stays valid after interrupts."""

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

__all__ = [
    "CHECK_S",
    "EXITING",
    "TASKS",
    "Gate",
    "Job",
    "Worker",
    "cpu_seconds",
    "exit_without_libraries",
    "finishes_within",
    "run_in_thread",
]

T = TypeVar("T")

TASKS = Path("/proc/self/task")  # the threads of this process
CHECK_S = 0.5  # seconds after which a waiting thread checks that what it waits for still exists
_TIMEOUT_S = 10.0  # seconds that closing waits for a thread whose job does not end
_EXIT_TIMEOUT_S = 2.0  # seconds that Python's exit waits for threads that run Python code


class Gate:
    """An event: threads wait until the gate is opened, once and for all.

    Unlike ``threading.Event``, it stays valid after an exception at any moment. A signal handler that raises inside
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
        """Wait until the gate is open, at most ``timeout`` seconds (no limit if negative), and return whether it is open.

        A wait without a limit returns to Python twice a second, so that signal handlers run: a signal that another thread
        receives, or that arrives just before the wait, does not interrupt it.
        """
        while not self.is_open:
            if self._shut.acquire(timeout=timeout if timeout >= 0 else CHECK_S):
                self._shut.release()  # for the next thread that waits
            elif timeout >= 0:
                break
        return self.is_open


class Job(Generic[T]):
    """A piece of work for the thread of a :class:`Worker`, and its result or exception.

    Attributes:
        ended: gate that opens when the job is over.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self.ended = Gate()
        self._function = function
        self._results: list[T] = []
        self._failures: list[BaseException] = []

    def __call__(self) -> None:
        """Run the job on this thread, and open the gate."""
        self.run()
        self.ended.open()

    def run(self) -> None:
        """Run the job on this thread; the caller has to open the gate."""
        try:
            self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001 (``result`` raises it in the thread that waits)
            self._failures.append(error)

    def wait(self, check: Callable[[], object]) -> None:
        """Wait until the job is over; call ``check``, which may raise, twice a second until then."""
        while not self.ended.wait(CHECK_S):
            check()

    def result(self) -> T:
        """Return the job's result, or raise its exception; call this once, after the gate has opened."""
        if self._failures:
            raise self._failures.pop()  # popped, so that the exception does not keep its own frames alive
        return self._results[0]


def run_in_thread(job: Callable[[], T], check: Callable[[], object] = lambda: None) -> T:
    """Run a job on a new thread, and return its result or raise its exception; call ``check`` twice a second until then.

    This is for jobs that must not be left half done: an exception of a signal handler or of ``check`` is raised in the calling
    thread, and the job continues to its end.
    """
    submitted = Job(job)
    worker = Worker("placeit job")
    worker.submit(submitted)
    try:
        submitted.wait(check)
    finally:
        worker.lane.close()  # the thread ends with the job
    worker.close()
    return submitted.result()


def exit_without_libraries() -> None:
    """Make the process exit without the exit functions of libraries, since a thread that never ends may use what they free."""
    library = ctypes.CDLL(None)
    library.on_exit(library._exit, None)


def finishes_within(seconds: float, job: Callable[[], None]) -> bool:
    """Run a job on a new thread and return whether it finished within some seconds; otherwise it continues."""
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
        self._state = _ThreadState(weakref.ref(self, self.lane.close))
        self._thread = threading.Thread(target=_work, args=(self.lane, cores, around, self._state), name=name, daemon=True)
        # started on another thread, since Thread.start waits for an event
        _thread.start_new_thread(self._state.start, (self._thread,))
        self._state.started.wait()
        error = self._state.error
        if isinstance(error, OSError):
            raise DeviceError(
                f"{name}: no thread can be bound to the CPU cores {', '.join(map(str, cores))} ({error.strerror}): they do not "
                "exist, or this process may not use them; see `placeit devices`."
            ) from error
        if error is not None:
            raise DeviceError(f"{name}: its thread cannot be started ({error}): close what runs beside it.") from error

    def check(self) -> None:
        """Raise ExecutionError if the thread has ended: jobs that were submitted will never end."""
        if not self.alive:
            error = self._state.error
            if error is None:
                self._refuse(self.check)
            raise ExecutionError(
                f"{self._thread.name} has died of {type(error).__name__}: {error}. Nothing more can run there: open a new "
                "session or runtime."
            ) from error

    @property
    def alive(self) -> bool:
        """True if the thread runs or is about to start."""
        return not self._state.ended  # Thread.is_alive is false for ever if a signal handler raised in it

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


class _ThreadState:
    """State of a worker's thread, without a strong reference to the worker.

    Attributes:
        worker: weak reference to the worker; when nothing else refers to the worker, the lane is closed.
        started: gate that opens when the thread has started, or has failed to start.
        ended: whether the thread has ended.
        error: why the thread could not start, or the exception that ended it.
    """

    def __init__(self, worker: weakref.ref[Worker]) -> None:
        self.worker = worker
        self.started = Gate()
        self.ended = False
        self.error: BaseException | None = None

    def start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError as error:
            self.error = error
            self.started.open()


def _work(
    lane: _core.Lane,
    cores: tuple[int, ...],
    around: Callable[[], AbstractContextManager[object]],
    state: _ThreadState,
) -> None:
    try:
        if cores:
            os.sched_setaffinity(0, cores)
    except OSError as error:
        state.error, state.ended = error, True
        return
    finally:
        state.started.open()
    try:
        with around():
            lane.work()
    except BaseException as error:  # noqa: BLE001 (``Worker.check`` reports it)
        state.error = error
    finally:
        state.ended = True


EXITING = Gate()
"""Opens when Python begins to exit."""


def _on_exit(process: int) -> None:
    EXITING.open()
    if os.getpid() == process:  # a fork has none of the threads
        _core.leave(_EXIT_TIMEOUT_S)


atexit.register(_on_exit, os.getpid())
