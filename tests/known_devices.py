"""Devices on which every group has a different time, so that a test can see whose time is given to whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Device
from placeit.core.errors import ExecutionError
from placeit.core.threads import Worker
from placeit.runtime.devices.base import Buffer, BufferSpec, DoneCallback, Instance, Program, SegmentSource
from placeit.runtime.devices.kernels import Kernel
from placeit.runtime.devices.kinds import DeviceKind

__all__ = ["EMPTY_S", "KIND", "Truth", "truth"]

EMPTY_S = 3e-6  # what a segment takes that computes nothing
_TIMEOUT_S = 0.02  # what a segment waits for another device to begin something beside it


@dataclass
class Truth:
    """What everything takes, in seconds; devices are ``d0``, ``d1`` ..., and groups are single ops.

    Attributes:
        core: of an op inside the whole model, by device.
        cut: additional time of an op that is a separate segment.
        load: what it takes more while another device works.
        lacking: ops that a device cannot run.
        read: for each byte that another device wrote.
        gap: from the end of a segment to the start of the next, by the devices of both.
        speed: how many times as long all of it takes on a device at a moment.
        broken: whether an op fails on a device at a moment.
    """

    core: Mapping[str, tuple[float, ...]]
    cut: Mapping[str, tuple[float, ...]]
    load: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    lacking: Mapping[int, set[str]] = field(default_factory=dict)
    read: tuple[float, ...] = (0.0, 0.0, 0.0)
    gap: Mapping[tuple[int, int], float] = field(default_factory=dict)
    speed: Callable[[int, float], float] = lambda device, now: 1.0
    broken: Callable[[str, int, float], bool] = lambda op, device, now: False
    now: float = 0.0
    last: int = -1
    begun: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, np.int64))
    changed: threading.Condition = field(default_factory=threading.Condition)


truth: list[Truth] = []
"""The one that holds, for a test to put there."""


class _Buffer:
    space = "host"

    def __init__(self, spec: BufferSpec, writer: int) -> None:
        self.spec, self.writer = spec, writer
        self._array = np.zeros(spec.shape, spec.dtype)

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    def array(self) -> NDArray[np.generic]:
        return self._array


class _Program:
    def __init__(self, source: SegmentSource) -> None:
        self.inputs, self.outputs = source.inputs, source.outputs
        of = cast("Any", source)
        self.ops = [name for name in of.book.op_names(of.segment) if name in truth[0].core]


class _Instance:
    def __init__(self, program: _Program, device: int) -> None:
        self.ops = program.ops
        self._outputs = [_Buffer(spec, device) for spec in program.outputs]
        self.read: dict[int, Any] = {}

    def bind(self, index: int, buffer: Buffer) -> None:
        self.read[index] = buffer

    def output(self, index: int) -> Buffer:
        return self._outputs[index]


class _Device:
    space = "host"

    def __init__(self, device: Device) -> None:
        self.name = self.program_key = device.name
        self._number = int(device.name[1:])
        self._worker = Worker(device.name)

    def compile(self, segment: SegmentSource) -> Program:
        return _Program(segment)

    def instance(self, program: Program) -> Instance:
        return _Instance(cast("_Program", program), self._number)

    def allocate(self, spec: BufferSpec) -> Buffer:
        return _Buffer(spec, -1)

    def start(self, instance: Instance, done: DoneCallback) -> None:
        self._worker.submit(lambda: self._run(cast("_Instance", instance), done))

    def _run(self, instance: _Instance, done: DoneCallback) -> None:
        known, d = truth[0], self._number
        with known.changed:
            known.begun[d] += 1
            known.changed.notify_all()
            mine, all_begun = known.begun[d], known.begun.sum()
            beside = any(op in known.load for op in instance.ops) and known.changed.wait_for(
                lambda: known.begun.sum() - known.begun[d] > all_begun - mine, _TIMEOUT_S
            )
            seconds = EMPTY_S + sum(known.core[op][d] for op in instance.ops)
            if len(instance.ops) == 1:
                seconds += known.cut[instance.ops[0]][d]
            if beside:
                seconds += sum(known.load[op][d] for op in instance.ops)
            far = [buffer for buffer in instance.read.values() if getattr(buffer, "writer", -1) not in (-1, d)]
            seconds += known.read[d] * sum(buffer.nbytes for buffer in far)
            seconds *= known.speed(d, known.now)
            failing = [op for op in instance.ops if known.broken(op, d, known.now)]
            begin = known.now + known.gap.get((known.last, d), 0.0)
            known.now, known.last = begin + seconds, d
        done(begin, begin + seconds, ExecutionError(f"{failing[0]} failed on {self.name}.") if failing else None)

    def close(self) -> None:
        self._worker.close()


class _Known(DeviceKind):
    def open(self, device: Device, precision: str) -> Any:
        return _Device(device)

    def kernels(self, model: Any, grouping: Any, device: Device, precision: str, passes: int) -> list[Kernel]:
        core = truth[0].core
        seconds = [core[name][int(device.name[1:])] if name in core else 0.0 for name in grouping.groups.names]
        return [Kernel(tuple(np.flatnonzero(grouping.group_of == g).tolist()), taken) for g, taken in enumerate(seconds)]

    def supported(self, model: Any, device: Device) -> set[str]:
        return set(model.graph.names) - truth[0].lacking.get(int(device.name[1:]), set())


KIND = _Known()
