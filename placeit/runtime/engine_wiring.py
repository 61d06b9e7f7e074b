"""Construction of the compiled engine of an executor: its lanes, and the calls that run segments and transfers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from placeit import _core
from placeit.core.narrowing import narrowed
from placeit.core.threads import Worker
from placeit.planning.segments import Plan
from placeit.runtime.device_pool import DevicePool
from placeit.runtime.devices.base import (
    Buffer,
    DoneCallback,
    Instance,
    OnThread,
    ServesSlots,
    Slowed,
    TakesTime,
    Transport,
)
from placeit.runtime.devices.entries import RunsInC, RunsInPython, RunsNatively
from placeit.runtime.slots import Slot
from placeit.simulator.scheduler import Scheduler, Transfer

__all__ = ["Wiring"]


class Wiring:
    """An engine with a lane for each device and link that a plan uses.

    Args:
        pool: devices and links.
        plan: the plan to run.
        scheduler: the scheduler of the plan.
        in_flight: maximum number of requests in flight at once.

    Attributes:
        engine: the engine.
        workers: threads of its lanes.
        devices: the open devices when the engine was made.
        needs_python: whether a segment or transfer needs Python.
    """

    def __init__(self, pool: DevicePool, plan: Plan, scheduler: Scheduler, in_flight: int) -> None:
        # the pool replaces a device that is opened anew; this engine uses the original objects
        self.devices, self._transports = pool.devices, pool.transports
        self._plan, self._scheduler = plan, scheduler
        self.needs_python = False
        used = dict.fromkeys([s.device for s in self._plan.programs] or [s.device for s in self._plan.segments])
        self.workers: list[Worker] = []
        lanes: dict[tuple[int, ...], int] = {}
        slowdown: list[float] = []
        self._parallel = {d for d in used if isinstance(self.devices[d], ServesSlots)}
        for d in used:
            device: Any = self.devices[d]
            workers: list[tuple[tuple[int, ...], Worker | None]] = [((d,), _worker_of(device))]
            if d in self._parallel:
                workers = [((d, number), device.worker_of(number)) for number in range(in_flight)]
            for key, worker in workers:
                if worker is not None:
                    lanes[key] = len(self.workers)
                    self.workers.append(worker)
                    slowdown.append(float(device.slowdown) if isinstance(device, Slowed) else 1.0)
        transfers = {(step.src, step.dst) for step in map(self._transfer, range(len(plan.problem.edges)))}
        for pair, link in self._transports.items():
            if pair in transfers and (worker := _worker_of(link)) is not None:
                lanes[(-1, *pair)] = len(self.workers)
                self.workers.append(worker)
                slowdown.append(0.0)
        self._lanes = lanes
        machine = self._scheduler.machine
        for d in self._parallel:
            machine.share(d)
        self.engine = _core.Executor(machine, [worker.lane for worker in self.workers], np.array(slowdown, np.float64))
        self.engine.spin(pool.spin_s)
        for worker in self.workers:
            worker.lane.spins = pool.spin_s

    def _transfer(self, number: int) -> Transfer:
        """Return the transfer of an edge of the plan, in the first slot."""
        return narrowed(Transfer, self._scheduler.instruction(0, len(self._plan.segments) + number))

    def _lane_of(self, number: int, segment: int) -> int:
        """Return the number of the lane of a segment of a slot; -1 if it has none."""
        d = self._plan.segments[segment].device
        return self._lanes.get((d, number) if d in self._parallel else (d,), -1)

    def begun(self, number: int, segment: int) -> int:
        """Return how many pieces of work have begun in the lane of a segment of a slot; 0 if it has none."""
        lane = self._lane_of(number, segment)
        return self.workers[lane].lane.begun if lane >= 0 else 0

    def connect(self, slot: Slot) -> None:
        """Register the calls that run the segments and transfers of a slot with the engine."""
        segments = len(self._plan.segments)
        engine, base = self.engine, slot.number * (len(self._plan.segments) + len(self._plan.problem.edges))
        for s, (segment, instance) in enumerate(zip(self._plan.segments, slot.instances, strict=True)):
            if instance is None:
                continue
            device = self.devices[segment.device]
            lane = self._lane_of(slot.number, s)
            native = instance.native if isinstance(instance, RunsNatively) else None
            call = device.call if isinstance(device, RunsInPython) else None
            if native is not None and lane >= 0:
                engine.set_entry(base + s, lane, *native)
                continue
            self.needs_python = True
            if call is not None and lane >= 0:
                in_c = instance.in_c if isinstance(instance, RunsInC) else None
                engine.set_call(base + s, lane, call(instance) if in_c is None else in_c, lendable=in_c is not None)
            else:
                engine.set_start(base + s, lane, functools.partial(_start, slot, (s,), device.start, instance))
        for p in range(len(self._plan.problem.edges)):
            step = self._transfer(p)
            copy = slot.copies.get((step.tensor, step.dst))
            if copy is None or step.src == step.dst:
                continue
            src, source, destination = copy
            lane, node = self._lanes.get((-1, src, step.dst), -1), base + segments + p
            transport: Any = self._transports[src, step.dst]
            if lane >= 0 and isinstance(transport, TakesTime):
                engine.set_transfer(node, lane, transport.seconds(destination))
            else:
                self.needs_python = True
                key = step.tensor, step.dst
                engine.set_start(node, lane, functools.partial(_move, slot, key, transport, source, destination))


def _start(slot: Slot, key: tuple[int, ...], start: Callable[..., object], instance: Instance, done: DoneCallback) -> None:
    start(instance, _recording(slot, key, done))


def _move(
    slot: Slot, key: tuple[int, ...], transport: Transport, source: Buffer, destination: Buffer, done: DoneCallback
) -> None:
    transport.start(source, destination, _recording(slot, key, done))


def _recording(slot: Slot, key: tuple[int, ...], done: DoneCallback) -> DoneCallback:
    """Return the callback for the end of a segment or transfer, whose key in :attr:`Slot.writes` is ``key``.

    In a checked run, it records the values that were written: later writes are errors.
    """
    if slot.written is None:
        return done

    def record(start: float, finish: float, error: BaseException | None) -> None:
        slot.record_values(key)
        done(start, finish, error)

    return record


def _worker_of(driver: object) -> Worker | None:
    return driver.worker if isinstance(driver, OnThread) else None
