"""Devices and links that compute nothing for a given time of a virtual clock.

They run the whole executor with no hardware and no waiting, and with results that repeat exactly: a run on them follows the
simulator's schedule event for event.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks._timed import TimedProgram
from placeit.core.narrowing import narrowed
from placeit.runtime.devices.base import Buffer, BufferSpec, DoneCallback, Instance, Program, SegmentSource

__all__ = ["NullDevice", "NullLink", "VirtualClock"]


class VirtualClock:
    """Time that jumps from one event to the next.

    Attributes:
        now: seconds since the clock was made.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, moment: float, event: Callable[[], None]) -> None:
        """Call ``event`` at a moment, now or later; events of the same moment run in the order of these calls.

        The argument is the moment and not a delay: in floating point, ``now + (moment - now)`` need not be ``moment``, and
        events of the same moment could get different times.
        """
        heapq.heappush(self._events, (moment, self._count, event))
        self._count += 1

    def step(self) -> bool:
        """Advance time to the next event; False if no events are left."""
        if not self._events:
            return False
        self.now, _, event = heapq.heappop(self._events)
        event()
        return True

    def run(self) -> None:
        """Advance time until no events are left."""
        while self.step():
            pass


class _NullBuffer:
    """The shape of a tensor without its memory."""

    def __init__(self, spec: BufferSpec, space: str) -> None:
        self.spec, self.space = spec, space

    @property
    def nbytes(self) -> int:
        """Size in bytes that the tensor would have."""
        return int(np.prod(self.spec.shape)) * np.dtype(self.spec.dtype).itemsize

    def array(self) -> NDArray[np.generic]:
        """Return zeros."""
        return np.zeros(self.spec.shape, self.spec.dtype)

    def fill(self, value: NDArray[np.generic]) -> None:
        """Do nothing: nothing is held."""

    def blank(self, sentinel: int) -> None:
        """Do nothing: nothing is held."""


class _NullInstance:
    def __init__(self, program: TimedProgram, space: str) -> None:
        self.seconds = program.seconds
        self._outputs = [_NullBuffer(spec, space) for spec in program.outputs]

    def bind(self, index: int, buffer: Buffer) -> None:
        """Do nothing: nothing is read."""

    def output(self, index: int) -> Buffer:
        """Return a buffer that holds zeros."""
        return self._outputs[index]


class NullDevice:
    """A device that is busy for a given time and computes nothing.

    Args:
        name: name in the cluster. Its memory is separate, so that every tensor from another device has to be moved.
        clock: shared by all devices and links of a runtime.
        seconds: time of a segment.
    """

    def __init__(self, name: str, clock: VirtualClock, seconds: Callable[[SegmentSource], float]) -> None:
        self.name = self.space = self.program_key = name
        self._clock, self._seconds = clock, seconds
        self._free_at = 0.0

    def compile(self, segment: SegmentSource) -> Program:
        """Look up the segment's time."""
        return TimedProgram(segment, self._seconds(segment))

    def instance(self, program: Program) -> Instance:
        """Make an instance."""
        return _NullInstance(narrowed(TimedProgram, program), self.space)

    def allocate(self, spec: BufferSpec) -> Buffer:
        """Make a buffer that holds zeros."""
        return _NullBuffer(spec, self.space)

    def start(self, instance: Instance, done: DoneCallback) -> None:
        """Be busy for the instance's time, after everything started before has ended."""
        seconds = narrowed(_NullInstance, instance).seconds
        start = max(self._clock.now, self._free_at)
        self._free_at = start + seconds
        self._clock.at(self._free_at, lambda: done(start, start + seconds, None))

    def close(self) -> None:
        """Do nothing: there is no thread."""


class NullLink:
    """A link that takes latency + bytes / bandwidth of the virtual clock and copies nothing.

    Args:
        clock: shared by all devices and links of a runtime.
        bandwidth: bytes per second.
        latency: seconds.
    """

    def __init__(self, clock: VirtualClock, bandwidth: float, latency: float) -> None:
        self._clock, self._bandwidth, self._latency = clock, bandwidth, latency
        self._free_at = 0.0

    def start(self, source: Buffer, destination: Buffer, done: DoneCallback) -> None:
        """Be busy for the time of the transfer, after everything started before has ended."""
        seconds = self._latency + destination.nbytes / self._bandwidth
        start = max(self._clock.now, self._free_at)
        self._free_at = start + seconds
        self._clock.at(self._free_at, lambda: done(start, start + seconds, None))

    def close(self) -> None:
        """Do nothing: there is no thread."""
