"""Devices on nodes whose segments sleep, so that few cores can emulate many nodes that are busy at once."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Device
from placeit.core.threads import Worker
from placeit.runtime.devices.base import Buffer, BufferSpec, DoneCallback, Instance, Program, SegmentSource
from placeit.runtime.devices.emulated import wake_precisely
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.worker import perform

__all__ = ["RayStage", "SleepingDevice", "TimedDevice", "sleep_for"]


def sleep_for(seconds: float) -> None:
    """Sleep for a time, to within a few microseconds."""
    wake_precisely()
    time.sleep(seconds)


class _Program:
    seconds = 0.0

    def __init__(self, segment: SegmentSource) -> None:
        self.inputs, self.outputs = segment.inputs, segment.outputs


class _Instance:
    seconds = 0.0

    def __init__(self, program: Program) -> None:
        self._outputs = [HostBuffer(spec) for spec in program.outputs]

    def bind(self, index: int, buffer: Buffer) -> None:
        pass

    def output(self, index: int) -> Buffer:
        return self._outputs[index]


class SleepingDevice:
    """A device whose segments all take the same time, computing nothing."""

    space = "host"

    def __init__(self, device: Device, *, seconds: float) -> None:
        self.name = self.program_key = device.name
        self._seconds = seconds
        self.worker = Worker(f"placeit {device.name}")

    def compile(self, segment: SegmentSource) -> Program:
        return _Program(segment)

    def instance(self, program: Program) -> Instance:
        return _Instance(program)

    def allocate(self, spec: BufferSpec) -> Buffer:
        return HostBuffer(spec)

    def start(self, instance: Instance, done: DoneCallback) -> None:  # noqa: ARG002
        self.worker.submit(functools.partial(perform, functools.partial(sleep_for, self._seconds), str, done))

    def close(self) -> None:
        self.worker.close()


class TimedDevice(SleepingDevice):
    """A device on which a segment takes the time of its ops, by their names, times a factor that may be changed."""

    def __init__(self, device: Device, *, seconds: Mapping[str, float]) -> None:
        super().__init__(device, seconds=0.0)
        self._of, self.factor = seconds, 1.0

    def compile(self, segment: SegmentSource) -> Program:
        made, ops = _Program(segment), segment.in_format("openvino").get_ops()
        names = [op.get_friendly_name() for op in ops if op.get_type_name() not in ("Parameter", "Result")]
        made.seconds = sum(self._of.get(name, 0.0) for name in names)
        return made

    def instance(self, program: Program) -> Instance:
        made = _Instance(program)
        made.seconds = cast("_Program", program).seconds
        return made

    def start(self, instance: Instance, done: DoneCallback) -> None:
        sleep = functools.partial(sleep_for, cast("_Instance", instance).seconds * self.factor)
        self.worker.submit(functools.partial(perform, sleep, str, done))


class RayStage:
    """A sleeping device as an actor that is called with Ray's object references."""

    def __init__(self, seconds: float, elements: int) -> None:
        self._seconds, self._made = seconds, np.zeros((1, elements), np.float32)

    def run(self, *inputs: NDArray[np.float32]) -> NDArray[np.float32]:  # noqa: ARG002
        sleep_for(self._seconds)
        return self._made
