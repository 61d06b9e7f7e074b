"""Base class of executors: the calls that run a plan, and their rules for errors, interrupts, time-outs and closing."""

from __future__ import annotations

import contextlib
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
from placeit.core.errors import DeviceError, NoRoomError, UsageError
from placeit.planning.in_flight import in_service
from placeit.planning.segments import Plan
from placeit.runtime.calls import check_memory, checked_out
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.devices.state import fetched
from placeit.runtime.serving_loop import ServingLoop
from placeit.runtime.slots import Continuing, States
from placeit.runtime.spans import Timed

__all__ = ["PlanExecutor", "to_serve", "with_room"]


class PlanExecutor(ServingLoop):
    """Base class of executors: a plan, ready to run. Use it as a context manager, or call :meth:`close`.

    Executors on lanes and on streams keep these rules:

    - Every request starts from the model's initial state, if it has any. Threads that share an executor take turns.
    - All decisions are made where no signal handler can interrupt them: in C++, or on the threads of devices.
    - After a failure, nothing more of the run starts, segments that have started end, and then the first error is raised, as an
      ExecutionError. The executor stays usable, and so do all other executors on the same devices.
    - After a time-out, or an exception that a signal handler raises in the thread that waits, nothing more starts, and the call
      ends without waiting. Segments that have started end by themselves. The next call waits for them, within its own time-out.
    - :meth:`close` waits for a run of another thread. It does not wait for segments of an abandoned run: memory is released
      when they have ended.
    - When the runtime is closed, runs end as after a failure, with an error that says so, and no other run begins.
    - A run inside another run, which a signal handler might start, and any use in a forked process raise an ExecutionError.

    Args:
        plan: the plan to run.
        in_flight: maximum number of requests in flight at once.
        inputs: shape and type of each input of the model, by name.
        priority: among executors whose work waits for a device, the one with the lowest number goes first.

    Attributes:
        uncounted: seconds that the last :meth:`times` took, divided by the seconds that it returned; 1 for one request.
        inner: seconds of the last :meth:`times` or :meth:`run`, from the begin of its lanes to the end of the last segment.

    Raises:
        UsageError: ``in_flight`` is below 1.
    """

    def __init__(self, plan: Plan, in_flight: int, inputs: Mapping[str, BufferSpec], priority: int = 0) -> None:
        super().__init__(plan, in_flight, inputs)
        self.priority = priority
        self.uncounted, self.inner = 1.0, 0.0
        self._timed_requests: Sequence[Sample] = ()  # the requests of set_requests(), if there are several
        self._reached: dict[int, States | None] = {}  # of set_requests()

    def set_inputs(self, inputs: Mapping[str, NDArray[np.generic]], *, request: int = 0) -> None:
        """Copy the model's inputs to the buffers that each run reads.

        :meth:`times` copies these arrays again, so they must not change.

        Raises:
            UsageError: an input is missing or unknown, or its shape or type differs from the model's.
            ExecutionError: the executor is closed.
        """
        self._check_open()
        with self._turn:
            self._drain()
            self._write(self.checked(inputs), request)
            self._request_inputs[request] = inputs

    def set_requests(self, requests: Sequence[Sample], reached: dict[int, States | None] | None = None) -> None:
        """Set the requests that :meth:`times` runs, and copy the inputs of the first one to their buffers.

        Args:
            requests: the requests.
            reached: the model's state before requests that count, by their number, as other executors reached it; None for the
                initial state. This executor begins there instead of running the requests that lead to them, and adds what it
                reaches itself.

        Raises:
            UsageError, ExecutionError: see :meth:`set_inputs`.
        """
        checked = [Sample(checked_inputs(request.inputs, self.inputs), request.share) for request in requests]
        self.set_inputs(checked[0].inputs)
        self._timed_requests = checked if len(checked) > 1 else ()
        self._states.clear()
        self._reached = {} if reached is None else reached

    @property
    def max_overlapping(self) -> float:
        """Maximum number of overlapping requests in :meth:`times`: for sequences, the number in flight; else infinite."""
        return self.in_flight if self._timed_requests and self._has_state else math.inf

    def outputs(self, *, request: int = 0) -> dict[str, NDArray[np.generic]]:
        """Return copies of the outputs of the last run, by name. Raises ExecutionError if the executor is closed."""
        self._check_open()
        with self._turn:
            self._drain()
            return self._read(request)

    def run(
        self,
        inputs: Arrays,
        *,
        timeout: float | None = None,
        out: Mapping[str, Any] | None = None,
        on: Literal["host", "device"] = "host",
    ) -> dict[str, Any]:
        """Run one request and return its outputs by name. Later runs do not change the returned arrays.

        Args:
            inputs: arrays by name, of NumPy or any library with DLPack or CUDA's array interface. An array on a GPU is read
                there if streams drive all devices, and only that GPU reads the input; else it is copied to the host first.
            timeout: time limit in seconds; see :meth:`times`.
            out: arrays to write outputs to, by name, which are returned in place of new arrays. Devices that can do so write
                there directly; else the output is copied. An array on a GPU has to be on the GPU that computes the output.
            on: memory of the other outputs. With ``host``, they are NumPy arrays. With ``device``, outputs that a GPU computes
                stay in its memory, as arrays of CuPy, or tensors of PyTorch for a PyTorch model, if streams drive all devices.

        Raises:
            UsageError: an input or an array in ``out`` is missing or unknown, or its shape or type differs from the model's; an
                array cannot be written to, or shares memory with another one; ``on`` is neither ``host`` nor ``device``.
            ExecutionError: see :meth:`times`.
        """
        check_memory(on)
        deadline = math.inf if timeout is None else self._deadline(timeout)
        with self._turn:
            self._drain(deadline)
            targets = {} if out is None else checked_out(out, self.output_specs, inputs)
            targets = {n: self.adopted(n, to) if isinstance(to, GpuArray) else to for n, to in targets.items()}
            if on == "device":
                targets = {**self.on_device(), **targets}
            outputs = self._run_requests({0: inputs}, 1, deadline, targets)
            self._request_inputs[0] = inputs
            return outputs if out is None else {**outputs, **out}

    def time(self, *, timeout: float | None = None) -> float:
        """Run one request on the inputs of :meth:`set_inputs`, and return the seconds until its answer; see :meth:`times`."""
        return self.times(1, timeout=timeout)

    def times(self, count: int, *, timeout: float | None = None) -> float:
        """Run ``count`` requests, ``in_flight`` of them at a time, and return the seconds of all of them together.

        The seconds are from the call to the answer, as a caller of :meth:`run` sees them: for each request in flight, inputs
        are checked and copied to their buffers, and the outputs are copied. ``inner`` has the seconds of the lanes alone.

        With several requests (:meth:`set_requests`), this runs ``count`` of each, and returns the mean of their seconds,
        weighted by their shares. If the model keeps state, the requests are one sequence, and ``count`` such sequences run at
        the same time; sequences beyond the number in flight run after the others have ended. Requests that only lead to others
        (share 0) run in the first call, unless the state that they lead to is known: later calls begin in the middle of the
        sequence, from the state that it had there.
        Spans and times of segments are weighted means, too.

        Args:
            count: number of requests.
            timeout: seconds after which an ExecutionError names the segments and transfers that still run, also of an earlier
                run or a run of another thread; None to wait without limit.

        Raises:
            ExecutionError: a segment or a transfer failed, the executor or its runtime has been closed, or ``timeout`` is over.
            UsageError: ``count`` is below 1, or ``timeout`` is not positive.
        """
        if count < 1:
            raise UsageError(f"There must be at least one request to run; got {count}.")
        deadline = self._deadline(timeout)
        with self._turn:
            if self._timed_requests:
                return self._mean_times(count, deadline)
            self._drain(deadline)
            begin = perf_counter()
            self._run_requests({number: one for number, one in self._request_inputs.items() if number < count}, count, deadline)
            return perf_counter() - begin

    def blank(self, sentinel: int) -> str | None:
        """Fill all memory that a run writes (outputs, tensors between segments) with NaN, or a sentinel for types without NaN.

        So tensors that the next run does not write, or writes too late, can be found (:mod:`placeit.measuring.check`).

        Args:
            sentinel: 0 or 1.

        Returns:
            A message that names a segment or transfer that wrote at a time when it must not write; None if no such write was
            detected. Between two calls without a run, this is any write. Otherwise, it is a write after the end of the segment
            or transfer was reported.
        """
        self._check_open()
        with self._turn:
            self._drain()
            return self._blank(sentinel)

    def _mean_times(self, count: int, deadline: float) -> float:
        """Run ``count`` of each of several requests; see :meth:`times`. Requires the turn."""
        self._drain(deadline)
        timed, runs, slots, mean_inner = list[Timed](), 0, min(count, self.in_flight), 0.0
        batch_size = slots if self._has_state else count
        with self._sequences(slots) as sequences:
            known = self._states.get(slots) or self._begun(sequences, slots)
            states = dict(known)
            for number, request in enumerate(self._timed_requests):
                if not request.share and (known or not self._has_state):
                    continue  # it only leads to others
                if number in states:
                    sequences.set_states(states[number])
                elif self._has_state and request.share:
                    states[number] = sequences.states() if number else [None] * slots
                inputs = dict.fromkeys(range(slots), request.inputs)
                remaining, seconds, inner = count if request.share else batch_size, 0.0, 0.0
                while remaining:
                    batch, begin = min(remaining, batch_size), perf_counter()
                    self._run_requests(inputs, batch, deadline)
                    seconds, inner = seconds + perf_counter() - begin, inner + self.inner
                    remaining, runs = remaining - batch, runs + batch
                    if remaining and self._has_state:
                        sequences.set_states(states[number])
                timed.append(Timed(request.share, seconds, self.window[0], *self.last_run()[0][1:]))
                mean_inner += request.share * inner
            self._states[slots] = states
            for number, (one, *_) in states.items():
                if number not in self._reached:
                    with contextlib.suppress(DeviceError):  # of a node that was lost just now; the next run says so
                        self._reached[number] = None if one is None else {name: fetched(value) for name, value in one.items()}
            self._blend(timed, runs)
        mean, self.inner = sum(one.share * one.seconds for one in timed), mean_inner
        self.uncounted = sum(one.seconds for one in timed) / mean
        return mean

    def _begun(self, sequences: Continuing, slots: int) -> dict[int, Sequence[States | None]]:
        """Return the states of slots before each request whose state other executors have reached; empty if there are none."""
        found = dict[int, Sequence[States | None]]()
        try:
            for number, state in self._reached.items():
                sequences.set_states([state] * slots)
                found[number] = [None] * slots if state is None else sequences.states()
        except DeviceError:  # they have another form here
            sequences.set_states([None] * slots)
            return {}
        return found

    def _run_requests(
        self,
        inputs: Mapping[int, Mapping[str, NDArray[np.generic]]],
        count: int,
        deadline: float,
        out: Mapping[str, NDArray[np.generic] | GpuArray] = {},
    ) -> dict[str, Any]:
        """Check and set inputs, run ``count`` requests, and return the outputs of the first one.

        Args:
            inputs: inputs of requests, by the request's number among those in flight.
            count: number of requests to run.
            deadline: time at which to stop waiting, in seconds of ``time.perf_counter``.
            out: arrays to write outputs of the first request to, by name.
        """
        for request, arrays in inputs.items():
            self._put(self.checked(arrays), request)
        written = self._write_to(out) if out else ()
        self._execute(count, deadline)
        if count == 1 and not out:
            return self._read(0)
        targets = {name: to.value if isinstance(to, GpuArray) else to for name, to in out.items()}
        outputs: dict[str, Any] = dict(self._read(0, {name: targets[name] for name in written}))
        for request in range(1, min(count, self.in_flight)):
            self._read(request)
        for name, array in targets.items():
            if name not in written:
                if array.shape != outputs[name].shape:
                    raise UsageError(f"The output '{name}' is {list(outputs[name].shape)}, and 'out' has {list(array.shape)}.")
                array[...] = outputs[name]
            outputs[name] = array
        return outputs


def with_room(open_for: Callable[..., PlanExecutor], in_flight: int) -> PlanExecutor:
    """Open an executor for ``in_flight`` requests in flight, or for fewer if there is no room for their buffers."""
    while True:
        try:
            return open_for(in_flight=in_flight)
        except NoRoomError:
            if in_flight == 1:
                raise
            in_flight -= 1


def to_serve(open_for: Callable[..., PlanExecutor], plan: Plan, in_flight: int | None) -> PlanExecutor:
    """Open a plan's executor for a server.

    Args:
        open_for: opens the executor of a plan, for a number of requests ``in_flight``.
        plan: the plan.
        in_flight: maximum number of requests in flight; None for as many as the plan needs, if there is room for their buffers.
    """
    if in_flight is not None:
        return open_for(plan, in_flight=in_flight)
    return with_room(functools.partial(open_for, plan), in_service(plan))
