"""Runs plans on real devices: a work-conserving, event-driven shell around the pure scheduler."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import ExecutionError, PlaceitError, UsageError
from placeit.core.narrowing import narrowed
from placeit.core.threads import Worker
from placeit.planning.segments import Plan
from placeit.runtime.active_run import ActiveRun
from placeit.runtime.device_pool import DevicePool
from placeit.runtime.devices.base import KeepsState, Program
from placeit.runtime.feed import Bell
from placeit.runtime.native.plan import NativePlan, NativeRan, entries_of, native_plan
from placeit.runtime.plan_executor import PlanExecutor, empty_samples, failure_of, seconds_of
from placeit.runtime.reopening import lost_of
from placeit.runtime.segment_book import SegmentBook
from placeit.runtime.slots import Slot
from placeit.runtime.spans import Labels, Moved, Ran, Timed, blended
from placeit.runtime.stats import DeviceStats
from placeit.simulator.scheduler import Instruction, Scheduler, Start, Transfer

__all__ = ["Executor"]


class LaneRun(ActiveRun):
    """A run on lanes that the host decides for.

    Attributes:
        requests: numbers of those to begin with.
        waiting: how many requests have not begun.
        left: how many of them have not ended.
        native: the plan that lanes run without Python; None while, or if, they do not.
        admitting: whether others may be admitted.
        dropped: whether the scheduler knows that nothing more may start, as something failed or nobody waits any more.
        broken: whether the scheduler is asked no more, as an exception came in the middle of a decision.
        caller: the thread that waits, if runs begin there, as no device has a worker; None if no decision is made there.
    """

    def __init__(self, requests: list[int], waiting: int, caller: int | None, bell: Bell | None) -> None:
        super().__init__(bell)
        self.requests, self.waiting, self.caller = requests, waiting, caller
        self.admitting = bell is not None
        self.left = len(requests)
        self.native: NativePlan | None = None
        self.dropped = self.broken = False

    def end_if_over(self) -> None:
        """Take note of the end, if no request is in flight and none will come."""
        if self.left == 0 and not self.admitting and not self.over.is_open:
            self.end = perf_counter()
            self.over.open()

    def go_native(self, native: NativePlan) -> None:
        """Have a plan ready to run it without Python."""
        native.prepare(self.requests, self.waiting, self.bell, self.deadline)
        self.native = native
        self.go(native.stop)


class Executor(PlanExecutor):
    """Runs a plan on lanes that the host decides for: threads of devices and links, or a compiled loop on the same threads.

    No device is idle while one of its segments is ready, and no link while it has something to move: each completion is told
    to the scheduler, and what it answers is started at once, on the thread that reported the completion.

    Args:
        book: names, shapes and buffers of the plan's segments.
        pool: devices and links.
        plan: what to run.
        programs: one for each segment that runs something, in the order of ``plan.programs``.
        in_flight: how many requests may be in flight at once.
        native: whether lanes may run without Python where they can; False to compare.

    Raises:
        DeviceError: there is no room for buffers.
        UsageError: no request at all.
    """

    def __init__(
        self,
        book: SegmentBook,
        pool: DevicePool,
        plan: Plan,
        programs: Sequence[Program],
        *,
        in_flight: int = 1,
        native: bool = True,
    ) -> None:
        super().__init__(plan, in_flight, book.inputs)
        self.book, self.pool, self._has_state = book, pool, bool(book.model.stateful)
        # those of now: what is lost and opened anew is another device
        self._devices, self._transports = pool.devices, pool.transports
        compiled = iter(programs)
        self.programs = [None if segment.passthrough else next(compiled) for segment in plan.segments]
        self._scheduler = Scheduler(plan.problem, plan.placement, in_flight=in_flight)
        self._samples = empty_samples(len(plan.segments))
        self._slots = {number: self._slot(number) for number in range(in_flight)}  # and those of sequences
        self._numbers, self._free = in_flight, list[int]()  # of slots that there is room for, and those that are not taken
        used = dict.fromkeys([s.device for s in plan.programs] or [s.device for s in plan.segments])
        self._working: set[tuple[int, ...]] = set()  # (request, segment) on devices, (request, tensor, destination) on links
        self._uses = {pool.cluster.names[segment.device] for segment in plan.segments}
        of_devices = [worker for d in used if (worker := _worker_of(self._devices[d])) is not None]
        of_links = [_worker_of(link) for pair, link in self._transports.items() if used.keys() >= set(pair)]
        self._first = of_devices[0] if of_devices else None  # where runs begin: segments are in topological order
        self._workers = [*of_devices, *(worker for worker in of_links if worker is not None)]
        self._native = native_plan(pool, plan, self._ordinary, self._scheduler) if native else None
        self._needs_python = self._native is None or self._native.needs_python

    def _slot(self, number: int, *, keep_state: bool = False) -> Slot:
        ends = self.op_done, self.transfer_done
        return Slot(self.book, self.pool, self.plan, self.programs, number, *ends, keep_state=keep_state)

    def open_slot(self) -> Slot:
        """See :meth:`placeit.runtime.plan_executor.PlanExecutor.open_slot`."""
        self._check_open()
        with self._lock:
            number = self._free.pop() if self._free else self._numbers
            if number == self._numbers:
                self._scheduler.grow(2 * number, None if self._native is None else self._native.grow)
                self._free += range(number + 1, 2 * number)[::-1]
                self._numbers = 2 * number
        try:
            slot = self._slot(number, keep_state=True)
            self._check_keeping(slot)
            with self._lock:
                self._check_open()
                if self._native is not None:
                    self._native.set_slot(number, entries_of(self.pool, self.plan, slot) or ())
                self._slots[number] = slot
        except BaseException:
            with self._lock:
                self._free.append(number)
            raise
        return slot

    def close_slot(self, slot: Slot) -> None:
        """See :meth:`placeit.runtime.plan_executor.PlanExecutor.close_slot`."""
        with self._lock:
            if self._slots.get(slot.number) is slot:
                if self._native is not None:
                    self._native.forget(slot.number)
                del self._slots[slot.number]
                self._free.append(slot.number)

    def _check_keeping(self, slot: Slot) -> None:
        """Raise UsageError if a device cannot keep the state of a segment."""
        stateful = self.book.model.stateful
        for segment, start in zip(self.plan.segments, slot.starts, strict=True):
            held = sorted(stateful.intersection(self.book.op_names(segment)))
            if held and not (start is not None and isinstance(start[0], KeepsState)):
                raise UsageError(
                    f"{self._devices[segment.device].name} does not keep the state of op '{held[0]}' from one request to the "
                    "next: place it on a device that OpenVINO drives, here or on a node."
                )

    @property
    def _ordinary(self) -> list[Slot]:
        """The slots of requests of no sequence; none once it is closed."""
        return [slot for number, slot in [*self._slots.items()] if number < self.in_flight]

    @property
    def native(self) -> bool:
        """True if runs need no Python from their begin to their end, unless another executor has the threads."""
        return not self._needs_python

    @property
    def host_paced(self) -> tuple[str, ...]:
        """Names of the devices of this plan with streams that the host waits for."""
        used = sorted({segment.device for segment in self.plan.programs})
        devices = [self._devices[d] for d in used]
        return tuple(device.name for device in devices if getattr(device, "host_paced", False))

    def devices(self) -> list[DeviceStats]:
        """What is known of the devices of its cluster, whether it uses them or not."""
        return self.pool.stats()

    @property
    def gone(self) -> PlaceitError | None:
        """Why nothing can run here any more, as a device that it uses, or a link between two, is lost; None while it can."""
        lost = lost_of(self.pool.cluster.names, self._devices)
        return next((why for names, why in lost.items() if names <= self._uses), None)

    def _release(self) -> None:
        self._slots.clear()
        self._native = None  # which runs segments that hold memory
        self.programs.clear()

    def _write(self, inputs: Mapping[str, NDArray[np.generic]], request: int) -> None:
        for name, value in inputs.items():
            self._slots[request].inputs[name].fill(value)

    def _read(self, request: int) -> dict[str, NDArray[np.generic]]:
        return {name: np.array(buffer.array(), order="C") for name, buffer in self._slots[request].outputs.items()}

    def _prepare(self, count: int, bell: Bell | None = None) -> LaneRun:
        for slot in self._ordinary:
            slot.clear()
        slots = self._ordinary[:count]
        for slot in slots:
            slot.written = None if slot.blanked is None else {}  # the run after it was blanked is the one that is checked
            slot.blanked = None
        caller = threading.get_ident() if self._first is None else None
        return LaneRun([slot.number for slot in slots], count - len(slots), caller, bell)

    def _admit(self, run: ActiveRun, request: int, inputs: Mapping[str, NDArray[np.generic]]) -> None:
        self._write(inputs, request)
        slot, lanes = self._slots[request], narrowed(LaneRun, run)
        slot.clear()
        slot.written = slot.blanked = None
        with self._lock:
            if not run.begun:
                lanes.requests.append(request)
                lanes.left += 1
                return
        if lanes.native is not None:
            lanes.native.admit(request)
            self._look(lanes, lanes.native)
        else:
            self._advance(functools.partial(self._begin_also, lanes, slot))

    def _begin_also(self, run: LaneRun, slot: Slot) -> list[Instruction]:
        if run.stopped:
            return []
        run.left += 1
        return self._scheduler.begin(slot.number)

    def _admit_no_more(self, run: ActiveRun) -> None:
        lanes = narrowed(LaneRun, run)
        with self._lock:
            if not run.begun:
                run.stop()
            elif lanes.native is None and not lanes.broken:
                lanes.admitting = False
                lanes.end_if_over()
                self._let_go()
        if lanes.native is not None:
            lanes.native.admit_no_more()

    def _ended(self, run: ActiveRun) -> list[int]:
        native = narrowed(LaneRun, run).native
        if native is not None:
            self._look(run, native)
            for number in native.ended():
                if (failure := native.failure(number)) is not None:
                    run.failures[number] = self._segment_failed("failed on", *failure)
                run.ended.append(number)
        return [run.ended.popleft() for _ in range(len(run.ended))]

    def _outcome(self, run: ActiveRun, request: int) -> tuple[dict[str, NDArray[np.generic]], Sequence[Ran], Sequence[Moved]]:
        slot, native = self._slots[request], narrowed(LaneRun, run).native
        if native is not None:
            self._note(slot, *native.ran(request))
        return self._read(request), tuple(slot.ran), tuple(slot.moved)

    def _look(self, run: ActiveRun, native: NativePlan) -> None:
        """Look whether something has failed, which lanes that run without Python tell nobody until they are out of it."""
        if native.stopped:
            run.stop()

    def _wanted(self, run: ActiveRun) -> bool:
        native = narrowed(LaneRun, run).native
        return native is not None and native.wanted()

    def _start(self, run: ActiveRun) -> None:
        lanes = narrowed(LaneRun, run)
        self.pool.check_open()  # or closing it was too early to end this run
        if self._first is None:
            self._advance(functools.partial(self._begin, lanes))
        elif self._native is not None:
            self._first.submit(functools.partial(self._begin_natively, self._native, lanes))
        else:
            self._first.submit(functools.partial(self._advance, functools.partial(self._begin, lanes)))

    def _pass_time(self, run: ActiveRun) -> None:
        if self.pool.wait is not None:
            self.pool.wait(run.over)
            if not (run.quiet or run.ended):
                with self._lock:
                    raise ExecutionError(f"No events are left, and the run has not ended: {self._said(run)}.")

    def _check_lanes(self) -> None:
        for worker in self._workers:
            worker.check()

    def _running(self, run: ActiveRun) -> list[str]:
        names, what, lanes = self.pool.cluster.names, [], narrowed(LaneRun, run)
        if lanes.native is not None:
            steps = [self._scheduler.instruction(*where) for where in lanes.native.running()]
        else:
            steps = self._scheduler.running() if run.begun else []
        for step in steps:
            if isinstance(step, Start):
                what.append(self._segment(step.op))
            else:
                name = self.book.grouping.tensor_name(self.plan.tensors[step.tensor])
                what.append(f"'{name}' from {names[step.src]} to {names[step.dst]}")
        return what

    @functools.cached_property
    def labels(self) -> Labels:
        """Names of its segments, tensors and devices."""
        plan, book = self.plan, self.book
        segments = tuple((segment.device, tuple(book.op_names(segment))) for segment in plan.segments)
        tensors = (*map(book.grouping.tensor_name, plan.tensors), *book.inputs, *book.outputs)
        return Labels(self.pool.cluster.names, segments, tensors)

    def last_run(self) -> list[tuple[int, Sequence[Ran], Sequence[Moved]]]:
        """Segments and transfers of each request of the last call, by its number among those in flight."""
        return [(slot.number, tuple(slot.ran), tuple(slot.moved)) for slot in self._ordinary]

    def segment_seconds(self, *, last: bool = False) -> NDArray[np.float64]:
        """``float64[S]``, median seconds of each segment over many runs, or of the last one; zero if it runs nothing."""
        return seconds_of(self._samples, last=last)

    @contextlib.contextmanager
    def _sequences(self, slots: int) -> Iterator[Callable[[bool], Callable[[], None]]]:
        used = self._ordinary[:slots]
        for slot in used:
            slot.reset_state()
            slot.keep_state(keep=True)

        def restart(initial: bool) -> Callable[[], None]:
            states = [None if initial else slot.states() for slot in used]

            def again() -> None:
                for slot, state in zip(used, states, strict=True):
                    if state is None:
                        slot.reset_state()
                    else:
                        slot.set_states(state)

            return again

        try:
            yield restart
        finally:
            for slot in used:
                slot.keep_state(keep=False)

    def _blend(self, found: Sequence[Timed], runs: int) -> None:
        slot = self._slots[0]
        slot.ran[:], slot.moved[:] = blended(found)
        for s, start, finish in slot.ran:
            for _ in range(min(runs, len(self._samples[s]))):
                self._samples[s].pop()
            self._samples[s].append(finish - start)

    def _blank(self, sentinel: int) -> str | None:
        found = [what for slot in self._ordinary if (what := slot.blank(sentinel)) is not None]
        if not found:
            return None
        what, names = found[0], self.pool.cluster.names
        if len(what) == 1:
            who = self._segment(what[0])
        else:
            who = f"the transfer of '{self.book.grouping.tensor_name(self.plan.tensors[what[0]])}' to {names[what[1]]}"
        return f"{who} still wrote after it had been reported to have ended"

    def _segment(self, s: int) -> str:
        segment, names = self.plan.segments[s], self.pool.cluster.names
        return f"the segment that starts with '{self.book.op_names(segment)[0]}' on {names[segment.device]}"

    def op_done(self, request: int, op: int, start: float, finish: float, error: BaseException | None) -> None:
        """Handle a device's report that a segment has ended."""
        failed = None if error is None else functools.partial(self._segment_failed, "failed on", op, error)
        ended = functools.partial(self._op_ended, request, op, start, finish)
        self._advance(ended, failed=failed, done=(request, op))

    def _op_ended(self, request: int, op: int, start: float, finish: float) -> list[Instruction]:
        self._slots[request].ran.append((op, start, finish))
        self._samples[op].append(finish - start)
        self._slots[request].reported((op,))
        return self._scheduler.op_finished(request, op)

    def transfer_done(
        self, request: int, tensor: int, src: int, dst: int, start: float, finish: float, error: BaseException | None
    ) -> None:
        """Handle a link's report that a transfer has ended."""
        failed = None if error is None else functools.partial(self._transfer_failed, tensor, src, dst, error)
        report = request, tensor, src, dst, start, finish
        self._advance(functools.partial(self._transfer_ended, *report), failed=failed, done=(request, tensor, dst))

    def _transfer_ended(self, request: int, tensor: int, src: int, dst: int, start: float, finish: float) -> list[Instruction]:
        self._slots[request].moved.append((tensor, src, dst, start, finish))
        self._slots[request].reported((tensor, dst))
        return self._scheduler.transfer_finished(request, tensor, dst)

    def _segment_failed(self, how: str, op: int, error: BaseException) -> PlaceitError:
        segment = self.plan.segments[op]
        first, device = self.book.op_names(segment)[0], self._devices[segment.device]
        said = f"Inference failed on {device.name}: "
        return failure_of(f"The segment that starts with '{first}' {how} {device.name}", error, said)

    def _transfer_failed(self, tensor: int, src: int, dst: int, error: BaseException) -> PlaceitError:
        name, names = self.book.grouping.tensor_name(self.plan.tensors[tensor]), self.pool.cluster.names
        return failure_of(f"Moving '{name}' from {names[src]} to {names[dst]} failed", error)

    def _begin(self, run: LaneRun) -> list[Instruction]:
        if run.stopped:  # an interrupt came first, and nobody waits for it
            return []
        run.begun = True
        return [step for request in run.requests for step in self._scheduler.begin(request)]

    def _begin_natively(self, native: NativePlan, run: LaneRun) -> None:
        """Have lanes run it without Python, unless those of another executor do so now. On the thread of the first lane."""
        turns, held = self.pool.native_turns, False
        try:
            held = turns.take(native.workers)
            if not held:
                self._advance(functools.partial(self._begin, run))
                return
            with self._lock:
                if not run.stopped:
                    run.go_native(native)
            if run.native is not None:
                native.start(functools.partial(self._ended_natively, native, run))
                return
        except BaseException as failure:  # noqa: BLE001 (of this run alone: its thread serves others)
            with self._lock:
                run.error = failure_of("The run cannot begin", failure)
                run.stop()
                run.over.open()
                self._let_go()
        if held:
            turns.give_back(native.workers)

    def _ended_natively(self, native: NativePlan, run: ActiveRun, ran: NativeRan) -> None:
        """Take note of what lanes have done, when all of them have left. A second call is ignored."""
        with self._lock:
            if run.over.is_open:
                return
            try:
                run.begin, run.end = ran.begin, ran.end
                self._lost |= ran.lost
                if run.bell is None and not ran.lost:
                    for number, (segments, transfers) in enumerate(zip(ran.segments, ran.transfers, strict=True)):
                        self._note(self._slots[number], segments, transfers)
                if ran.failed is not None:
                    run.failed, op, error = ran.failed
                    run.error = self._segment_failed("failed on", op, error)
                elif ran.late:
                    run.error = run.error or self._late(run)
                elif ran.refused is not None:
                    run.error = run.error or failure_of("The run cannot go on", ran.refused)
            except BaseException as failure:  # noqa: BLE001 (somebody waits for the end, and the thread serves others)
                run.error = run.error or failure_of("What has run is not known", failure)
                run.stop()
            finally:
                self.pool.native_turns.give_back(native.workers)
                run.over.open()
            self._let_go()

    def _note(self, slot: Slot, segments: Sequence[Ran], transfers: Sequence[Ran]) -> None:
        """Take note of what has run natively in a slot."""
        slot.ran[:] = segments
        slot.moved.clear()
        for s, start, finish in segments:
            self._samples[s].append(finish - start)
            slot.reported((s,))
        for p, start, finish in transfers:
            step = narrowed(Transfer, self._scheduler.instruction(slot.number, len(self.plan.segments) + p))
            slot.moved.append((step.tensor, step.src, step.dst, start, finish))
            slot.reported((step.tensor, step.dst))

    def _advance(
        self,
        event: Callable[[], list[Instruction]],
        failed: Callable[[], PlaceitError] | None = None,
        done: tuple[int, ...] | None = None,
    ) -> None:
        """Tell the scheduler of an event and start what it asks for.

        Args:
            event: tells the scheduler.
            failed: says what has failed; None if nothing has.
            done: what has ended on a device or a link; None if nothing has.
        """
        with self._lock:
            run: LaneRun | None = self._run  # type: ignore[assignment]
            if run is None:
                return
            try:
                self._working.discard(done or ())
                if not run.broken and not run.over.is_open:
                    self._follow(run, event, None if failed is None else failed(), None if done is None else done[0])
            except BaseException as failure:
                self._working.discard(done or ())
                self._break(run, failure)
                if run.caller == threading.get_ident():
                    raise
            if run.broken and not self._working and not run.over.is_open:
                self._forget(run)
            if run.over.is_open:
                self._let_go()

    def _break(self, run: LaneRun, failure: BaseException) -> None:
        """End a run in the middle of a decision: nothing more starts, and it is over when devices and links are at rest."""
        run.broken = True
        run.stop()
        run.error = run.error or failure_of("The run cannot go on", failure)
        if run.caller == threading.get_ident():  # nobody reports to it any more
            self._lost = True
            run.over.open()

    def _forget(self, run: LaneRun) -> None:
        """Have the scheduler forget a run that has ended in the middle of a decision; nothing of it is anywhere any more."""
        scheduler = self._scheduler
        try:
            for number in self._slots:
                scheduler.abort(number)
            for step in scheduler.running():
                if isinstance(step, Start):
                    scheduler.op_finished(step.request, step.op)
                else:
                    scheduler.transfer_finished(step.request, step.tensor, step.dst)
        except BaseException:  # noqa: BLE001 (somebody waits for the end)
            self._lost = True
        run.end = perf_counter()
        run.over.open()
        if run.bell is not None:
            run.bell.ring()

    def _follow(
        self, run: LaneRun, event: Callable[[], list[Instruction]], error: PlaceitError | None, request: int | None
    ) -> None:
        scheduler = self._scheduler
        todo: deque[Instruction] = deque()
        if error is not None and request is not None:  # before the event, or what reads from a failed segment would start
            todo.extend(self._fail(run, error, request))
        elif run.stopped:
            todo.extend(self._stop(run))
        todo.extend(event())
        while todo:
            step = todo.popleft()
            slot = self._slots[step.request]
            if type(step) is Start:
                start = slot.starts[step.op]
                try:
                    if start is not None:
                        self._working.add((step.request, step.op))
                        self._devices[step.device].start(*start)
                        continue
                except BaseException as refusal:  # noqa: BLE001
                    self._working.discard((step.request, step.op))
                    failure = self._segment_failed("could not be started on", step.op, refusal)
                    todo.extend(self._fail(run, failure, step.request))
                todo.extend(scheduler.op_finished(step.request, step.op))
            elif type(step) is Transfer:
                copy = slot.copies.get((step.tensor, step.dst))
                try:
                    if copy is not None:
                        src, source, destination, done = copy
                        self._working.add((step.request, step.tensor, step.dst))
                        self._transports[src, step.dst].start(source, destination, done)
                        continue
                except BaseException as refusal:  # noqa: BLE001
                    self._working.discard((step.request, step.tensor, step.dst))
                    failure = self._transfer_failed(step.tensor, step.src, step.dst, refusal)
                    todo.extend(self._fail(run, failure, step.request))
                todo.extend(scheduler.transfer_finished(step.request, step.tensor, step.dst))
            elif run.waiting:
                run.waiting -= 1
                slot.clear()
                todo.extend(scheduler.begin(step.request))
            else:
                if run.bell is not None:
                    if not run.stopped:
                        run.ended.append(step.request)
                    run.bell.ring()
                run.left -= 1
                run.end_if_over()

    def _fail(self, run: LaneRun, error: PlaceitError, request: int) -> list[Instruction]:
        """Drop what has not started of a request that has failed; of a run that no requests are added to, of all."""
        if run.caller == threading.get_ident() and not isinstance(error.__cause__, Exception | None):
            raise error.__cause__  # an interrupt, and not what a device says
        if run.bell is not None and not run.stopped:
            run.failures.setdefault(request, error)
            return self._scheduler.abort(request)
        if run.error is None:
            run.error, run.failed = error, request
        return self._stop(run)

    def _stop(self, run: LaneRun) -> list[Instruction]:
        """Drop what has not started, as a request has failed or nobody waits any more."""
        run.stop()
        if run.dropped or not run.begun:
            return []
        run.dropped, run.waiting = True, 0
        return [step for number in self._slots for step in self._scheduler.abort(number)]


def _worker_of(driver: object) -> Worker | None:
    return getattr(driver, "worker", None)
