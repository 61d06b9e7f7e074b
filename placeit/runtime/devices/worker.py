"""Base class of devices whose segments Python runs, on a thread for each device."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

from placeit.core.errors import ExecutionError
from placeit.core.threads import Worker
from placeit.runtime.devices.base import DoneCallback, Instance

__all__ = ["LENT_BY_ALL_CORES_S", "LENT_S", "OnWorker", "Worker", "explained", "perform"]

LENT_S = 2e-3  # seconds of the longest segment that a caller runs itself: waking two threads takes a few percent of it
LENT_BY_ALL_CORES_S = 20e-3  # seconds of the longest such segment on all cores; a signal handler waits until it ends


def explained(error: BaseException, explain: Callable[[BaseException], str]) -> ExecutionError:
    """Make the ExecutionError of a run that raised any exception, which is its cause."""
    kind = "" if isinstance(error, Exception) else f" ({type(error).__name__})"
    failure = ExecutionError(explain(error) + kind)
    failure.__cause__ = error
    return failure


def _attempt(run: Callable[[], object], explain: Callable[[BaseException], str]) -> None:
    """Run a function, and turn any exception into an ExecutionError.

    Args:
        run: the function.
        explain: returns the message of the error.

    Raises:
        ExecutionError: ``run`` raised an exception, which is the cause of this error.
    """
    try:
        run()
    except BaseException as error:  # also one that is no Exception: the thread that waits for the run has to be told
        raise explained(error, explain) from error


def perform(run: Callable[[], object], explain: Callable[[BaseException], str], done: DoneCallback) -> None:
    """Run a function and report its start and end; the job of a device's worker.

    Args:
        run: the function. Any exception that it raises is reported as an ExecutionError.
        explain: returns the message of that error.
        done: called at the end; once more if the call raises.
    """
    begin, failure = perf_counter(), None
    try:
        _attempt(run, explain)
    except ExecutionError as error:
        failure = error.with_traceback(None)
    try:
        done(begin, perf_counter(), failure)
    except BaseException:  # noqa: BLE001 (out of memory, say; nothing else reports the end, and the thread serves others)
        done(begin, perf_counter(), failure)


class OnWorker(ABC):
    """Base class of devices whose instances Python runs, by their method ``run``, on a thread for each device."""

    _worker: Worker

    @property
    def worker(self) -> Worker:
        """The thread that instances run on."""
        return self._worker

    def call(self, instance: Instance) -> Callable[[], None]:
        """Return a function that runs an instance on the worker thread. It raises ExecutionError."""
        return functools.partial(_attempt, cast("Any", instance).run, self._explain)

    def failure(self, error: BaseException) -> ExecutionError:
        """Make the error of an instance whose function in C raised an exception."""
        return explained(error, self._explain)

    def start(self, instance: Instance, done: DoneCallback) -> None:
        """Queue an instance."""
        self._worker.submit(functools.partial(perform, cast("Any", instance).run, self._explain, done))

    def close(self) -> None:
        """Stop the worker thread."""
        self._worker.close()

    @abstractmethod
    def _explain(self, error: BaseException) -> str:
        """Return the message of an ExecutionError."""
