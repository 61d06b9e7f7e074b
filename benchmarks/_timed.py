"""Devices that compute nothing and keep a thread busy for a given time.

They have real threads, and native entries as OpenVINO's segments do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from placeit import _core
from placeit.core.narrowing import narrowed
from placeit.core.threads import Worker
from placeit.runtime.devices.base import Buffer, BufferSpec, Instance, Program, SegmentSource
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.worker import OnWorker

__all__ = ["TimedDevice", "TimedProgram"]

_ADDRESS = _core.spend()
_spend = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(_ADDRESS)  # releases the GIL


class TimedProgram:
    """A segment that takes a given time."""

    def __init__(self, segment: SegmentSource, seconds: float) -> None:
        self.inputs, self.outputs, self.seconds = segment.inputs, segment.outputs, seconds


class TimedInstance:
    """A segment that takes a given time and writes nothing.

    Attributes:
        native: addresses of a C function and its argument; None if it has no native entry.
        work: ``int64[3]``: nanoseconds to take, number of calls, and the status to return, which is 0 unless it is to fail.
    """

    def __init__(self, program: TimedProgram, native: bool) -> None:
        self.work = np.array([round(program.seconds * 1e9), 0, 0], np.int64)
        self.native = (_ADDRESS, int(self.work.ctypes.data)) if native else None
        self._outputs = [HostBuffer(spec) for spec in program.outputs]

    def run(self) -> None:
        """Take the time. Raises RuntimeError if it is to fail."""
        if status := _spend(self.work.ctypes.data):
            raise RuntimeError(f"status {status}")

    def bind(self, index: int, buffer: Buffer) -> None:
        """Do nothing: nothing is read."""

    def output(self, index: int) -> Buffer:
        """Return a buffer that nothing is written to."""
        return self._outputs[index]


class TimedDevice(OnWorker):
    """A device that is busy for a given time and computes nothing.

    Args:
        name: name in the cluster.
        seconds: time of a segment.
        cores: cores that its thread runs on; empty for wherever the process may run.
        native: whether segments have a native entry.
    """

    space = "host"

    def __init__(
        self, name: str, seconds: Callable[[SegmentSource], float], *, cores: tuple[int, ...] = (), native: bool = True
    ) -> None:
        self.name = self.program_key = name
        self._seconds, self._native = seconds, native
        self.worker = Worker(f"placeit {name}", cores)
        self.worker.lane.lends = 2e-3
        self.instances: list[TimedInstance] = []

    @property
    def calls(self) -> int:
        """Number of runs of segments."""
        return sum(int(instance.work[1]) for instance in self.instances)

    def compile(self, segment: SegmentSource) -> Program:
        """Look up the segment's time."""
        return TimedProgram(segment, self._seconds(segment))

    def instance(self, program: Program) -> Instance:
        """Make an instance."""
        made = TimedInstance(narrowed(TimedProgram, program), self._native)
        self.instances.append(made)
        return made

    def allocate(self, spec: BufferSpec) -> Buffer:
        """Allocate host memory."""
        return HostBuffer(spec)

    def _explain(self, error: BaseException) -> str:
        return f"A timed segment failed on {self.name}: {error}"

    def explain(self) -> str:
        """Return a message about a native entry that failed."""
        return f"A timed segment failed on {self.name}"
