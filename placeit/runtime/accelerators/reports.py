"""Reporting events to the host without making any stream wait for the host."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Protocol

from placeit.core.errors import ExecutionError
from placeit.core.threads import Worker
from placeit.runtime.accelerators.library import LibraryEvent, LibraryStream
from placeit.runtime.devices.accelerator import Inbox, Token

__all__ = ["Reports", "ThreadReports"]


class Reports(Protocol):
    """A way to report events."""

    def report(self, stream: LibraryStream, event: LibraryEvent, inbox: Inbox, token: Token) -> None:
        """Put a token into an inbox once the event, last recorded in the stream, has happened; or put the error."""
        ...

    def close(self) -> None:
        """Stop threads, if there are any, after all requested reports."""
        ...


class ThreadReports:
    """A thread per stream that waits for its events without the interpreter lock (``synchronize`` releases it).

    A driver could call back instead, by a host function. But Python must not run there: the driver's thread would wait for the
    interpreter, maybe while another thread holds it and waits for the driver.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._waiters: dict[int, tuple[Worker, LibraryStream]] = {}  # by the stream's id, which is unique while it is kept

    def report(self, stream: LibraryStream, event: LibraryEvent, inbox: Inbox, token: Token) -> None:
        """Hand the event to the stream's thread. Raises ExecutionError after :meth:`close`."""
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
        """Stop the threads."""
        with self._lock:
            self._closed = True
        for waiter, *_ in self._waiters.values():
            waiter.close()


def _report(wait: Callable[[], object], inbox: Inbox, token: Token) -> None:
    try:
        wait()
    except BaseException as error:  # noqa: BLE001 (whatever it is, the thread that waits has to be told)
        inbox.fail(token, error)
    else:
        inbox.put(token)
