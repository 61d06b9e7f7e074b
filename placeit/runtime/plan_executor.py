"""Base class of executors: how they are called, and what errors, interrupts, time-outs and closing mean."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.backends.base import Arrays, Sample, checked_inputs
from placeit.core.errors import ExecutionError, NoRoomError, PlaceitError, UsageError, forget_frames
from placeit.core.threads import CHECK_S
from placeit.planning.in_flight import in_service
from placeit.planning.segments import Plan
from placeit.runtime.active_run import ActiveRun
from placeit.runtime.device_stats import DeviceStats
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.feed import Bell, Feed, Slots
from placeit.runtime.slots import Slot
from placeit.runtime.spans import Labels, Moved, Ran, Span, Timed

__all__ = [
    "PlanExecutor",
    "Serving",
    "check_process",
    "check_requests",
    "empty_samples",
    "failure_of",
    "seconds_of",
    "to_serve",
    "with_room",
]

_KEPT_SAMPLES = 1000  # most times kept of a segment


def empty_samples(segments: int) -> list[deque[float]]:
    """Make empty buffers for the times of each segment in its last runs."""
    return [deque(maxlen=_KEPT_SAMPLES) for _ in range(segments)]


def seconds_of(samples: Sequence[deque[float]], *, last: bool) -> NDArray[np.float64]:
    """Return each segment's median seconds, or those in its last run, ``float64[S]``; zero if there are no samples."""
    seconds = np.zeros(len(samples))
    for s, times in enumerate(samples):
        if times:
            seconds[s] = times[-1] if last else np.median(times)
    return seconds


def failure_of(what: str, error: BaseException, said: str = "") -> ExecutionError:
    """Wrap ``error`` for the caller of a run as "what: reason", dropping the prefix ``said`` from the reason."""
    known = isinstance(error, PlaceitError)
    failure = ExecutionError(f"{what}: {'' if known else f'{type(error).__name__}: '}{str(error).removeprefix(said)}")
    failure.__cause__ = (error.__cause__ if known else None) or error
    return failure


def check_process(process: int) -> None:
    """Raise ExecutionError if this process was forked from ``process``: it lacks the threads of the devices."""
    if os.getpid() != process:
        raise ExecutionError(
            "This process was forked from the one that opened the session, and the threads that run it stayed there: open a "
            "session in this process."
        )


def check_out(out: Mapping[str, NDArray[Any]], wanted: Mapping[str, BufferSpec], inputs: Arrays) -> None:
    """Raise UsageError if outputs cannot be written to some arrays."""
    others = [(f"the input '{name}'", value) for name, value in inputs.items()]
    for name, array in out.items():
        if name not in wanted:
            raise UsageError(f"'out' has '{name}', and the model has no such output; its outputs are {', '.join(wanted)}.")
        spec = wanted[name]
        if not isinstance(array, np.ndarray) or not array.flags.writeable:
            raise UsageError(f"'out' needs a NumPy array that can be written to for '{name}'.")
        shape = array.shape if spec.limits is not None else spec.shape
        if array.dtype != np.dtype(spec.dtype) or array.shape != shape:
            raise UsageError(f"'out' has {array.dtype} {list(array.shape)} for '{name}', which is {spec.dtype} {list(shape)}.")
        for other, memory in others:
            if isinstance(memory, np.ndarray) and np.may_share_memory(array, memory):
                raise UsageError(f"'out' has an array for '{name}' that shares memory with {other}: use another one.")
        others.append((f"the array for '{name}'", array))


def check_requests(in_flight: int) -> None:
    """Raise UsageError if ``in_flight`` is below 1."""
    if in_flight < 1:
        raise UsageError(f"An executor is made for at least one request in flight; got {in_flight}.")


class Serving:
    """A call of ``serve``.

    Args:
        run: the run of its requests.
        in_flight: how many requests outside sequences may be in flight.
        slots: slots to take numbers from, if other threads take some, too; else None.

    Attributes:
        item: the request that the thread is working for; None if it works for no request, or for several.
        flying: the requests in flight, by their numbers; requests of sequences have higher numbers than all others.
    """

    def __init__(self, run: ActiveRun, in_flight: int, slots: Slots | None) -> None:
        self.run, self._in_flight, self._slots = run, in_flight, slots
        self._free = [*range(in_flight)][::-1]
        self.item: Any = None
        self.flying: dict[int, Any] = {}

    def reserve(self) -> int | None:
        """Take a number for a request to begin; None if as many requests as possible are in flight."""
        if self._slots is not None:
            return self._slots.reserve()
        return self._free.pop() if self._free else None

    def give_back(self, number: int) -> None:
        """Free a number, unless it belongs to a sequence."""
        if number < self._in_flight:
            self._free.append(number) if self._slots is None else self._slots.release(number)

    def ended(self, number: int) -> None:
        """Remove a request from those in flight, and free its number."""
        del self.flying[number]
        self.give_back(number)


class PlanExecutor(ABC):
    """A plan, ready to run. Use it as a context manager, or call :meth:`close`.

    Whether it runs on lanes or on streams, an executor keeps these rules:

    - Every request starts from the model's initial state, if it has any. Threads that share an executor take turns.
    - All decisions are made where no signal handler can interrupt them: in C++, or on the threads of devices.
    - After a failure nothing more of the run starts, what has started ends, and then the first error is raised, as an
      ExecutionError. The executor stays usable, and so does every other one on the same devices.
    - After a time-out, or an exception that a signal handler raises in the thread that waits, nothing more starts, and the call
      ends without waiting. Segments that have started end by themselves. The next call waits for them, within its own time-out.
    - :meth:`close` waits for a run of another thread. It does not wait for segments of a run that was given up; memory is
      released when they have ended.
    - When the runtime is closed, runs end as after a failure, with an error that says so, and no other begins.
    - A run inside a run, as a signal handler might ask for it, and any use in a forked process raise an ExecutionError.

    Args:
        plan: what to run.
        in_flight: how many requests may be in flight at once.
        inputs: of the model, by name.

    Attributes:
        uncounted: seconds that the last :meth:`times` took, divided by the seconds that it returned; 1 for one request.
        inner: seconds of the last :meth:`times` or :meth:`run` from the time when lanes began to the end of the last segment.

    Raises:
        UsageError: ``in_flight`` is below 1.
    """

    def __init__(self, plan: Plan, in_flight: int, inputs: Mapping[str, BufferSpec]) -> None:
        check_requests(in_flight)
        self.plan, self.in_flight, self.inputs = plan, in_flight, inputs
        self._process = os.getpid()
        self._turn = threading.RLock()  # taken by threads that call
        self._lock = threading.Lock()  # of the state that lanes share
        self._waiting = threading.Lock()  # taken by the calling thread while it waits for its run
        self._run: ActiveRun | None = None  # the last one
        self._closed = False
        self._lost = False  # whether it is unknown what still runs
        self.uncounted, self.inner = 1.0, 0.0
        self._given: dict[int, Mapping[str, NDArray[np.generic]]] = {}  # the inputs in place, by request, as they were given
        self._timed_on: Sequence[Sample] = ()  # requests that times() runs, if there are several
        # restore the state before a request; by the number of slots and the number of the request
        self._before: dict[int, dict[int, Callable[[], None]]] = {}
        self._has_state = False  # whether the model keeps state

    # -- parts that differ between lanes; called in turn and, except _start, while nothing runs -------------------------

    @property
    @abstractmethod
    def native(self) -> bool:
        """True if runs need no Python from their begin to their end."""

    @property
    def stays(self) -> bool:
        """True if :meth:`serve` may wait for requests while none is in flight."""
        return False

    @property
    def spun_s(self) -> float:
        """Seconds that threads of lanes have spun, that is, waited awake."""
        return 0.0

    @property
    @abstractmethod
    def host_paced(self) -> tuple[str, ...]:
        """Names of devices with streams on which nothing is launched ahead: the host waits for the end of each segment."""

    @property
    @abstractmethod
    def labels(self) -> Labels:
        """Names of its segments, tensors and devices."""

    @property
    def window(self) -> tuple[float, float]:
        """When lanes began the last call of :meth:`times`, and when they ended, in seconds of ``time.perf_counter``."""
        run = self._run
        return (0.0, 0.0) if run is None else (run.begin, run.end)

    @abstractmethod
    def last_run(self) -> list[tuple[int, Sequence[Ran], Sequence[Moved]]]:
        """Return the segments and transfers of each request of the last call, with its number among those in flight.

        After a call of more requests than can be in flight at once, these are the last ones.
        """

    def spans(self) -> list[Span]:
        """Return the spans of :meth:`last_run`, by start: one per segment and transfer, on a track per device and link."""
        spans = [span for request in self.last_run() for span in self.labels.spans(*request)]
        return sorted(spans, key=lambda span: span.start)

    @abstractmethod
    def segment_seconds(self, *, last: bool = False) -> NDArray[np.float64]:
        """Return each segment's median seconds over many runs, or its last ones, ``float64[S]``; zero if it runs nothing."""

    @abstractmethod
    def _prepare(self, count: int, bell: Bell | None = None) -> ActiveRun:
        """Prepare a run of ``count`` requests or, with a bell to ring at each end, of requests that are admitted later."""

    @abstractmethod
    def _admit(self, run: ActiveRun, request: int, inputs: Mapping[str, NDArray[np.generic]]) -> None:
        """Begin one more request of a run with a bell, on inputs that were checked, unless the run has been stopped."""

    @abstractmethod
    def _admit_no_more(self, run: ActiveRun) -> None:
        """Have a run with a bell be over when nothing of it is in flight."""

    @abstractmethod
    def _ended(self, run: ActiveRun) -> list[int]:
        """Return the numbers of the requests of a run with a bell that have ended since the last call.

        ``run.failures`` says which of them have failed.
        """

    @abstractmethod
    def _outcome(self, run: ActiveRun, request: int) -> tuple[dict[str, NDArray[np.generic]], Sequence[Ran], Sequence[Moved]]:
        """Return copies of the outputs of a request that has ended, and its segments and transfers with their times."""

    def open_slot(self) -> Slot:
        """Make a slot for the requests of one sequence, each of which continues from the state that the one before has left.

        These requests have the slot's number in :meth:`serve`. Other requests may run during this call.

        Raises:
            UsageError: devices of the plan do not keep state.
            DeviceError: there is no room for buffers.
            ExecutionError: the executor is closed.
        """
        raise UsageError(
            "This placement runs on streams of an accelerator, which keep no state from one request to the next: place the "
            "model on CPU core sets, or on other devices that OpenVINO drives."
        )

    @property
    def room_for_state(self) -> dict[str, float]:
        """Bytes that its devices may hold besides the plan's weights, by device name; ``inf`` if that is not known."""
        problem, used = self.plan.problem, [0.0] * self.plan.problem.devices
        for segment, weights in zip(self.plan.segments, problem.param_bytes.tolist(), strict=False):
            used[segment.device] += weights
        return dict(zip(problem.device_names, (problem.memory - used).tolist(), strict=True))

    def join(self, queue: _core.RequestQueue, bell: Bell, every: int) -> int | None:  # noqa: ARG002
        """Have a queue of requests run them here while it serves, if they need no Python for that, and ring a bell for others.

        Args:
            queue: the queue.
            bell: of the thread that serves.
            every: for a candidate, which takes one request in ``every``, one at a time; 0 for any other executor.

        Returns:
            The number of the executor in the queue; None if its requests need Python.
        """
        return None

    def told(self, number: int, ran: Sequence[Ran]) -> tuple[tuple[Ran, ...], tuple[Moved, ...]]:
        """Return the segments and transfers of a request of such a queue, from its number and the queue's record ``ran``."""
        raise NotImplementedError

    def close_slot(self, slot: Slot) -> None:  # noqa: B027 (there may be none)
        """Release a slot of :meth:`open_slot`, in which nothing is running. A second call has no effect."""

    def devices(self) -> list[DeviceStats]:
        """Return the state and counts of each device of its cluster, whether the plan uses it or not."""
        return [DeviceStats(name) for name in self.plan.problem.device_names]

    @property
    def gone(self) -> PlaceitError | None:
        """Error that a device is lost, so that nothing can run here any more; else None."""
        return None

    @abstractmethod
    def _start(self, run: ActiveRun) -> None:
        """Have lanes begin a run; they open ``run.over`` when it has ended."""

    @abstractmethod
    def _running(self, run: ActiveRun) -> list[str]:
        """Describe the segments and transfers of a run that are on devices and links."""

    @abstractmethod
    def _check_lanes(self) -> None:
        """Raise ExecutionError if the thread of a lane has ended."""

    @abstractmethod
    def _write(self, inputs: Mapping[str, NDArray[np.generic]], request: int) -> None:
        """Copy checked inputs into place."""

    @property
    @abstractmethod
    def outputs_wanted(self) -> Mapping[str, BufferSpec]:
        """Shape and type of each output of the model, by name."""

    @abstractmethod
    def _read(self, request: int, given: Mapping[str, NDArray[Any]] = {}) -> dict[str, NDArray[np.generic]]:
        """Return copies of the outputs, and arrays of the caller's for outputs that were written there, by name."""

    @abstractmethod
    def _blank(self, sentinel: int) -> str | None:
        """Implement :meth:`blank`."""

    @abstractmethod
    def _release(self) -> None:
        """Release buffers and programs; it may be called again if it was interrupted."""

    @contextlib.contextmanager
    def _sequences(self, slots: int) -> Iterator[Callable[[bool], Callable[[], None]]]:  # noqa: ARG002
        """Have each request of a block continue from the state that the one before has left in the same slot.

        Yields:
            A function that returns another one, which restores the states at the time of the first call. Its argument says
            whether these are the initial states.
        """
        yield lambda _: lambda: None

    def _blend(self, found: Sequence[Timed], runs: int) -> None:  # noqa: ARG002
        """Replace the times of the last ``runs`` runs by the mean of ``found``, which counts as one run."""
        raise UsageError("This executor is timed on one request.")

    def _pass_time(self, run: ActiveRun) -> None:  # noqa: B027 (for lanes of a virtual clock)
        """Make a run end, on lanes on which nothing ends by itself."""

    def _end_lanes(self) -> None:  # noqa: B027 (lanes may be the runtime's)
        """Stop the executor's own threads, which have nothing to do any more; without the lock."""

    # -- parts that are common to all lanes ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release buffers and programs. A second call has no effect."""
        if os.getpid() != self._process:
            return
        with self._turn:
            self._closed = True
            if self._run is not None:
                self._run.stop()
            with self._lock:
                ended = self._let_go()
            if ended:
                self._end_lanes()

    def _let_go(self) -> bool:
        """Release everything if the executor is closed and nothing runs any more; return whether it did; with the lock."""
        if not self._closed or self._lost or not (self._run is None or self._run.quiet):
            return False
        self._release()
        self._given.clear()
        self._before.clear()
        self._run = None  # to break a cycle: it refers to released objects, which refer to this executor
        return True

    def give_up(self, why: str) -> None:
        """End a run of any thread, if there is one: nothing more of it starts, and an ExecutionError tells its caller why."""
        run = self._run
        if run is not None and not run.over.is_open:
            run.error = run.error or ExecutionError(why)
            run.stop()

    def set_inputs(self, inputs: Mapping[str, NDArray[np.generic]], *, request: int = 0) -> None:
        """Copy the model's inputs into place, from which each run reads them.

        :meth:`times` copies these arrays again, so they must not change.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or type than the model wants.
            ExecutionError: the executor is closed.
        """
        self._check_open()
        with self._turn:
            self._settle()
            self._write(checked_inputs(inputs, self.inputs), request)
            self._given[request] = inputs

    def set_requests(self, requests: Sequence[Sample]) -> None:
        """Set the requests that :meth:`times` runs, and copy the inputs of the first into place.

        Raises:
            UsageError, ExecutionError: as :meth:`set_inputs` does.
        """
        checked = [Sample(checked_inputs(request.inputs, self.inputs), request.share) for request in requests]
        self.set_inputs(checked[0].inputs)
        self._timed_on = checked if len(checked) > 1 else ()
        self._before.clear()

    @property
    def most_overlapping(self) -> float:
        """Most requests of :meth:`times` that may overlap: for sequences, the number in flight; else infinite."""
        return self.in_flight if self._timed_on and self._has_state else math.inf

    def outputs(self, *, request: int = 0) -> dict[str, NDArray[np.generic]]:
        """Return copies of the outputs of the last run, by name. Raises ExecutionError if the executor is closed."""
        self._check_open()
        with self._turn:
            self._settle()
            return self._read(request)

    def run(
        self, inputs: Arrays, *, timeout: float | None = None, out: Mapping[str, NDArray[Any]] | None = None
    ) -> dict[str, NDArray[np.generic]]:
        """Run once and return the outputs by name.

        Later runs do not change the returned arrays.

        Args:
            inputs: by name.
            timeout: seconds; see :meth:`times`.
            out: arrays to write outputs to, by name, which are returned in their place. Where devices can, they write there
                directly; else the output is copied there.

        Raises:
            UsageError: an input, or an array in ``out``, is missing, unknown, or has another shape or type than the model's, or
                an array cannot be written to or shares memory with another one.
            ExecutionError: see :meth:`times`.
        """
        deadline = math.inf if timeout is None else self._deadline(timeout)
        with self._turn:
            self._settle(deadline)
            if out is not None:
                check_out(out, self.outputs_wanted, inputs)
            outputs = self._called({0: inputs}, 1, deadline, out or {})
            self._given[0] = inputs
            return outputs

    def time(self, *, timeout: float | None = None) -> float:
        """Run once on the inputs in place and return the seconds from the call to its answer: :meth:`times` of one request."""
        return self.times(1, timeout=timeout)

    def times(self, count: int, *, timeout: float | None = None) -> float:
        """Run ``count`` requests, as many in flight as the executor was made for, and return the seconds of all of them.

        The seconds are from the call to the answer, as a caller of :meth:`run` sees them: for each request in flight, inputs
        are checked and copied into place, and the outputs are copied. ``inner`` has the seconds of the lanes alone.

        With several requests (:meth:`set_requests`), it runs ``count`` of each, and returns the mean of their seconds, weighted
        by their shares. If the model keeps state, the requests are one sequence, and ``count`` such sequences run at the same
        time; sequences beyond the number in flight run after the others have ended. Requests that only lead to others (share 0)
        run in the first call: later calls begin in the middle of the sequence, from the state that it had there. Spans and
        times of segments are weighted means, too.

        Args:
            count: how many requests.
            timeout: seconds until an ExecutionError says what still runs, also of an earlier run or a run of another thread;
                None to wait without limit.

        Raises:
            ExecutionError: a segment or a transfer failed, something has been closed, or it takes longer than ``timeout``.
            UsageError: ``count`` is below 1, or ``timeout`` is not positive.
        """
        if count < 1:
            raise UsageError(f"There must be at least one request to run; got {count}.")
        deadline = self._deadline(timeout)
        with self._turn:
            if self._timed_on:
                return self._mean_times(count, deadline)
            self._settle(deadline)
            begin = perf_counter()
            self._called({number: one for number, one in self._given.items() if number < count}, count, deadline)
            return perf_counter() - begin

    def serve(self, feed: Feed) -> None:
        """Run the requests of a feed, each as soon as a request in flight has ended, until the feed has no more.

        The feed is told of a request that fails. Where possible, other requests go on. Otherwise the failure ends the run, and
        the other requests in flight have to begin again; if this raises, all of them have to. The executor can be used again,
        unless :meth:`check` raises. The next call waits for segments that still run.

        Raises:
            ExecutionError: something has been closed, a thread has died, or it is unknown which request has failed.
            DeviceError: a device is lost.
            Exception: an error that was not raised on behalf of a single request.
        """
        with self._turn:
            self._check_known()
            self._settle()
            serving = Serving(self._prepare(0, feed.bell), self.in_flight, feed.slots)
            run = serving.run
            item, number = _next(feed, serving)
            if item is None and not feed.stays():
                return
            try:
                self._serve(feed, serving, item, number)
            except BaseException as error:
                run.stop()
                self._admit_no_more(run)
                if serving.item is None or self.gone is not None or not isinstance(error, Exception):
                    raise
                forget_frames(error)  # its frames, as this one, hold the request, which is to hold the error
                feed.failed(serving.item, failure_of("This request could not be served", error.with_traceback(None)))
                return
            if run.error is None:
                if run.stopped:
                    raise ExecutionError("This executor was closed in the middle of a run: make a new one.")
            elif (gone := self.gone) is not None:
                raise gone
            elif run.failed in serving.flying:
                feed.failed(serving.flying[run.failed], run.error)
            else:
                raise run.error

    def _serve(self, feed: Feed, serving: Serving, item: Any, number: int) -> None:
        """Run requests until none is left, or the run is stopped, and nothing of it runs any more."""
        run = serving.run
        self._run = run
        if feed.slots is None:
            self._start(run)
        else:
            feed.slots.open()
        while not run.stopped:
            while item is not None and not run.stopped:
                serving.item = item
                try:
                    inputs = checked_inputs(item.inputs, self.inputs)  # their owner may have changed them
                except UsageError as error:
                    serving.give_back(number)
                    feed.failed(item, failure_of("This request could not be served", error), begun=False)
                else:
                    serving.flying[number] = item
                    self._admit(run, number, inputs)
                serving.item = None
                item, number = _next(feed, serving)
            if not (serving.flying or feed.stays()) and (feed.slots is None or feed.slots.retire()):
                break
            self._pass_time(run)
            if not run.stopped:
                feed.bell.wait(min(CHECK_S, feed.patience()))
            self._hand_over(feed, serving)
            self._check_lanes()
            if not serving.flying and (gone := self.gone) is not None:
                raise gone
            if not run.stopped:
                item, number = _next(feed, serving)
        self._admit_no_more(run)
        self._wait(run, math.inf)
        self._hand_over(feed, serving)

    def _hand_over(self, feed: Feed, serving: Serving) -> None:
        """Report requests that have ended to the feed."""
        for number in self._ended(serving.run):
            mine = number in serving.flying
            item = serving.flying[number] if mine else feed.at(number)
            if item is None:
                continue
            if number in serving.run.failures and (gone := self.gone) is not None:
                raise gone
            serving.item = item
            if number in serving.run.failures:
                feed.failed(item, serving.run.failures.pop(number))
            elif mine:
                feed.ended(item, *self._outcome(serving.run, number))
            if mine:
                serving.ended(number)
            serving.item = None

    def blank(self, sentinel: int) -> str | None:
        """Fill everything that a run writes (outputs, tensors between segments) with NaN, or a sentinel for other types.

        Tensors that the next run does not write, or writes too late, then show (:mod:`placeit.measuring.check`).

        Args:
            sentinel: 0 or 1.

        Returns:
            A message that names a segment or transfer that has written when nothing should have been written, as far as that
            can be told; None if there was no such write. Between two calls without a run, this is any write. Otherwise, it is a
            write after the end was reported.
        """
        self._check_open()
        with self._turn:
            self._settle()
            return self._blank(sentinel)

    def _mean_times(self, count: int, deadline: float) -> float:
        """Run ``count`` of each of several requests, as :meth:`times` does; for the thread whose turn it is."""
        self._settle(deadline)
        found, runs, slots, all_inner = list[Timed](), 0, min(count, self.in_flight), 0.0
        at_once, known = slots if self._has_state else count, self._before.get(slots, {})
        before = dict(known)
        with self._sequences(slots) as restart:
            for number, request in enumerate(self._timed_on):
                if not request.share and (known or not self._has_state):
                    continue  # it only leads to others
                if number in before:
                    before[number]()
                elif self._has_state and request.share:
                    before[number] = restart(number == 0)
                given = dict.fromkeys(range(slots), request.inputs)
                left, seconds, inner = count if request.share else at_once, 0.0, 0.0
                while left:
                    now, begin = min(left, at_once), perf_counter()
                    self._called(given, now, deadline)
                    seconds, inner = seconds + perf_counter() - begin, inner + self.inner
                    left, runs = left - now, runs + now
                    if left and self._has_state:
                        before[number]()
                found.append(Timed(request.share, seconds, self.window[0], *self.last_run()[0][1:]))
                all_inner += request.share * inner
            self._before[slots] = before
            self._blend(found, runs)
        counted, self.inner = sum(one.share * one.seconds for one in found), all_inner
        self.uncounted = sum(one.seconds for one in found) / counted
        return counted

    def _called(
        self,
        inputs: Mapping[int, Mapping[str, NDArray[np.generic]]],
        count: int,
        deadline: float,
        out: Mapping[str, NDArray[Any]] = {},
    ) -> dict[str, NDArray[np.generic]]:
        """Run requests as a caller does, on inputs by their numbers, and return the outputs of the first."""
        for request, given in inputs.items():
            self._put(checked_inputs(given, self.inputs), request)
        there = self._write_to(out) if out else ()
        self._times(count, deadline)
        outputs = self._read(0, {name: out[name] for name in there})
        for request in range(1, min(count, self.in_flight)):
            self._read(request)
        for name, array in out.items():
            if name not in there:
                if array.shape != outputs[name].shape:
                    raise UsageError(f"The output '{name}' is {list(outputs[name].shape)}, and 'out' has {list(array.shape)}.")
                array[...] = outputs[name]
            outputs[name] = array
        return outputs

    def _put(self, inputs: Mapping[str, NDArray[np.generic]], request: int) -> None:
        """Have a request read checked inputs, which must not change until it has ended."""
        self._write(inputs, request)

    def _write_to(self, out: Mapping[str, NDArray[Any]]) -> Collection[str]:  # noqa: ARG002
        """Have the next run write outputs to some arrays; return the names of the outputs that it does write there."""
        return ()

    def _times(self, count: int, deadline: float) -> None:
        """Run requests; for the thread whose turn it is."""
        self._check_known()
        self._settle(deadline)
        if self._waiting.locked():
            raise ExecutionError("A run was started inside another run of the same executor, perhaps by a signal handler.")
        run = self._prepare(count)
        run.deadline = deadline
        try:
            with self._waiting:
                self._run = run
                self._start(run)
                self._wait(run, deadline)
        except BaseException:
            run.stop()
            raise
        if run.error is not None:
            raise run.error
        if run.stopped:
            raise ExecutionError("This executor was closed in the middle of a run: make a new one.")
        self.inner = run.end - run.begin

    def _deadline(self, timeout: float | None) -> float:
        """Return the time at which to stop waiting. Until then, wait for a run of another thread, which may never end."""
        self._check_open()
        if timeout is None:
            return math.inf
        if not timeout > 0:
            raise UsageError(f"'timeout' must be a positive number of seconds; got {timeout}.")
        deadline = perf_counter() + timeout
        self._await_others(deadline)
        return deadline

    def _await_others(self, deadline: float) -> None:
        """Wait for the run of another thread. Raises ExecutionError if it does not end in time."""
        run = self._run
        if run is not None and run.thread != threading.get_ident():
            self._wait(run, deadline)

    def settle(self) -> None:
        """Wait for segments and transfers that still run after a run has ended by an exception.

        Raises:
            ExecutionError: something has been closed, or a thread has died.
        """
        with self._turn:
            self._settle()

    def check(self) -> None:
        """Raise the reason, an ExecutionError or a DeviceError, if nothing can run here any more."""
        self._check_open()
        self._check_known()
        if (gone := self.gone) is not None:
            raise gone
        self._check_lanes()

    def _check_open(self) -> None:
        check_process(self._process)
        if self._closed:
            raise ExecutionError("This executor is closed: make a new one.")

    def _check_known(self) -> None:
        if self._lost:
            raise ExecutionError("After an earlier error this executor does not know what still runs: make a new one.")

    def _settle(self, deadline: float = math.inf) -> None:
        """Wait for the rest of a run that its caller does not wait for any longer. Raises ExecutionError if it is closed."""
        self._check_open()
        run = self._run
        if run is None:
            return
        if not run.quiet and not run.stopped and not self._waiting.locked():
            run.stop()  # an interrupt came before its caller could stop it
        if run.stopped:
            with self._lock:
                quiet = run.quiet
            if not quiet:
                self._wait(run, deadline)

    def _wait(self, run: ActiveRun, deadline: float) -> None:
        """Wait for a run to end. Raises ExecutionError if it does not in time, or if it never will."""
        if not run.quiet:
            self._pass_time(run)
        while not run.quiet:
            if run.over.wait(max(0.0, min(CHECK_S, deadline - perf_counter()))):
                return
            if perf_counter() >= deadline:
                with self._lock:
                    raise self._late(run)
            if not run.quiet:
                self._check_lanes()

    def _late(self, run: ActiveRun) -> ExecutionError:
        """Return the error of a run that has not ended in time; with the lock."""
        return self._overdue(self._running(run))

    def _overdue(self, running: Sequence[str]) -> ExecutionError:
        """Return the error of a run that has not ended in time, from what is on devices and links."""
        return ExecutionError(
            f"The time-out is over, and the run is not: {_said(running)}. The executor can be used again when that has ended; "
            "if a device hangs, open a new session."
        )


def _next(feed: Feed, serving: Serving) -> tuple[Any, int]:
    """Take the next request of a feed, and a number for it; None, and any number, if the feed has no request."""
    number = serving.reserve()
    item = None
    try:
        item = feed.take(room=number is not None)
    finally:
        if number is not None and (item is None or item.slot is not None):
            serving.give_back(number)
    if item is not None and item.slot is not None:
        return item, item.slot
    return item, -1 if number is None else number


def _said(running: Sequence[str]) -> str:
    return f"still running: {', '.join(running)}" if running else "none of it has started, as its device is busy"


def with_room(open_for: Callable[..., PlanExecutor], in_flight: int) -> PlanExecutor:
    """Open an executor for ``in_flight`` requests in flight, or for as many as there is room for, if that is fewer."""
    while True:
        try:
            return open_for(in_flight=in_flight)
        except NoRoomError:
            if in_flight == 1:
                raise
            in_flight -= 1


def to_serve(open_for: Callable[..., PlanExecutor], plan: Plan, in_flight: int | None) -> PlanExecutor:
    """Open a plan's executor for a server, for ``in_flight`` requests; None for as many as it needs and there is room for."""
    if in_flight is not None:
        return open_for(plan, in_flight=in_flight)
    return with_room(functools.partial(open_for, plan), in_service(plan))
