"""CPU core sets as streams: counterparts of ``torch.Stream`` and ``torch.Event`` on a thread that is bound to cores.

A signal handler may raise in the launching thread at any moment, so that thread must not hold a lock that a stream's thread
needs. ``threading.Event`` has such a lock: the stream's thread could wait for ever.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from time import perf_counter

from placeit.core.cluster import Device
from placeit.core.errors import ExecutionError
from placeit.core.threads import Worker
from placeit.runtime.devices.accelerator import Inbox, Token

__all__ = ["HostEvent", "HostStream"]

_CHECK_INTERVAL_S = 1.0  # seconds between two checks that the stream's thread is alive, while waiting for it


class HostEvent:
    """An event on a stream. As on accelerators, waiting for an event that was never recorded has no effect."""

    def __init__(self) -> None:
        self._time = 0.0
        self._pending: threading.Lock | None = None  # held until the event has happened

    def record(self, stream: HostStream) -> None:
        """Record the event after everything launched on the stream so far."""
        pending = threading.Lock()
        pending.acquire()
        stream.launch(functools.partial(self._happen, pending))
        self._pending = pending

    def _happen(self, pending: threading.Lock) -> None:
        self._time = perf_counter()
        pending.release()

    def elapsed_time(self, end: HostEvent) -> float:
        """Return the milliseconds from this event to another one."""
        return (end._time - self._time) * 1e3


def _wait_for(pending: threading.Lock) -> None:
    with pending:
        pass


class HostStream:
    """A thread that runs launched jobs in order, on the cores of a device.

    Args:
        device: a CPU core set.
        around: returns a context that the thread runs in.
        use_threads: sets the number of threads that compute ops for the calling thread.

    Raises:
        DeviceError: this process may not use the cores.
    """

    def __init__(
        self, device: Device, around: Callable[[], AbstractContextManager[object]], use_threads: Callable[[int], object]
    ) -> None:
        self._worker = Worker(f"placeit {device.name}", device.cores, around)
        self._worker.submit(functools.partial(use_threads, max(1, len(device.cores))))

    def launch(self, job: Callable[[], None]) -> None:
        """Queue a job that does not raise. Raises ExecutionError after the stream has been closed."""
        self._worker.submit(job)

    def run(self, job: Callable[[], None], inbox: Inbox, token: Token) -> None:
        """Queue a job whose errors are reported to the inbox; the job is skipped if the inbox is closed by then."""
        self.launch(functools.partial(_run, job, inbox, token))

    def wait_event(self, event: HostEvent) -> None:
        """Delay later launches until an event, as last recorded, has happened."""
        if event._pending is not None:
            self.launch(functools.partial(_wait_for, event._pending))

    def query(self) -> None:
        """Raise RuntimeError if the thread has ended."""
        if not self._worker.alive:
            raise RuntimeError("its thread has ended")

    def synchronize(self) -> None:
        """Wait for everything launched, even after the stream was closed."""
        ended: SimpleQueue[None] = SimpleQueue()
        with contextlib.suppress(ExecutionError):
            self.launch(functools.partial(ended.put, None))
        while self._worker.alive:
            with contextlib.suppress(Empty):
                ended.get(timeout=_CHECK_INTERVAL_S)
                return

    def close(self) -> None:
        """Stop the thread."""
        self._worker.close()


def _run(job: Callable[[], None], inbox: Inbox, token: Token) -> None:
    if not inbox.over:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 (it is raised in the thread that waits)
            inbox.fail(token, error)
