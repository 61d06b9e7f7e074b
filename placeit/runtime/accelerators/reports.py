"""Report events to the host without making a stream wait for the host."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from placeit.core.errors import ExecutionError
from placeit.core.threads import Worker
from placeit.runtime.accelerators.library import LibraryEvent, LibraryStream
from placeit.runtime.devices.accelerator import Inbox, Token

__all__ = ["ThreadReports"]


class ThreadReports:
    """Waits for the events of each stream on a separate thread, without the interpreter lock (``synchronize`` releases it).

    The alternative is a callback of the driver, a host function. Python must not run there: the driver's thread would wait for
    the interpreter lock, while another thread may hold it and wait for the driver.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._waiters: dict[int, tuple[Worker, LibraryStream]] = {}  # by the stream's id, which is unique while it is kept

    def report(self, stream: LibraryStream, event: LibraryEvent, inbox: Inbox, token: Token) -> None:
        """Put a token into an inbox when an event that was last recorded in the stream has happened; on failure, the error.

        Raises:
            ExecutionError: the reports are closed.
        """
        found = self._waiters.get(id(stream)) or self._start(stream)
        found[0].submit(functools.partial(_report, event.synchronize, inbox, token))

    def _start(self, stream: LibraryStream) -> tuple[Worker, LibraryStream]:
        with self._lock:
            if self._closed:
                raise ExecutionError("Reports are closed, and nothing more can run there: open a new session or runtime.")
            if id(stream) not in self._waiters:
                self._waiters[id(stream)] = Worker("placeit reports"), stream
            return self._waiters[id(stream)]

    def close(self) -> None:
        """Stop the threads after all requested reports."""
        with self._lock:
            self._closed = True
        for worker, _ in self._waiters.values():
            worker.close()


def _report(wait: Callable[[], object], inbox: Inbox, token: Token) -> None:
    try:
        wait()
    except BaseException as error:  # noqa: BLE001 (it is raised in the thread that waits)
        inbox.fail(token, error)
    else:
        inbox.put(token)
