"""Base class of executors: how they are called, and what errors, interrupts, time-outs and closing mean."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, Sample
from placeit.backends.checking import checked_inputs
from placeit.core.arrays import GpuArray
from placeit.core.errors import ExecutionError, NoRoomError, UsageError
from placeit.planning.in_flight import in_service
from placeit.planning.segments import Plan
from placeit.runtime.calls import check_memory, checked_out
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.serving_loop import ServingLoop
from placeit.runtime.spans import Timed

__all__ = ["PlanExecutor", "to_serve", "with_room"]


class PlanExecutor(ServingLoop):
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
        priority: of several executors whose work waits for a device, the one with the lowest number goes first.

    Attributes:
        uncounted: seconds that the last :meth:`times` took, divided by the seconds that it returned; 1 for one request.
        inner: seconds of the last :meth:`times` or :meth:`run` from the time when lanes began to the end of the last segment.

    Raises:
        UsageError: ``in_flight`` is below 1.
    """

    def __init__(self, plan: Plan, in_flight: int, inputs: Mapping[str, BufferSpec], priority: int = 0) -> None:
        super().__init__(plan, in_flight, inputs)
        self.priority = priority
        self.uncounted, self.inner = 1.0, 0.0
        self._timed_on: Sequence[Sample] = ()  # requests that times() runs, if there are several

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
            self._write(self.checked(inputs), request)
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
        self,
        inputs: Arrays,
        *,
        timeout: float | None = None,
        out: Mapping[str, Any] | None = None,
        on: Literal["host", "device"] = "host",
    ) -> dict[str, Any]:
        """Run once and return the outputs by name.

        Later runs do not change the returned arrays.

        Args:
            inputs: by name: arrays of NumPy, or of any library with DLPack or CUDA's array interface. An array on a GPU is read
                there if streams drive all devices, and only that GPU reads the input; else it is copied to the host first.
            timeout: seconds; see :meth:`times`.
            out: arrays to write outputs to, by name, which are returned in their place. Where devices can, they write there
                directly; else the output is copied there. An array on a GPU has to be on the one that computes the output.
            on: where other outputs are returned. On ``host``, they are NumPy arrays. On ``device``, outputs that a GPU computes
                stay in its memory, as arrays of CuPy, or tensors of PyTorch for a PyTorch model, if streams drive all devices.

        Raises:
            UsageError: an input, or an array in ``out``, is missing, unknown, or has another shape or type than the model's, or
                an array cannot be written to or shares memory with another one; ``on`` is something else.
            ExecutionError: see :meth:`times`.
        """
        check_memory(on)
        deadline = math.inf if timeout is None else self._deadline(timeout)
        with self._turn:
            self._settle(deadline)
            places = {} if out is None else checked_out(out, self.outputs_wanted, inputs)
            places = {n: self.adopted(n, to) if isinstance(to, GpuArray) else to for n, to in places.items()}
            if on == "device":
                places = {**self.on_device(), **places}
            outputs = self._called({0: inputs}, 1, deadline, places)
            self._given[0] = inputs
            return outputs if out is None else {**outputs, **out}

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
        out: Mapping[str, NDArray[np.generic] | GpuArray] = {},
    ) -> dict[str, Any]:
        """Run requests as a caller does, on inputs by their numbers, and return the outputs of the first."""
        for request, given in inputs.items():
            self._put(self.checked(given), request)
        there = self._write_to(out) if out else ()
        self._times(count, deadline)
        given_out = {name: to.value if isinstance(to, GpuArray) else to for name, to in out.items()}
        outputs: dict[str, Any] = dict(self._read(0, {name: given_out[name] for name in there}))
        for request in range(1, min(count, self.in_flight)):
            self._read(request)
        for name, array in given_out.items():
            if name not in there:
                if array.shape != outputs[name].shape:
                    raise UsageError(f"The output '{name}' is {list(outputs[name].shape)}, and 'out' has {list(array.shape)}.")
                array[...] = outputs[name]
            outputs[name] = array
        return outputs

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
