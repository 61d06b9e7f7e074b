"""Base class of devices that run segments on a thread of the device, from Python."""

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

MAX_LENT_S = 2e-3  # longest segment that a caller runs on its own thread; waking two threads takes a few percent of it
MAX_LENT_ALL_CORES_S = 20e-3  # longest such segment on all cores; signal handlers wait until it ends


def wrap_error(error: BaseException, explain: Callable[[BaseException], str]) -> ExecutionError:
    """Return an ExecutionError for an exception of a run, with the message that ``explain`` returns."""
    kind = "" if isinstance(error, Exception) else f" ({type(error).__name__})"
    failure = ExecutionError(explain(error) + kind)
    failure.__cause__ = error
    return failure


def _run_or_explain(run: Callable[[], object], explain: Callable[[BaseException], str]) -> None:
    """Run a function. Raises ExecutionError for any exception, with the message that ``explain`` returns."""
    try:
        run()
    except BaseException as error:  # including SystemExit, as the thread that waits for the run has to get it
        raise wrap_error(error, explain) from error


def perform(run: Callable[[], object], explain: Callable[[BaseException], str], done: DoneCallback) -> None:
    """Run a function and report its start and end. This is the job of a device's worker.

    Args:
        run: the function. Any exception that it raises is reported as an ExecutionError.
        explain: returns the message of the ExecutionError, given the exception.
        done: called at the end, and called again if it raises.
    """
    begin, failure = perf_counter(), None
    try:
        run()
    except BaseException as error:  # noqa: BLE001 (including SystemExit; it is reported)
        failure = wrap_error(error, explain)
    try:
        done(begin, perf_counter(), failure)
    except BaseException:  # noqa: BLE001 (such as MemoryError; nothing else reports the end, and the thread has other jobs)
        done(begin, perf_counter(), failure)


class OnWorker(ABC):
    """Base class of devices that call the method ``run`` of instances on a thread of the device.

    Attributes:
        worker: the thread, which a subclass makes.
    """

    worker: Worker

    def call(self, instance: Instance) -> Callable[[], None]:
        """Return a function that runs an instance on the worker thread. It raises ExecutionError."""
        return functools.partial(_run_or_explain, cast("Any", instance).run, self._explain)

    def failure(self, error: BaseException) -> ExecutionError:
        """Convert an exception of an instance's function in C to an error."""
        return wrap_error(error, self._explain)

    def start(self, instance: Instance, done: DoneCallback) -> None:
        """Queue an instance."""
        self.worker.submit(functools.partial(perform, cast("Any", instance).run, self._explain, done))

    def close(self) -> None:
        """Stop the worker thread."""
        self.worker.close()

    @abstractmethod
    def _explain(self, error: BaseException) -> str:
        """Return the message of the ExecutionError for an exception of a run."""
