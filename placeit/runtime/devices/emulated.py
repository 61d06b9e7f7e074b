"""Real devices and links that are slowed down on purpose, to emulate a cluster on one machine."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from time import perf_counter

from placeit.core.threads import Gate, Worker
from placeit.runtime.devices.base import (
    Buffer,
    BufferSpec,
    DoneCallback,
    HostPaced,
    Instance,
    KeepsPrograms,
    OneAtATime,
    OnThread,
    PinsMemory,
    Program,
    ReadsInPlace,
    RuntimeDevice,
    SegmentSource,
    SharesMemory,
    Transport,
)
from placeit.runtime.devices.entries import ExplainsEntries, MakesErrors, RunsInPython
from placeit.runtime.devices.state import Pages

__all__ = ["EmulatedLink", "SlowedDevice", "SlowedLink", "wake_precisely"]

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


class SlowedDevice:
    """A device whose segments take ``slowdown`` times as long as on a real device; it idles for the additional time.

    Args:
        inner: the real device.
        slowdown: factor, at least 1.
    """

    def __init__(self, inner: RuntimeDevice, slowdown: float) -> None:
        self._inner, self.slowdown, self._closing = inner, slowdown, Gate()
        self.name, self.space, self.program_key = inner.name, inner.space, inner.program_key

    @property
    def worker(self) -> Worker | None:
        """The worker thread of the real device, if it has one."""
        return self._inner.worker if isinstance(self._inner, OnThread) else None

    @property
    def one_at_a_time(self) -> bool:
        """True if programs of the real device run one request at a time."""
        return isinstance(self._inner, OneAtATime) and self._inner.one_at_a_time

    @property
    def shares_memory(self) -> bool:
        """True if the real device uses some of the host's memory in place."""
        return isinstance(self._inner, SharesMemory) and self._inner.shares_memory

    @property
    def reads_in_place(self) -> bool:
        """True if instances of the real device read tensors in memory that has to stay the same."""
        return isinstance(self._inner, ReadsInPlace) and self._inner.reads_in_place

    @property
    def pages(self) -> bool:
        """True if the real device may keep caches in blocks."""
        return isinstance(self._inner, Pages) and self._inner.pages

    @property
    def host_paced(self) -> bool:
        """True if the host waits on a stream of the real device."""
        return isinstance(self._inner, HostPaced) and self._inner.host_paced

    def explain(self) -> str:
        """Return the real device's message about a native entry that failed."""
        return self._inner.explain() if isinstance(self._inner, ExplainsEntries) else ""

    @property
    def failure(self) -> Callable[[BaseException], BaseException] | None:
        """The real device's function that converts an exception of a run to an error; None if it has no such function."""
        return self._inner.failure if isinstance(self._inner, MakesErrors) else None

    @property
    def call(self) -> Callable[[Instance], Callable[[], None]] | None:
        """The real device's function that returns the function to run an instance; None if it has no such function."""
        return self._inner.call if isinstance(self._inner, RunsInPython) else None

    def compile(self, segment: SegmentSource) -> Program:
        """Compile on the real device."""
        return self._inner.compile(segment)

    def keeps(self, segment: SegmentSource) -> bool:
        """Return whether the real device has the program of a segment on disk."""
        return isinstance(self._inner, KeepsPrograms) and self._inner.keeps(segment)

    def instance(self, program: Program) -> Instance:
        """Make an instance on the real device."""
        return self._inner.instance(program)

    def allocate(self, spec: BufferSpec) -> Buffer:
        """Allocate on the real device."""
        return self._inner.allocate(spec)

    def pin(self, spec: BufferSpec) -> Buffer:
        """Allocate pinned memory of the real device, or other memory if it pins none."""
        return self._inner.pin(spec) if isinstance(self._inner, PinsMemory) else self._inner.allocate(spec)

    def start(self, instance: Instance, done: DoneCallback) -> None:
        """Run on the real device, whose thread then sleeps for the additional time."""
        self._inner.start(instance, functools.partial(self._finish, done))

    def _finish(self, done: DoneCallback, start: float, finish: float, error: BaseException | None) -> None:
        _sleep(start + (finish - start) * self.slowdown - perf_counter(), self._closing)
        done(start, perf_counter(), error)

    def close(self) -> None:
        """Wake the thread and close the real device."""
        self._closing.open()
        self._inner.close()


class SlowedLink:
    """A real link that is slowed down to at least ``latency + bytes / bandwidth`` for a transfer.

    Args:
        inner: the real link.
        emulated: determines the minimum time of a transfer.
    """

    def __init__(self, inner: Transport, emulated: EmulatedLink) -> None:
        self._inner, self._emulated = inner, emulated

    @property
    def worker(self) -> Worker:
        """The thread of the emulated link."""
        return self._emulated.worker

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
    """

    def __init__(self, name: str, bandwidth: float, latency: float) -> None:
        self._bandwidth, self._latency = bandwidth, latency
        self._available_at, self._closing = 0.0, Gate()
        self._worker = Worker(name)

    @property
    def worker(self) -> Worker:
        """The thread that transfers run on."""
        return self._worker

    def seconds(self, destination: Buffer) -> float:
        """Return the seconds that a transfer takes once the link is free."""
        return self._latency + destination.nbytes / self._bandwidth

    def start(self, source: Buffer, destination: Buffer, done: DoneCallback) -> None:  # noqa: ARG002
        """Queue a transfer behind earlier ones."""
        self._worker.submit(functools.partial(self._run, perf_counter(), self.seconds(destination), done))

    def _run(self, submitted: float, seconds: float, done: DoneCallback) -> None:
        # from the call of start(): waking this thread is part of the transfer's time, not added to it
        start = max(submitted, self._available_at)
        self._available_at = start + seconds
        _sleep(self._available_at - perf_counter(), self._closing)
        done(start, perf_counter() if self._closing.is_open else self._available_at, None)

    def close(self) -> None:
        """Wake the link's thread and stop it."""
        self._closing.open()
        self._worker.close()
