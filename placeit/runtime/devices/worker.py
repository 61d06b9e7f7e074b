"""A thread that runs jobs in order, bound to CPU cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from time import perf_counter

from placeit.errors import DeviceError, ExecutionError
from placeit.runtime.devices.base import Done

__all__ = ["Worker", "perform"]


def perform(run: Callable[[], object], explain: Callable[[Exception], str], done: Done) -> None:
    """Run something and report when it began and ended; the job of a device's worker.

    Args:
        run: what to run. Whatever it raises is reported as an ExecutionError.
        explain: gives the message of that error.
        done: told of the end.
    """
    begin, failure = perf_counter(), None
    try:
        run()
    except Exception as error:  # noqa: BLE001 (whatever it is, somebody waits for this thread to tell)
        failure = ExecutionError(explain(error))
        failure.__cause__ = error
    done(begin, perf_counter(), failure)


class Worker:
    """Runs jobs one at a time in the order of submission. A job must not raise.

    A job submitted from the worker's own thread (the next segment of a device whose last one just finished) starts without
    a context switch.

    Args:
        name: thread name.
        cores: CPU cores to run on; empty for wherever the process may run.
        around: a context that its thread enters before the first job and leaves after the last one.

    Raises:
        DeviceError: the process may not run on any of the cores.
    """

    def __init__(
        self, name: str, cores: tuple[int, ...] = (), around: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.submit: Callable[[Callable[[], None]], object] = self._jobs.put
        bound: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(cores, bound, around), name=name, daemon=True)
        self._thread.start()
        try:
            bound.result()
        except OSError as error:
            self._thread.join()
            raise DeviceError(
                f"{name}: no thread can be bound to the CPU cores {', '.join(map(str, cores))} ({error.strerror}): they do not "
                "exist, or this process may not use them; see `placeit devices`."
            ) from error

    def _run(self, cores: tuple[int, ...], bound: Future[None], around: Callable[[], AbstractContextManager[object]]) -> None:
        try:
            if cores:
                os.sched_setaffinity(0, cores)
        except OSError as error:
            bound.set_exception(error)
            return
        bound.set_result(None)
        get = self._jobs.get
        with around():
            while (job := get()) is not None:
                job()

    def _refuse(self, job: Callable[[], None]) -> None:  # noqa: ARG002
        raise ExecutionError(f"{self._thread.name} is closed, and nothing more can run there: open a new session or runtime.")

    def close(self) -> None:
        """Finish what was submitted and stop; what is submitted later is an ExecutionError."""
        self.submit = self._refuse
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
