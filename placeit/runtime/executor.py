"""Runs plans on real devices: a work-conserving, event-driven shell around the pure scheduler."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from placeit.errors import DeviceError, ExecutionError, PlaceitError, UsageError
from placeit.profiler.trace import Span
from placeit.runtime.devices.base import Buffer, Done, Instance, Program, TensorSpec
from placeit.runtime.devices.openvino import HostBuffer
from placeit.runtime.scheduler import Instruction, Scheduler, Start, Transfer
from placeit.runtime.segments import Plan

if TYPE_CHECKING:
    from placeit.runtime.runtime import Runtime

__all__ = ["Executor", "Order", "PlanExecutor", "checked_input", "empty_samples", "seconds_of"]

Order: TypeAlias = Literal["dynamic", "static", "graph"]
"""Who decides what runs when: the scheduler as things end, or the simulated schedule ahead of time, launched or replayed."""

_KEPT_SAMPLES = 1000  # times of a segment


def checked_input(name: str, given: NDArray[np.generic], spec: TensorSpec) -> NDArray[np.generic]:
    """Return an input of a model, which has to have its shape, and a type that it can be cast from. Raises UsageError."""
    value = np.asarray(given)
    if value.shape != spec.shape or not np.can_cast(value.dtype, spec.dtype, "same_kind"):
        raise UsageError(
            f"The input '{name}' is {value.dtype} {list(value.shape)}; the model wants {spec.dtype} {list(spec.shape)}."
        )
    return value


def empty_samples(segments: int) -> list[deque[float]]:
    """Make room for the times of each segment in its last runs."""
    return [deque(maxlen=_KEPT_SAMPLES) for _ in range(segments)]


def seconds_of(samples: Sequence[deque[float]], *, last: bool) -> NDArray[np.float64]:
    """``float64[S]``, median seconds of each segment, or of the last run; zero if there are none."""
    seconds = np.zeros(len(samples))
    for s, times in enumerate(samples):
        if times:
            seconds[s] = times[-1] if last else np.median(times)
    return seconds


class PlanExecutor(Protocol):
    """A plan, ready to run. Use it as a context manager, or call :meth:`close`."""

    @property
    def plan(self) -> Plan:
        """What it runs."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None: ...

    def close(self) -> None:
        """Let go of buffers and programs. Closing twice does nothing more."""
        ...

    def set_inputs(self, inputs: Mapping[str, NDArray[np.generic]], *, request: int = 0) -> None:
        """Copy the model's inputs into place, from where each run takes them.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or type than the model wants.
        """
        ...

    def outputs(self, *, request: int = 0) -> dict[str, NDArray[np.generic]]:
        """Return copies of the outputs of the last run, by name."""
        ...

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Run once and return the outputs by name. Raises UsageError or ExecutionError."""
        ...

    def time(self) -> float:
        """Run once on the inputs in place and return the seconds it took. Raises ExecutionError."""
        ...

    def times(self, count: int) -> float:
        """Run ``count`` requests, as many in flight as the executor was made for, and return the seconds they took.

        Raises:
            ExecutionError: a device failed, or has been closed.
            UsageError: no request at all.
        """
        ...

    def spans(self) -> list[Span]:
        """What ran when in the last run: one span per segment and transfer, on a track per device and per link."""
        ...

    def segment_seconds(self, *, last: bool = False) -> NDArray[np.float64]:
        """``float64[S]``, median seconds of each segment over many runs, or of the last one; zero if it runs nothing."""
        ...


class _Slot:
    """One request in flight: instances whose buffers are wired to each other ahead of time, and its progress."""

    def __init__(self, executor: Executor, number: int) -> None:
        runtime, plan = executor.runtime, executor.plan
        self.number = number
        self.inputs = {name: HostBuffer(spec) for name, spec in runtime.inputs.items()}
        self.outputs: dict[str, Buffer] = {}
        self.starts: list[tuple[Instance, Done] | None] = []
        self.copies: dict[tuple[int, int], tuple[int, Buffer, Buffer, Done]] = {}
        self.finished = threading.Event()
        self.finished.set()
        self.end = 0.0
        self.ran: list[tuple[int, float, float]] = []
        self.moved: list[tuple[int, int, int, float, float]] = []
        held: dict[tuple[int, int], Buffer] = {}
        compact = {t: i for i, t in enumerate(plan.tensors)}
        readers: dict[int, set[int]] = {t: set() for t in plan.tensors}
        for segment in plan.segments:
            for t in segment.inputs:
                readers[t].add(segment.device)
        for s, (segment, program) in enumerate(zip(plan.segments, executor.programs, strict=True)):
            d = segment.device
            entering = {t: held[t, d] for t in segment.inputs}
            if program is None:
                made = runtime.hand_through(segment, entering, self.inputs)
                self.starts.append(None)
            else:
                instance = runtime.devices[d].instance(program)
                for i, buffer in enumerate([*entering.values(), *(self.inputs[name] for name in runtime.inputs_of(segment))]):
                    instance.bind(i, buffer)
                made = [instance.output(i) for i in range(len(program.outputs))]
                self.starts.append((instance, functools.partial(executor.op_done, number, s)))
            self.outputs |= zip(runtime.outputs_of(segment), made[len(segment.outputs) :], strict=True)
            for t, buffer in zip(segment.outputs, made, strict=False):
                held[t, d] = buffer
                for far in readers[t] - {d}:
                    held[t, far] = buffer
                    if buffer.space != runtime.devices[far].space:
                        if (d, far) not in runtime.transports:
                            names = runtime.devices[d].name, runtime.devices[far].name
                            raise DeviceError(
                                f"Nothing moves tensors from '{names[0]}' to '{names[1]}', whose memories differ: give the "
                                "runtime a transport from one to the other."
                            )
                        held[t, far] = runtime.devices[far].allocate(runtime.spec(t))
                    if (d, far) in runtime.transports:
                        done = functools.partial(executor.transfer_done, number, compact[t], d, far)
                        self.copies[compact[t], far] = (d, buffer, held[t, far], done)


class Executor:
    """One plan, compiled and ready to run.

    No device is idle while one of its segments is ready, and no link while it has something to move: each completion is told
    to the scheduler, and what it answers is started at once, on the thread that reported the completion.

    Every request starts from the model's initial state, if it has any. Threads that share an executor take turns.

    Args:
        runtime: devices, links and compiled segments.
        plan: what to run.
        requests: how many requests may be in flight at once.

    Raises:
        DeviceError: a segment cannot be compiled for its device, or there is no room for its buffers.
        UsageError: no request at all.
    """

    def __init__(self, runtime: Runtime, plan: Plan, *, requests: int = 1) -> None:
        if requests < 1:
            raise UsageError(f"An executor is made for at least one request in flight; got {requests}.")
        self.runtime, self.plan = runtime, plan
        compiled = iter(cast("list[Program]", runtime.compile([segment for segment in plan.segments if not segment.free])))
        self.programs = [None if segment.free else next(compiled) for segment in plan.segments]
        self._scheduler = Scheduler(plan.problem, plan.placement, links="channel", queue="priority")
        self._samples = empty_samples(len(plan.segments))
        self._turn = threading.RLock()  # of the threads that call
        self._lock = threading.Lock()  # of what the scheduler knows
        self._waiting = 0
        self._error: PlaceitError | None = None
        self._lost = False  # whether nobody knows what still runs
        self._slots = [_Slot(self, number) for number in range(requests)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of buffers and programs. Closing twice does nothing more."""
        with self._turn:
            self._slots.clear()
            self.programs.clear()

    def set_inputs(self, inputs: Mapping[str, NDArray[np.generic]], *, request: int = 0) -> None:
        """Copy the model's inputs into place.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or type than the model wants.
        """
        slot = self._slot(request)
        for name in inputs:
            if name not in slot.inputs:
                raise UsageError(f"The model has no input '{name}'; its inputs are {', '.join(slot.inputs)}.")
        for name, buffer in slot.inputs.items():
            if name not in inputs:
                raise UsageError(f"The input '{name}' is missing; the model's inputs are {', '.join(slot.inputs)}.")
            np.copyto(buffer.array(), checked_input(name, inputs[name], buffer.spec), casting="same_kind")

    def outputs(self, *, request: int = 0) -> dict[str, NDArray[np.generic]]:
        """Return copies of the outputs of the last run, by name."""
        return {name: np.array(buffer.array(), order="C") for name, buffer in self._slot(request).outputs.items()}

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Run once and return the outputs by name. Raises UsageError or ExecutionError."""
        with self._turn:
            self.set_inputs(inputs)
            self.time()
            return self.outputs()

    def time(self) -> float:
        """Run once on the inputs in place and return the seconds it took. Raises ExecutionError."""
        return self.times(1)

    def times(self, count: int) -> float:
        """Run ``count`` requests, as many in flight as the executor was made for, and return the seconds they took.

        Raises:
            ExecutionError: a device failed, or has been closed. What had not started does not start any more.
            UsageError: no request at all.
        """
        if count < 1:
            raise UsageError(f"There must be at least one request to run; got {count}.")
        with self._turn:
            if self._lost:
                raise ExecutionError("After an earlier error this executor does not know what still runs: make a new one.")
            self._slot(0)
            slots = self._slots[:count]
            for slot in slots:
                slot.ran.clear()
                slot.moved.clear()
            self._waiting, self._error = count - len(slots), None
            begin = perf_counter()
            try:
                for slot in slots:
                    slot.finished.clear()
                    self._advance(self._scheduler.begin, slot.number)
                self._wait()
            except KeyboardInterrupt:
                with self._lock:
                    self._waiting = 0
                for slot in slots:
                    self._advance(self._scheduler.abort, slot.number)
                self._wait()
                raise
            if self._error is not None:
                raise self._error
            return max(slot.end for slot in slots) - begin

    def _slot(self, request: int) -> _Slot:
        if not self._slots:
            raise ExecutionError("This executor is closed: make a new one.")
        return self._slots[request]

    def _wait(self) -> None:
        for slot in self._slots:
            self.runtime.wait(slot.finished)

    def spans(self) -> list[Span]:
        """What ran when in the last run: one span per segment and transfer, on a track per device and per link."""
        plan, runtime = self.plan, self.runtime
        names = runtime.cluster.names
        spans = []
        for slot in self._slots:
            for s, start, finish in slot.ran:
                segment = plan.segments[s]
                names_of = runtime.op_names(segment)
                spans.append(Span(names[segment.device], names_of[0], start, finish, {"ops": names_of}))
            for t, src, dst, start, finish in slot.moved:
                spans.append(Span(f"{names[src]} -> {names[dst]}", runtime.tensor_name(plan.tensors[t]), start, finish, {}))
        return sorted(spans, key=lambda span: span.start)

    def segment_seconds(self, *, last: bool = False) -> NDArray[np.float64]:
        """``float64[S]``, median seconds of each segment over many runs, or of the last one; zero if it runs nothing."""
        return seconds_of(self._samples, last=last)

    def op_done(self, request: int, op: int, start: float, finish: float, error: BaseException | None) -> None:
        """Take a device's report that a segment ended."""
        self._slots[request].ran.append((op, start, finish))
        self._samples[op].append(finish - start)
        if error is not None and not isinstance(error, PlaceitError):
            segment = self.plan.segments[op]
            first, device = self.runtime.op_names(segment)[0], self.runtime.devices[segment.device]
            error = _failure(f"The segment that starts with '{first}' failed on {device.name}", error)
        self._advance(self._scheduler.op_finished, request, op, error=error)

    def transfer_done(
        self, request: int, tensor: int, src: int, dst: int, start: float, finish: float, error: BaseException | None
    ) -> None:
        """Take a link's report that a transfer ended."""
        self._slots[request].moved.append((tensor, src, dst, start, finish))
        if error is not None and not isinstance(error, PlaceitError):
            name, names = self.runtime.tensor_name(self.plan.tensors[tensor]), self.runtime.cluster.names
            error = _failure(f"Moving '{name}' from {names[src]} to {names[dst]} failed", error)
        self._advance(self._scheduler.transfer_finished, request, tensor, dst, error=error)

    def _advance(self, event: Callable[..., list[Instruction]], *args: int, error: PlaceitError | None = None) -> None:
        """Tell the scheduler of an event and start what it asks for."""
        with self._lock:
            try:
                self._follow(event, args, error)
            except Exception as failure:  # noqa: BLE001 (whatever it is, somebody waits for this thread to tell)
                self._lost = True
                self._error = failure if isinstance(failure, PlaceitError) else _failure("The run cannot go on", failure)
                for slot in self._slots:
                    slot.finished.set()

    def _follow(self, event: Callable[..., list[Instruction]], args: tuple[int, ...], error: PlaceitError | None) -> None:
        scheduler = self._scheduler
        todo: deque[Instruction] = deque()
        if error is not None:
            self._error = self._error or error
            self._waiting = 0
            todo.extend(scheduler.abort(args[0]))  # before the event, or what reads from a failed segment would start
        todo.extend(event(*args))
        while todo:
            step = todo.popleft()
            slot = self._slots[step.request]
            if type(step) is Start:
                run = slot.starts[step.op]
                if run is None:
                    todo.extend(scheduler.op_finished(step.request, step.op))
                else:
                    self.runtime.devices[step.device].start(*run)
            elif type(step) is Transfer:
                copy = slot.copies.get((step.tensor, step.dst))
                if copy is None:
                    todo.extend(scheduler.transfer_finished(step.request, step.tensor, step.dst))
                else:
                    src, source, destination, done = copy
                    self.runtime.transports[src, step.dst].start(source, destination, done)
            elif self._waiting:
                self._waiting -= 1
                todo.extend(scheduler.begin(step.request))
            else:
                slot.end = perf_counter()
                slot.finished.set()


def _failure(what: str, error: BaseException) -> ExecutionError:
    failure = ExecutionError(f"{what}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
