"""A plan that compiled lanes run: which it can be, what they need, and what they did."""

from __future__ import annotations

import atexit
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from placeit import _core
from placeit.core.errors import ExecutionError
from placeit.core.narrowing import narrowed
from placeit.core.threads import Worker
from placeit.planning.segments import Plan
from placeit.runtime.device_pool import DevicePool
from placeit.runtime.devices.base import Instance
from placeit.runtime.devices.emulated import wake_on_time
from placeit.runtime.feed import Bell
from placeit.runtime.slots import Slot
from placeit.runtime.spans import Ran
from placeit.simulator.scheduler import Scheduler, Transfer

__all__ = ["NativePlan", "NativeRan", "entries_of", "native_plan"]

_EXIT_PATIENCE_S = 2.0  # for segments that run when the interpreter exits

Entry: TypeAlias = tuple[int, int] | Callable[[], object]
"""A call that runs a segment: the addresses of a C function and its argument, or a Python function, which raises."""


@dataclass(frozen=True)
class NativeRan:
    """Spans of compiled lanes in one run.

    Attributes:
        begin: seconds, by ``time.perf_counter``.
        end: seconds, by ``time.perf_counter``.
        segments: for each slot, (segment, start, finish) of all that computed something and ended, by start.
        transfers: for each slot, (edge position, start, finish) of all that took time and ended, by start.
        failed: the slot and the segment that failed first, and what its device says; None if none did.
        late: whether its deadline was over before it was.
        refused: why a lane's thread did not come, or why nobody knows what has run; None if all went as it should.
        lost: whether nobody knows what has run.
    """

    begin: float
    end: float
    segments: list[list[Ran]]
    transfers: list[list[Ran]]
    failed: tuple[int, int, BaseException] | None
    late: bool
    refused: BaseException | None
    lost: bool


class NativePlan:
    """The lanes of an executor, which run its plan without the interpreter, but for segments that need it.

    Args:
        plan: what runs.
        scheduler: of the plan, whose rules the lanes follow.
        entries: what runs each segment, for each slot; None for a segment that runs nothing.
        links: lane, and seconds, of each edge position whose transfer an emulated link makes.
        slowdown: of each lane, devices first; 0 for a link.
        device_lane: lane of each device that is used.
        workers: the thread of each lane.
        explain: says what the device of a lane reports, after a C function has failed there, on its thread.

    Attributes:
        needs_python: whether some segment does.
    """

    def __init__(
        self,
        plan: Plan,
        scheduler: Scheduler,
        entries: Sequence[Sequence[Entry | None]],
        links: dict[int, tuple[int, float]],
        slowdown: Sequence[float],
        device_lane: dict[int, int],
        workers: Sequence[Worker],
        explain: Sequence[Callable[[], str]],
    ) -> None:
        self._plan, self._links, self._device_lane = plan, links, device_lane
        self.workers = tuple(workers)
        self.needs_python = any(callable(entry) for of_slot in entries for entry in of_slot)
        self._explain = tuple(explain)
        self.lanes = _core.Lanes(scheduler.machine, np.array(slowdown, np.float64))
        self._requests, self._segments = len(entries), len(plan.segments)  # those of a run that nobody adds requests to
        self._nodes = self._segments + len(plan.problem.edges)
        for slot, of_slot in enumerate(entries):
            self.set_slot(slot, of_slot)
        self._lock = threading.Lock()
        self._inside: set[int] = set()  # lanes that have not left
        self._ended: list[int] = []
        self._failed: _core.Failed | None = None
        self._failed_in: dict[int, _core.Failed] = {}  # in runs that requests are added to, by slot
        self._serving = False
        self._failure: BaseException | None = None
        self._late: list[tuple[int, int]] | None = None
        self._refused: BaseException | None = None
        self._lost = False

    def grow(self, slots: int) -> None:
        """Make room for so many requests in flight, also in the scheduler's machine. Also during a run."""
        self.lanes.grow(slots)

    def set_slot(self, slot: int, entries: Sequence[Entry | None]) -> None:
        """Say what runs the segments of a request that is not in flight; also during a run."""
        base = slot * self._nodes
        for s, (segment, entry) in enumerate(zip(self._plan.segments, entries, strict=True)):
            if callable(entry):
                self.lanes.set_call(base + s, self._device_lane[segment.device], entry)
            elif entry is not None:
                self.lanes.set_entry(base + s, self._device_lane[segment.device], *entry)
        for p, (lane, seconds) in self._links.items():
            self.lanes.set_transfer(base + self._segments + p, lane, seconds)

    def forget(self, slot: int) -> None:
        """Let go of what runs the segments of a request that is not in flight; also during a run."""
        self.lanes.forget(slot)

    def prepare(self, slots: Sequence[int], waiting: int, bell: Bell | None = None, deadline: float = math.inf) -> None:
        """Make ready for a run; from here on it can be stopped.

        Args:
            slots: the requests that begin at once.
            waiting: how many follow them, each as soon as a slot is free.
            bell: of a run that requests are added to: rung when one has ended, or the run has been stopped.
            deadline: seconds, by ``time.perf_counter``, when lanes stop the run by themselves.
        """
        _RUNNING.check()
        self._ended, self._failed, self._failure, self._late, self._refused, self._lost = [], None, None, None, None, False
        self._serving = bell is not None
        self._failed_in.clear()
        self.lanes.prepare(np.array(slots, np.int32), waiting, None if bell is None else bell.counter, deadline)

    def start(self, ended: Callable[[NativeRan], object]) -> None:
        """Run what was prepared, on the thread of the first lane; return when that lane has nothing left to do.

        Args:
            ended: told what was done, once every lane is out of the loop, on the thread of the last one. It must not raise.
        """
        lanes = range(len(self.workers))
        self._inside = {*lanes}
        _RUNNING.plans[self] = os.getpid()
        for k in (*lanes[1:], 0):
            try:
                if k > 0:
                    self.workers[k].submit(functools.partial(self._work, k, ended))
                else:
                    self._work(k, ended)
            except BaseException as refusal:  # noqa: BLE001 (the other lanes leave when they see that)
                self._refused = refusal.with_traceback(None)  # which refers to this plan
                self.stop()
                self._leave(k, ended)

    def admit(self, slot: int) -> None:
        """Begin a request in a free slot of a run with a bell; it does not begin if the run has been stopped."""
        self.lanes.admit(slot)

    def admit_no_more(self) -> None:
        """Have a run with a bell be over when nothing is in flight."""
        self.lanes.admit_no_more()

    def ended(self) -> list[int]:
        """Requests that have ended since this was last asked, well unless :meth:`failure` says otherwise."""
        with self._lock:
            self._hear()
            found, self._ended = self._ended, []
        return found

    def failure(self, slot: int) -> tuple[int, BaseException] | None:
        """Return the segment that has failed of a request that has ended, and what its device says; None if none has."""
        failed = self._failed_in.pop(slot, None)
        return None if failed is None else (failed.node % self._nodes, self._said(failed))

    def wanted(self) -> bool:
        """Return whether others wait for the threads, all of which have come."""
        return self.lanes.begun and any(worker.waiting for worker in self.workers)

    def stop(self) -> None:
        """Have nothing more started; what runs goes on to its end. From any thread, at any time."""
        self.lanes.stop()

    @property
    def stopped(self) -> bool:
        """True if nothing more is started, as something has failed or :meth:`stop` was called."""
        return self.lanes.stopped

    def running(self) -> list[tuple[int, int]]:
        """Slot and node of what is on a lane, a snapshot; if nothing is any more, of what was when the deadline was over."""
        with self._lock:
            self._hear()
        return self._where(self.lanes.running()) or self._late or []

    def _where(self, nodes: Sequence[int]) -> list[tuple[int, int]]:
        return [divmod(n, self._nodes) for n in nodes]

    def ran(self, slot: int) -> tuple[list[Ran], list[Ran]]:
        """Return what was computed and moved in a slot since the run, or its request, began, as :class:`NativeRan`."""
        found = [(n - slot * self._nodes, start, finish) for n, start, finish in self.lanes.ran(slot)]
        moved = [(n - self._segments, start, finish) for n, start, finish in found if n >= self._segments]
        return [what for what in found if what[0] < self._segments], moved

    def _work(self, k: int, ended: Callable[[NativeRan], object]) -> None:
        try:
            wake_on_time()
            self.lanes.work(k)
            self._look(k)
        except BaseException as error:  # noqa: BLE001 (the other lanes have to leave, and somebody waits for the end)
            self._refused = error.with_traceback(None)
            self.stop()
        try:
            self._leave(k, ended)
        except BaseException:  # noqa: BLE001 (no memory, say; nothing else can tell of the end)
            self._leave(k, ended)

    def _look(self, k: int) -> None:
        """Have the thread of a lane say what has failed there."""
        with self._lock:
            self._hear()
            failed = self._failed
        if failed is not None and failed.lane == k:
            self._failure = self._said(failed)

    def _said(self, failed: _core.Failed) -> BaseException:
        """What the device says of an entry that has failed."""
        error = self.lanes.error(failed.node)
        return error.with_traceback(None) if isinstance(error, BaseException) else ExecutionError(self._explain[failed.lane]())

    def _hear(self) -> None:
        """Take note of what has happened; with the lock."""
        for event in self.lanes.events():
            match event:
                case _core.Ended():
                    self._ended.append(event.slot)
                case _core.Failed() if self._serving:
                    self._failed_in.setdefault(event.node // self._nodes, event)
                case _core.Failed():
                    self._failed = event
                case _core.Late():
                    self._late = self._where(event.running)
                case _core.Broken():
                    self._lost, self._refused = True, ExecutionError(event.why)

    def _leave(self, k: int, ended: Callable[[NativeRan], object]) -> None:
        """Take note that a lane has left, or will not come; tell of the end if it was the last one."""
        with self._lock:
            self._inside.discard(k)
            if self._inside:
                return
        try:
            _RUNNING.plans.pop(self, None)
            ran = self._ran()
        except BaseException as error:  # noqa: BLE001 (no memory, say)
            nothing: list[list[Ran]] = [[] for _ in range(self._requests)]
            ran = NativeRan(math.nan, math.nan, nothing, nothing, None, False, error.with_traceback(None), self._lost)
        ended(ran)

    def _ran(self) -> NativeRan:
        found = [self.ran(slot) for slot in range(self._requests)]
        what = None
        if self._failed is not None:
            slot, s = divmod(self._failed.node, self._nodes)
            what = slot, s, self._failure or ExecutionError("its device does not say why")
        segments, transfers = [of_slot[0] for of_slot in found], [of_slot[1] for of_slot in found]
        late = self._late is not None
        return NativeRan(self.lanes.begin, self.lanes.end, segments, transfers, what, late, self._refused, self._lost)


class _Running:
    """Plans whose lanes are at work, and what becomes of them when the interpreter exits.

    A thread that wants the interpreter's lock after that is ended where it is, which C++ below it does not survive.
    """

    def __init__(self) -> None:
        self.plans: dict[NativePlan, int] = {}  # with the process that they run in
        self._exiting = False
        atexit.register(self._end)

    def check(self) -> None:
        """Raise ExecutionError if the interpreter exits."""
        if self._exiting:
            raise ExecutionError("Python exits, and nothing more can run.")

    def _end(self) -> None:
        self._exiting = True
        left = [plan for plan, process in [*self.plans.items()] if process == os.getpid()]
        for plan in left:
            plan.stop()
        until = time.monotonic() + _EXIT_PATIENCE_S
        while time.monotonic() < until and any(plan in self.plans for plan in left):
            time.sleep(1e-3)


_RUNNING = _Running()


def native_plan(pool: DevicePool, plan: Plan, slots: Sequence[Slot], scheduler: Scheduler) -> NativePlan | None:
    """Prepare the lanes of a plan.

    Returns:
        None if lanes have no thread, a segment has neither a native entry nor a Python function, or none has a native entry.
    """
    used = dict.fromkeys(s.device for s in plan.programs)
    if pool.wait is not None or not used:
        return None
    drivers: list[Any] = [pool.devices[d] for d in used]
    found = [entries_of(pool, plan, slot) for slot in slots]
    entries = [of_slot for of_slot in found if of_slot is not None]
    if len(entries) < len(found) or not any(isinstance(entry, tuple) for of_slot in entries for entry in of_slot):
        return None
    device_lane = {d: k for k, d in enumerate(used)}
    slowdown, link_lane = [float(getattr(driver, "slowdown", 1.0)) for driver in drivers], dict[tuple[int, int], int]()
    links: dict[int, tuple[int, float]] = {}
    for p in range(len(plan.problem.edges)):
        step = narrowed(Transfer, scheduler.instruction(0, len(plan.segments) + p))
        copy = slots[0].copies.get((step.tensor, step.dst))
        if copy is None or step.src == step.dst:
            continue
        transport: Any = pool.transports[step.src, step.dst]
        if not hasattr(transport, "seconds"):
            return None
        if (step.src, step.dst) not in link_lane:
            link_lane[step.src, step.dst] = len(drivers)
            drivers.append(transport)
            slowdown.append(0.0)
        links[p] = link_lane[step.src, step.dst], transport.seconds(copy[2])
    workers = [getattr(driver, "worker", None) for driver in drivers]
    if any(worker is None for worker in workers):
        return None
    explain = [getattr(driver, "explain", lambda: "") for driver in drivers]
    known = [worker for worker in workers if worker is not None]
    return NativePlan(plan, scheduler, entries, links, slowdown, device_lane, known, explain)


def entries_of(pool: DevicePool, plan: Plan, slot: Slot) -> list[Entry | None] | None:
    """Return the compiled entries that run the segments of a slot; None if only its device knows how to run some segment."""
    entries: list[Entry | None] = []
    for segment, start in zip(plan.segments, slot.starts, strict=True):
        if start is None:
            entries.append(None)
            continue
        native: tuple[int, int] | None = getattr(start[0], "native", None)
        call: Callable[[Instance], Entry] | None = getattr(pool.devices[segment.device], "call", None)
        if native is not None:
            entries.append(native)
        elif call is not None:
            entries.append(call(start[0]))
        else:
            return None
    return entries
