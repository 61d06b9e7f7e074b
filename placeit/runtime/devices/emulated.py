"""Real devices and links that are slowed down on purpose, to emulate a cluster on one machine."""

from __future__ import annotations

import ctypes
import functools
import threading
from time import perf_counter

from placeit.core.threads import Gate, Worker
from placeit.runtime.devices.base import Buffer, DoneCallback, Instance, RuntimeDevice, Transport

__all__ = ["EmulatedLink", "SlowedLink", "slowed", "wake_precisely"]

_PR_SET_TIMERSLACK = 29
_precise = threading.local()


def wake_precisely() -> None:
    """Reduce the calling thread's timer slack, so that it wakes within a few microseconds instead of Linux's default of 50."""
    if not getattr(_precise, "set", False):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        _precise.set = True


def _sleep(seconds: float, closing: Gate) -> None:
    """Sleep for some seconds, to within a few microseconds, or until ``closing`` is open."""
    wake_precisely()
    if seconds > 0:
        closing.wait(min(seconds, threading.TIMEOUT_MAX))


def slowed(device: RuntimeDevice, slowdown: float) -> RuntimeDevice:
    """Slow an open device down: its segments take ``slowdown`` times as long, and it idles for the additional time.

    The device keeps all its optional abilities, as only its methods ``start`` and ``close`` change.

    Args:
        device: the device, which is returned.
        slowdown: factor, at least 1.
    """
    closing, start, close = Gate(), device.start, device.close

    def finish(done: DoneCallback, begin: float, end: float, error: BaseException | None) -> None:
        _sleep(begin + (end - begin) * vars(device)["slowdown"] - perf_counter(), closing)
        done(begin, perf_counter(), error)

    def start_slowed(instance: Instance, done: DoneCallback) -> None:
        start(instance, functools.partial(finish, done))

    def close_awake() -> None:
        closing.open()
        close()

    vars(device).update(slowdown=slowdown, start=start_slowed, close=close_awake)
    return device


class SlowedLink:
    """A real link that is slowed down to at least ``latency + bytes / bandwidth`` for a transfer.

    Args:
        inner: the real link.
        emulated: determines the minimum time of a transfer.

    Attributes:
        worker: the thread of the emulated link.
    """

    def __init__(self, inner: Transport, emulated: EmulatedLink) -> None:
        self._inner, self._emulated, self.worker = inner, emulated, emulated.worker

    def start(self, source: Buffer, destination: Buffer, done: DoneCallback) -> None:
        """Queue a transfer behind earlier ones."""
        joined = _JoinedReport(done)
        self._inner.start(source, destination, joined.done)
        self._emulated.start(source, destination, joined.done)

    def close(self) -> None:
        """Close the real link and stop the thread."""
        self._inner.close()
        self._emulated.close()


class _JoinedReport:
    """Joins two reports into one, with the earlier start, the later finish, and the first error."""

    def __init__(self, done: DoneCallback) -> None:
        self._done, self._lock = done, threading.Lock()
        self._first: tuple[float, float, BaseException | None] | None = None

    def done(self, start: float, finish: float, error: BaseException | None) -> None:
        with self._lock:
            first = self._first
            self._first = start, finish, error
        if first is not None:
            self._done(min(first[0], start), max(first[1], finish), first[2] or error)


class EmulatedLink:
    """A link between devices that share memory: a transfer takes latency + bytes / bandwidth, without a copy.

    Args:
        name: thread name.
        bandwidth: bytes per second.
        latency: seconds.

    Attributes:
        worker: the thread that transfers run on.
    """

    def __init__(self, name: str, bandwidth: float, latency: float) -> None:
        self._bandwidth, self._latency = bandwidth, latency
        self._available_at, self._closing = 0.0, Gate()
        self.worker = Worker(name)

    def seconds(self, destination: Buffer) -> float:
        """Return the seconds that a transfer takes once the link is free."""
        return self._latency + destination.nbytes / self._bandwidth

    def start(self, source: Buffer, destination: Buffer, done: DoneCallback) -> None:  # noqa: ARG002
        """Queue a transfer behind earlier ones."""
        self.worker.submit(functools.partial(self._run, perf_counter(), self.seconds(destination), done))

    def _run(self, submitted: float, seconds: float, done: DoneCallback) -> None:
        # from the call of start(): waking this thread is part of the transfer's time, not added to it
        start = max(submitted, self._available_at)
        self._available_at = start + seconds
        _sleep(self._available_at - perf_counter(), self._closing)
        done(start, perf_counter() if self._closing.is_open else self._available_at, None)

    def close(self) -> None:
        """Wake the link's thread and stop it."""
        self._closing.open()
        self.worker.close()
