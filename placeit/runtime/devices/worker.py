"""Devices whose segments Python runs, on a thread of the device's own."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

from placeit.core.errors import ExecutionError
from placeit.core.threads import Worker
from placeit.runtime.devices.base import DoneCallback, Instance

__all__ = ["OnWorker", "Worker", "perform"]


def _attempt(run: Callable[[], object], explain: Callable[[BaseException], str]) -> None:
    """Run a function.

    Args:
        run: what to run.
        explain: gives the message of the error.

    Raises:
        ExecutionError: whatever ``run`` raises is its cause.
    """
    try:
        run()
    except BaseException as error:  # whatever it is, somebody waits for this thread to tell
        kind = "" if isinstance(error, Exception) else f" ({type(error).__name__})"
        raise ExecutionError(explain(error) + kind) from error


def perform(run: Callable[[], object], explain: Callable[[BaseException], str], done: DoneCallback) -> None:
    """Run a function and report its start and end; the job of a device's worker.

    Args:
        run: what to run. Whatever it raises is reported as an ExecutionError.
        explain: gives the message of that error.
        done: told of the end; once more if that fails.
    """
    begin, failure = perf_counter(), None
    try:
        _attempt(run, explain)
    except ExecutionError as error:
        failure = error.with_traceback(None)
    try:
        done(begin, perf_counter(), failure)
    except BaseException:  # noqa: BLE001 (no memory, say; nothing else can tell of the end, and the thread serves others)
        done(begin, perf_counter(), failure)


class OnWorker(ABC):
    """Base class of devices whose instances Python runs, by their method ``run``, on a thread of the device's own."""

    _worker: Worker

    @property
    def worker(self) -> Worker:
        """The thread that instances run on."""
        return self._worker

    def call(self, instance: Instance) -> Callable[[], None]:
        """A function that runs an instance on the worker thread. It raises ExecutionError."""
        return functools.partial(_attempt, cast("Any", instance).run, self._explain)

    def start(self, instance: Instance, done: DoneCallback) -> None:
        """Queue an instance."""
        self._worker.submit(functools.partial(perform, cast("Any", instance).run, self._explain, done))

    def close(self) -> None:
        """Stop the worker thread."""
        self._worker.close()

    @abstractmethod
    def _explain(self, error: BaseException) -> str:
        """Give the message of an ExecutionError."""
