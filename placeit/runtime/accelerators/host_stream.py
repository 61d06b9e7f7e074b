"""CPU core sets as streams: counterparts of ``torch.Stream`` and ``torch.Event`` on a thread bound to cores.

A signal handler may raise in the launching thread at any moment, so this thread must not hold a lock that a stream's thread
needs. ``threading.Event`` has such a lock, and could leave the stream's thread waiting for ever.
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

_LOOK_S = 1.0  # seconds between two checks that the stream's thread is alive, while waiting for it


class HostEvent:
    """A mark in a stream. Waiting for an event that was never recorded has no effect, as on accelerators."""

    def __init__(self) -> None:
        self._at = 0.0
        self._ahead: threading.Lock | None = None  # held until the event has happened

    def record(self, stream: HostStream) -> None:
        """Mark what has been launched on the stream so far."""
        ahead = threading.Lock()
        ahead.acquire()
        stream.launch(functools.partial(self._happen, ahead))
        self._ahead = ahead

    def _happen(self, ahead: threading.Lock) -> None:
        self._at = perf_counter()
        ahead.release()

    def hold_up(self, stream: HostStream) -> None:
        """Make a stream wait for what the event marks now."""
        if self._ahead is not None:
            stream.launch(functools.partial(_pass, self._ahead))

    def elapsed_time(self, end: HostEvent) -> float:
        """Milliseconds from this event to another, the unit of PyTorch."""
        return (end._at - self._at) * 1e3


def _pass(ahead: threading.Lock) -> None:
    with ahead:
        pass


class HostStream:
    """A thread that runs launched jobs in order, on the cores of a device.

    Args:
        device: a CPU core set.
        around: makes the context that the thread runs in.
        use_threads: sets how many threads compute what the calling thread runs.

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
        """Delay later launches until an event."""
        event.hold_up(self)

    def query(self) -> bool:
        """Confirm that the thread is alive. Raises RuntimeError if it is not."""
        if not self._worker.alive:
            raise RuntimeError("its thread has ended")
        return True

    def synchronize(self) -> None:
        """Wait for everything launched, also after the stream was closed."""
        ended: SimpleQueue[None] = SimpleQueue()
        with contextlib.suppress(ExecutionError):
            self.launch(functools.partial(ended.put, None))
        while self._worker.alive:
            with contextlib.suppress(Empty):
                ended.get(timeout=_LOOK_S)
                return

    def close(self) -> None:
        """Stop the thread."""
        self._worker.close()


def _run(job: Callable[[], None], inbox: Inbox, token: Token) -> None:
    if not inbox.over:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 (whatever it is, the thread that waits has to be told)
            inbox.fail(token, error)
