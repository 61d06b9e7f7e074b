"""The executor on lanes, the threads of devices and links: compiled code follows the scheduler's rules there."""

from __future__ import annotations

import atexit
import functools
import math
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from time import perf_counter
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.errors import ExecutionError, PlaceitError
from placeit.core.threads import CHECK_S, EXITING
from placeit.planning.segments import Plan
from placeit.runtime.active_run import ActiveRun
from placeit.runtime.calls import failure_of
from placeit.runtime.device_pool import DevicePool
from placeit.runtime.device_stats import DeviceStats
from placeit.runtime.devices.base import BufferSpec, HostPaced, Program
from placeit.runtime.devices.by_size import BySize
from placeit.runtime.engine_run import EngineRun, Over
from placeit.runtime.engine_steps import EngineSteps
from placeit.runtime.engine_wiring import Wiring
from placeit.runtime.feed import Bell, Slots
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.refused import MayBeRefused
from placeit.runtime.reopening import lost_of
from placeit.runtime.run_ends import timeout_error
from placeit.runtime.segment_book import SegmentBook
from placeit.runtime.slot_table import SlotTable
from placeit.runtime.slots import Continuing, Slot, check_keeping, queue_memory
from placeit.runtime.spans import Labels, Moved, Ran, Timed, blended
from placeit.simulator.scheduler import Scheduler

__all__ = ["Executor"]

_EXIT_TIMEOUT_S = 2.0  # for segments that run when the interpreter exits


class Executor(PlanExecutor):
    """Runs a plan on lanes.

    No device is idle while one of its segments is ready, and no link is idle while a tensor waits for it. The thread on which a
    segment or transfer ends applies the compiled rules, and queues the work that follows on the lanes of devices and links.

    Args:
        book: names, shapes and buffers of the plan's segments.
        pool: devices and links.
        plan: what to run.
        programs: one for each segment that runs something, in the order of ``plan.programs``.
        in_flight: maximum number of requests in flight at once.
        priority: among segments of several executors that wait for a device, the lowest number goes first.

    Raises:
        DeviceError: there is no room for buffers.
        UsageError: ``in_flight`` is below 1, or above 1024.
    """

    def __init__(
        self,
        book: SegmentBook,
        pool: DevicePool,
        plan: Plan,
        programs: Sequence[Program],
        *,
        in_flight: int = 1,
        priority: int = 0,
    ) -> None:
        super().__init__(plan, in_flight, book.inputs, priority)
        self.book, self.pool, self._has_state = book, pool, bool(book.model.stateful)
        compiled = iter(programs)
        self.programs = [None if segment.passthrough else next(compiled) for segment in plan.segments]
        scheduler = Scheduler(plan.problem, plan.placement, in_flight=in_flight)
        self._used_names = {pool.cluster.names[segment.device] for segment in plan.segments}
        self._wiring = Wiring(pool, plan, scheduler, in_flight)
        self._engine, self._workers, self._devices = self._wiring.engine, self._wiring.workers, self._wiring.devices
        self._engine.priority = priority
        self._steps = EngineSteps(self._wiring, scheduler, book, plan, pool.cluster.names)
        self._slots = SlotTable(self._wiring, [Slot(book, pool, plan, self.programs, n) for n in range(in_flight)])
        self._run = self._timed_run = EngineRun(self._engine)  # reused by all calls of times()
        self._blended: tuple[list[Ran], list[Moved]] | None = None  # mean times, in place of the last run in the first slot
        _OPEN.add(self)

    def open_slot(self, *, beside: Slot | None = None) -> Slot:
        """Make a slot for a sequence; see :meth:`placeit.runtime.plan_executor.PlanExecutor.open_slot`."""
        self._check_open()
        with self._lock:
            number = self._slots.reserve()
        try:
            slot = Slot(self.book, self.pool, self.plan, self.programs, number, keep_state=True, beside=beside)
            check_keeping(slot, self.book, self.plan, self.pool)
            with self._lock:
                self._check_open()
                self._slots.add(slot)
        except BaseException:
            with self._lock:
                self._slots.give_back(number)
            raise
        return slot

    def close_slot(self, slot: Slot) -> None:
        """Release a slot of a sequence; see :meth:`placeit.runtime.plan_executor.PlanExecutor.close_slot`."""
        with self._lock:
            self._slots.remove(slot)

    @property
    def native(self) -> bool:
        """True if runs need no Python from their begin to their end."""
        return not self._wiring.needs_python

    @property
    def refused(self) -> Mapping[int, str]:
        """Why the compiler of a device refused segments, which run op by op, by their numbers in the plan."""
        programs: Sequence[object] = self.programs
        return {s: p.refused for s, p in enumerate(programs) if isinstance(p, MayBeRefused) and p.refused}

    @property
    def by_size(self) -> bool:
        """True if a segment is compiled for each size of its inputs."""
        return any(isinstance(program, BySize) for program in self.programs)

    @property
    def keeps_blocks(self) -> bool:
        """True if a run may compute tokens of texts in several slots."""
        return any(slot.keeps_blocks for slot in self._slots.ordinary)

    @property
    def stays(self) -> bool:
        """True if :meth:`serve` may wait for requests while none is in flight: not on a virtual clock."""
        return self.pool.wait is None

    @functools.cached_property
    def room_for_state(self) -> dict[str, float]:
        """Bytes that its devices may hold besides the plan's weights, by device name; ``inf`` if that is not known."""
        return self.plan.memory_left(self.book.grouping.groups, self.pool.cluster)

    @property
    def spun_s(self) -> float:
        """Seconds that the threads of its lanes have spun, for all executors that use them."""
        return sum(lane.spun for lane in {worker.lane for worker in self._workers})

    def join(self, queue: _core.RequestQueue, bell: Bell, every: int) -> Slots | None:
        """Let a queue run its requests here; see :meth:`placeit.runtime.plan_executor.PlanExecutor.join`."""
        slots = self._slots.ordinary
        if self.pool.wait is not None or bell.counter is None or any(slot.renew is not None for slot in slots):
            return None
        memory = queue_memory(slots, self.inputs, self.output_specs)
        if memory is None:
            return None
        return Slots(queue, queue.add(self._engine, memory, bell.counter, every), self._steps.decode)

    @property
    def host_paced(self) -> tuple[str, ...]:
        """Names of the devices of this plan whose streams the host waits for."""
        used = sorted({segment.device for segment in self.plan.programs})
        devices = [self._devices[d] for d in used]
        return tuple(device.name for device in devices if isinstance(device, HostPaced) and device.host_paced)

    @property
    def window(self) -> tuple[float, float]:
        """Begin and end of the last run on its lanes, in seconds of ``time.perf_counter``."""
        return self._engine.begun_at, self._engine.ended_at

    def at_work(self) -> Collection[tuple[int, int, int]]:
        """Return the segments that run now; see :meth:`placeit.runtime.plan_lanes.PlanLanes.at_work`."""
        nodes = [] if self.by_size else [divmod(node, self._steps.size) for node in self._engine.running()]
        return [(s, number, self._wiring.begun(number, s)) for number, s in nodes if s < len(self.plan.segments)]

    def devices(self) -> list[DeviceStats]:
        """Return the state and counts of each device of its cluster, whether the plan uses it or not."""
        return self.pool.stats()

    @property
    def gone(self) -> PlaceitError | None:
        """Error of a lost device of the plan, or of a lost link between two of them; None if none is lost."""
        if self._gone is not None:
            return self._gone
        lost = lost_of(self.pool.cluster.names, self._devices)
        return next((why for names, why in lost.items() if names <= self._used_names), None)

    def _release_if_done(self) -> bool:
        # a segment that is still running keeps this executor until it has ended
        postponed = self._closed and not self._broken and self._engine.when_over(self._release_later)
        return not postponed and super()._release_if_done()

    def _release_later(self) -> None:
        """Release everything when an abandoned run has ended; called on the thread that has ended it."""
        with self._lock:
            super()._release_if_done()

    def _release(self) -> None:
        self._slots.clear()
        self.programs.clear()

    def _write(self, inputs: Mapping[str, NDArray[np.generic]], request: int) -> None:
        for name, value in inputs.items():
            self._slots[request].inputs[name].fill(value)

    def _put(self, inputs: Mapping[str, NDArray[np.generic]], request: int) -> None:
        """Set the inputs that a request reads, which must not change until it ends; it writes to memory that no caller has."""
        slot = self._slots[request]
        for name, value in inputs.items():
            slot.inputs[name].put(value)
        for port in slot.outputs.values():
            port.make_room()

    def _write_to(self, out: Mapping[str, Any]) -> Collection[str]:
        host = {name: array for name, array in out.items() if isinstance(array, np.ndarray)}
        return [name for name, array in host.items() if self._slots[0].outputs[name].write_to(array)]

    @property
    def output_specs(self) -> Mapping[str, BufferSpec]:
        """Shape and type of each output of the model, by name."""
        return self.book.outputs

    def _read(self, request: int, given: Mapping[str, NDArray[Any]] = {}) -> dict[str, NDArray[np.generic]]:
        return {name: given[name] if name in given else port.get() for name, port in self._slots[request].outputs.items()}

    # -- runs ---------------------------------------------------------------------------------------------------------------

    def _execute(self, count: int, deadline: float) -> None:
        self._check_not_broken()
        self._check_open()
        self.pool.check_open()  # if it was closed before this run was there to be ended
        _OPEN.check_caller()
        slots = min(count, self.in_flight)
        checked = [slot for number in range(slots) if (slot := self._slots[number]).begin()]
        run = self._run = self._timed_run
        run.error = run.failed = None
        self._blended = None
        if self.pool.wait is not None:
            self._drain(deadline)
            self._engine.begin(slots, count - slots, perf_counter())
            self._pass_time(run)
        else:
            waited = self._engine.run(slots, count - slots, deadline)
            if waited is not _core.Waited.over:
                self._give_up(run, waited)
        self._conclude(run)
        if run.error is not None:
            raise run.error
        if self._engine.stopped:
            raise ExecutionError("This executor was closed in the middle of a run: make a new one.")
        for slot in checked:
            slot.record(*self._steps.ran(slot.number))
        self.inner = self._engine.ended_at - self._engine.begun_at

    def _give_up(self, run: EngineRun, waited: _core.Waited) -> None:
        """Raise the error of a run that has not ended, whose caller stops waiting."""
        if waited == _core.Waited.inside:
            raise ExecutionError("A run was started inside another run of the same executor, perhaps by a signal handler.")
        if waited == _core.Waited.gone:
            self._broken = True
            self._check_lanes()
            self.pool.check_open()
        self._conclude(run)
        raise run.error or self._timeout_error(run)

    def _drain(self, deadline: float = math.inf) -> None:
        self._check_open()
        engine = self._engine
        if not engine.over and not engine.inside:
            engine.stop()
            if self.pool.wait is not None:
                self.pool.wait(Over(engine))  # type: ignore[arg-type]
            waited = engine.wait(deadline)
            if waited != _core.Waited.over:
                self._give_up(self._run, waited)  # type: ignore[arg-type]

    def _await_others(self, deadline: float) -> None:
        engine = self._engine
        if not engine.over and not engine.inside and not engine.watch(deadline):
            raise self._timeout_error(self._run)  # type: ignore[arg-type]

    def _conclude(self, run: ActiveRun) -> None:
        """Record in a run which of its requests have ended or failed, and its error."""
        for incident in self._engine.incidents():
            match incident:
                case _core.Ended():
                    run.ended.append(incident.slot)
                case _core.Failed():
                    number, error = self._steps.failure(incident.node, interrupts=self.pool.wait is not None)
                    if run.bell is not None:
                        run.failures.setdefault(number, error)
                    else:
                        run.failed, run.error = number, error
                case _core.Late():
                    run.error = run.error or timeout_error(self._steps.named(incident.running))
                case _core.Broken():
                    self._broken = True
                    run.error = run.error or failure_of("The run cannot go on", ExecutionError(incident.why))

    def _running(self, run: ActiveRun) -> list[str]:  # noqa: ARG002
        return self._steps.named(self._engine.running())

    # -- requests as they come -----------------------------------------------------------------------------------------------

    def _prepare(self, bell: Bell) -> ActiveRun:
        self._blended = None
        self.pool.check_open()
        _OPEN.check()
        return EngineRun(self._engine, bell)

    def _start(self, run: ActiveRun) -> None:
        assert run.bell is not None  # noqa: S101
        counter = run.bell.counter
        self._engine.open(_core.Bell() if counter is None else counter)

    def _admit(self, run: ActiveRun, request: int, inputs: Mapping[str, Any], out: Mapping[str, Any]) -> None:  # noqa: ARG002
        slot = self._slots[request]
        self._put(inputs, request)
        slot.begin()
        slot.written = None
        self._engine.admit(request)

    def _admit_no_more(self, run: ActiveRun) -> None:  # noqa: ARG002
        self._engine.admit_no_more()

    def _ended(self, run: ActiveRun) -> list[int]:
        self._conclude(run)
        return super()._ended(run)

    def _outcome(self, run: ActiveRun, request: int) -> tuple[dict[str, NDArray[np.generic]], Sequence[Ran], Sequence[Moved]]:  # noqa: ARG002
        return self._read(request), *self._steps.ran(request)

    def _pass_time(self, run: ActiveRun) -> None:
        if self.pool.wait is not None:
            self.pool.wait(run.over)
            if not (run.idle or run.ended):
                self._engine.stop()
                running = ", ".join(self._running(run)) or "nothing"
                raise ExecutionError(f"No events are left, and the run has not ended; still running: {running}.")

    def _check_lanes(self) -> None:
        for worker in self._workers:
            worker.check()

    # -- segments and transfers of past runs ---------------------------------------------------------------------------------

    @property
    def labels(self) -> Labels:
        """Names of its segments, tensors and devices."""
        return self._steps.names.labels

    def last_run(self) -> list[tuple[int, Sequence[Ran], Sequence[Moved]]]:
        """Return the segments and transfers of each request of the last call, with its number among those in flight."""
        found: dict[int, tuple[Sequence[Ran], Sequence[Moved]]] = {
            s.number: self._steps.ran(s.number) for s in self._slots.ordinary
        }
        if self._blended is not None and found:
            found[0] = self._blended
        return [(number, *of_slot) for number, of_slot in found.items()]

    def segment_seconds(self, *, last: bool = False) -> NDArray[np.float64]:
        """Return each segment's median seconds over many runs, or its last ones, ``float64[S]``; zero if it runs nothing."""
        seconds = np.zeros(len(self.plan.segments))
        self._engine.seconds(last, seconds)
        return seconds

    def _sequences(self, slots: int) -> Continuing:
        return Continuing(self._slots.ordinary[:slots])

    def _blend(self, found: Sequence[Timed], runs: int) -> None:
        self._blended = blended(found)
        seconds = np.zeros(len(self.plan.segments))
        for s, start, finish in self._blended[0]:
            seconds[s] = finish - start
        self._engine.blend(runs, seconds)

    def _blank(self, sentinel: int) -> str | None:
        found = [what for slot in self._slots.ordinary if (what := slot.blank(sentinel)) is not None]
        if not found:
            return None
        return f"{self._steps.names.writer(found[0])} still wrote after it had been reported to have ended"


class _OpenExecutors:
    """The open executors, whose runs are stopped when the interpreter exits.

    A thread that takes the interpreter's lock after the exit is terminated where it is, which C++ frames below it do not
    survive. So daemon threads that still wait for a run do not return.
    """

    def __init__(self) -> None:
        self._executors: WeakSet[Executor] = WeakSet()
        self._process = os.getpid()
        atexit.register(self._end)

    def add(self, executor: Executor) -> None:
        """Add an executor."""
        self._executors.add(executor)

    def check(self) -> None:
        """Raise ExecutionError if the interpreter exits."""
        if EXITING.is_open:
            raise ExecutionError("Python exits, and nothing more can run.")

    def check_caller(self) -> None:
        """Raise ExecutionError in the main thread if the interpreter exits; other threads then wait for ever, as in Python."""
        while EXITING.is_open and threading.current_thread() is not threading.main_thread():
            time.sleep(CHECK_S)
        self.check()

    def _end(self) -> None:
        EXITING.open()
        if os.getpid() != self._process:
            return
        _core.exit()
        engines = [executor._engine for executor in [*self._executors]]
        for engine in engines:
            engine.stop()
        deadline = time.monotonic() + _EXIT_TIMEOUT_S
        while time.monotonic() < deadline and not all(engine.over for engine in engines):
            time.sleep(1e-3)
        _core.keep([engine for engine in engines if not engine.over])


_OPEN = _OpenExecutors()
