"""Base class of devices that run segments from Python, on a thread for each device."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

from placeit.core.errors import ExecutionError
from placeit.core.threads import Worker
from placeit.runtime.devices.base import DoneCallback, Instance

__all__ = ["MAX_LENT_ALL_CORES_S", "MAX_LENT_S", "OnWorker", "Worker", "perform", "wrap_error"]

MAX_LENT_S = 2e-3  # longest segment that a caller runs on its own thread: waking two threads takes a few percent of it
MAX_LENT_ALL_CORES_S = 20e-3  # longest such segment on all cores; signal handlers wait until it ends


def wrap_error(error: BaseException, explain: Callable[[BaseException], str]) -> ExecutionError:
    """Wrap an exception of a run in an ExecutionError, whose message ``explain`` returns."""
    kind = "" if isinstance(error, Exception) else f" ({type(error).__name__})"
    failure = ExecutionError(explain(error) + kind)
    failure.__cause__ = error
    return failure


def _run_or_explain(run: Callable[[], object], explain: Callable[[BaseException], str]) -> None:
    """Run a function, and convert any exception to an ExecutionError, whose message ``explain`` returns."""
    try:
        run()
    except BaseException as error:  # also SystemExit: the thread that waits for the run has to get it
        raise wrap_error(error, explain) from error


def perform(run: Callable[[], object], explain: Callable[[BaseException], str], done: DoneCallback) -> None:
    """Run a function and report its start and end, as the job of a device's worker.

    Args:
        run: the function. Any exception that it raises is reported as an ExecutionError.
        explain: returns the message of the ExecutionError, given the exception.
        done: called at the end; called again if it raises.
    """
    begin, failure = perf_counter(), None
    try:
        _run_or_explain(run, explain)
    except ExecutionError as error:
        failure = error.with_traceback(None)
    try:
        done(begin, perf_counter(), failure)
    except BaseException:  # noqa: BLE001 (out of memory, say; nothing else reports the end, and the thread serves others)
        done(begin, perf_counter(), failure)


class OnWorker(ABC):
    """Base class of devices that call the method ``run`` of instances on a thread of the device."""

    _worker: Worker

    @property
    def worker(self) -> Worker:
        """The thread that instances run on."""
        return self._worker

    def call(self, instance: Instance) -> Callable[[], None]:
        """Return a function that runs an instance on the worker thread. It raises ExecutionError."""
        return functools.partial(_run_or_explain, cast("Any", instance).run, self._explain)

    def failure(self, error: BaseException) -> ExecutionError:
        """Convert an exception of an instance's function in C to an error."""
        return wrap_error(error, self._explain)

    def start(self, instance: Instance, done: DoneCallback) -> None:
        """Queue an instance."""
        self._worker.submit(functools.partial(perform, cast("Any", instance).run, self._explain, done))

    def close(self) -> None:
        """Stop the worker thread."""
        self._worker.close()

    @abstractmethod
    def _explain(self, error: BaseException) -> str:
        """Return the message of the ExecutionError for an exception of a run."""
