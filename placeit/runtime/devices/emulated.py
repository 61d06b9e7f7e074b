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

__all__ = ["EmulatedLink", "SlowedDevice", "SlowedLink", "wake_on_time"]

_PR_SET_TIMERSLACK = 29
_precise = threading.local()


def wake_on_time() -> None:
    """Have the calling thread woken to within a few microseconds: Linux may otherwise round its wake-up by 50 us."""
    if not getattr(_precise, "set", False):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        _precise.set = True


def _sleep(seconds: float, closing: Gate) -> None:
    """Sleep for some seconds, to within a few microseconds, or until ``closing`` is open."""
    wake_on_time()
    if seconds > 0:
        closing.wait(min(seconds, threading.TIMEOUT_MAX))


class SlowedDevice:
    """A device on which everything takes ``slowdown`` times as long; it idles for the additional time.

    Args:
        inner: the real device.
        slowdown: at least 1.
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
        """True if requests of a program of the real device wait for each other."""
        return isinstance(self._inner, OneAtATime) and self._inner.one_at_a_time

    @property
    def shares_memory(self) -> bool:
        """True if the real device uses some host memory directly."""
        return isinstance(self._inner, SharesMemory) and self._inner.shares_memory

    @property
    def reads_in_place(self) -> bool:
        """True if instances of the real device read tensors in memory that has to stay the same."""
        return isinstance(self._inner, ReadsInPlace) and self._inner.reads_in_place

    @property
    def host_paced(self) -> bool:
        """True if the real device has a stream that the host waits for."""
        return isinstance(self._inner, HostPaced) and self._inner.host_paced

    def explain(self) -> str:
        """Return the real device's message about a native entry that failed."""
        return self._inner.explain() if isinstance(self._inner, ExplainsEntries) else ""

    @property
    def failure(self) -> Callable[[BaseException], BaseException] | None:
        """Function that makes the error of an instance whose function in C raised an exception; None if there are no such."""
        return self._inner.failure if isinstance(self._inner, MakesErrors) else None

    @property
    def call(self) -> Callable[[Instance], Callable[[], None]] | None:
        """Function that makes one that runs an instance on the real device's thread; None if only that device can run it."""
        return self._inner.call if isinstance(self._inner, RunsInPython) else None

    def compile(self, segment: SegmentSource) -> Program:
        """Compile on the real device."""
        return self._inner.compile(segment)

    def keeps(self, segment: SegmentSource) -> bool:
        """Return whether the real device finds its program on disk."""
        return isinstance(self._inner, KeepsPrograms) and self._inner.keeps(segment)

    def instance(self, program: Program) -> Instance:
        """Make an instance on the real device."""
        return self._inner.instance(program)

    def allocate(self, spec: BufferSpec) -> Buffer:
        """Allocate on the real device."""
        return self._inner.allocate(spec)

    def pin(self, spec: BufferSpec) -> Buffer:
        """Allocate memory of the host that the real device copies from, or other memory if it has no such memory."""
        return self._inner.pin(spec) if isinstance(self._inner, PinsMemory) else self._inner.allocate(spec)

    def start(self, instance: Instance, done: DoneCallback) -> None:
        """Run on the real device, then let its thread sleep for the additional time."""
        self._inner.start(instance, functools.partial(self._finish, done))

    def _finish(self, done: DoneCallback, start: float, finish: float, error: BaseException | None) -> None:
        _sleep(start + (finish - start) * self.slowdown - perf_counter(), self._closing)
        done(start, perf_counter(), error)

    def close(self) -> None:
        """Wake its thread and close the real device."""
        self._closing.open()
        self._inner.close()


class SlowedLink:
    """A link that takes latency + bytes / bandwidth for a transfer, or as long as the real link, if that is longer.

    Args:
        inner: the real link.
        emulated: the time that a transfer is to take.
    """

    def __init__(self, inner: Transport, emulated: EmulatedLink) -> None:
        self._inner, self._emulated = inner, emulated

    @property
    def worker(self) -> Worker:
        """The thread that waits for the time to be over."""
        return self._emulated.worker

    def start(self, source: Buffer, destination: Buffer, done: DoneCallback) -> None:
        """Start a transfer after those already started."""
        both = _Both(done)
        self._inner.start(source, destination, both.done)
        self._emulated.start(source, destination, both.done)

    def close(self) -> None:
        """Close the real link and stop the thread."""
        self._inner.close()
        self._emulated.close()


class _Both:
    """Reports once when two reports have come: the first start, the last finish, the first error."""

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
        self._free_at, self._closing = 0.0, Gate()
        self._worker = Worker(name)

    @property
    def worker(self) -> Worker:
        """The thread that transfers run on."""
        return self._worker

    def seconds(self, destination: Buffer) -> float:
        """Return the seconds that a transfer takes once the link is free."""
        return self._latency + destination.nbytes / self._bandwidth

    def start(self, source: Buffer, destination: Buffer, done: DoneCallback) -> None:  # noqa: ARG002
        """Start a transfer after those already started."""
        self._worker.submit(functools.partial(self._run, perf_counter(), self.seconds(destination), done))

    def _run(self, asked: float, seconds: float, done: DoneCallback) -> None:
        # counted from the request: waking this thread is part of the transfer's time, not added to it
        start = max(asked, self._free_at)
        self._free_at = start + seconds
        _sleep(self._free_at - perf_counter(), self._closing)
        done(start, perf_counter() if self._closing.is_open else self._free_at, None)

    def close(self) -> None:
        """Wake the link's thread and stop it."""
        self._closing.open()
        self._worker.close()
