"""The interface that executors on lanes and executors on streams implement."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.backends.base import Arrays
from placeit.backends.checking import checked_inputs
from placeit.core.arrays import GpuArray
from placeit.core.errors import PlaceitError, UsageError
from placeit.planning.segments import Plan
from placeit.runtime.active_run import ActiveRun
from placeit.runtime.calls import check_requests
from placeit.runtime.device_stats import DeviceStats
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.feed import Bell, Slots
from placeit.runtime.slots import Continuing, Slot
from placeit.runtime.spans import Labels, Moved, Ran, Span, Timed

__all__ = ["PlanLanes"]


class PlanLanes(ABC):
    """The part of an executor that differs between lanes and streams.

    Methods with an underscore are called by one thread at a time and, except ``_start``, while nothing runs.

    Args:
        plan: the plan to run.
        in_flight: maximum number of requests in flight at once.
        inputs: shape and type of each input of the model, by name.

    Raises:
        UsageError: ``in_flight`` is below 1.
    """

    def __init__(self, plan: Plan, in_flight: int, inputs: Mapping[str, BufferSpec]) -> None:
        check_requests(in_flight)
        self.plan, self.in_flight, self.inputs = plan, in_flight, inputs
        self._lock = threading.Lock()  # guards the state that lanes share
        self._run: ActiveRun | None = None  # the current run, or the last one
        self._has_state = False  # whether the model keeps state
        self._gone: PlaceitError | None = None

    @property
    @abstractmethod
    def native(self) -> bool:
        """True if runs need no Python from their begin to their end."""

    @property
    @abstractmethod
    def host_paced(self) -> tuple[str, ...]:
        """Names of devices with streams on which nothing is launched ahead: the host waits for the end of each segment."""

    @property
    @abstractmethod
    def labels(self) -> Labels:
        """Names of its segments, tensors and devices."""

    @abstractmethod
    def last_run(self) -> list[tuple[int, Sequence[Ran], Sequence[Moved]]]:
        """Return the number among those in flight, the segments and the transfers of requests of the last call.

        Of several requests with one number, executors on lanes return the last one, and executors on streams all.
        """

    @abstractmethod
    def segment_seconds(self, *, last: bool = False) -> NDArray[np.float64]:
        """Return each segment's seconds, ``float64[S]``: the median of many runs, or of the last run; 0 if it runs nothing."""

    @property
    @abstractmethod
    def output_specs(self) -> Mapping[str, BufferSpec]:
        """Shape and type of each output of the model, by name."""

    def checked(self, inputs: Arrays) -> dict[str, Any]:
        """Check inputs, and return them in the model's order and types: on the host, or on the GPU that reads them.

        Any other executor of the model takes the result, too.

        Raises:
            UsageError: an input is missing or unknown, or its shape or type differs from the model's.
        """
        return checked_inputs(inputs, self.inputs)

    def adopted(self, name: str, array: GpuArray) -> GpuArray:  # noqa: ARG002
        """Prepare an array on a GPU for an output. Raises UsageError if this executor cannot write the output there."""
        raise UsageError(
            f"'out' has an array on a GPU for '{name}', and the devices of this placement write outputs to the host's memory: "
            "give a NumPy array."
        )

    def on_device(self) -> dict[str, GpuArray]:
        """Allocate arrays for the outputs of a request that GPUs compute, by name, in the memory of these GPUs."""
        return {}

    @property
    def refused(self) -> Mapping[int, str]:
        """Reasons why compilers refused segments, which run op by op, by the number of the segment in the plan."""
        return {}

    @property
    def by_size(self) -> bool:
        """True if a segment is compiled for each size of its inputs."""
        return False

    @property
    def keeps_blocks(self) -> bool:
        """True if a run may compute tokens of texts in several slots (:attr:`placeit.runtime.slots.Slot.texts`)."""
        return False

    @property
    def stays(self) -> bool:
        """True if :meth:`~placeit.runtime.serving_loop.ServingLoop.serve` may wait for requests while none is in flight."""
        return False

    @property
    def spun_s(self) -> float:
        """Seconds that threads of lanes have spun (waited without sleeping)."""
        return 0.0

    @property
    @abstractmethod
    def window(self) -> tuple[float, float]:
        """Begin and end of the last call of :meth:`times` on its lanes, in seconds of ``time.perf_counter``."""

    @property
    def gone(self) -> PlaceitError | None:
        """Error that a device is lost, so that nothing can run here any more; else None."""
        return self._gone

    def lose(self, why: PlaceitError) -> None:
        """Declare a device of the plan lost, for this executor."""
        self._gone = why

    def at_work(self) -> Collection[tuple[int, int, int]]:
        """Return the segments that run now, as (segment, slot, pieces of work that have begun in the segment's lane).

        Segments that are compiled for each size of their inputs are left out, as their first run may take any time.
        """
        return ()

    def devices(self) -> list[DeviceStats]:
        """Return the state and counts of each device of its cluster, whether the plan uses it or not."""
        return [DeviceStats(name) for name in self.plan.problem.device_names]

    def spans(self) -> list[Span]:
        """Return the spans of :meth:`last_run`, sorted by start: one for each segment and transfer."""
        spans = [span for request in self.last_run() for span in self.labels.spans(*request)]
        return sorted(spans, key=lambda span: span.start)

    @property
    def room_for_state(self) -> dict[str, float]:
        """Bytes that devices can hold besides the plan's weights, by device name; empty if they keep no state."""
        return {}

    def open_slot(self, *, beside: Slot | None = None) -> Slot:  # noqa: ARG002
        """Make a slot for the requests of one sequence, each of which continues from the state that the previous one left.

        These requests have the slot's number in :meth:`serve`. Other requests may run during this call.

        Args:
            beside: another slot of the sequence, which shares its state, and allows more than one request at once
                (:attr:`placeit.runtime.slots.Slot.at_once`): the next request may begin in one slot while a request runs in the
                other. Each device runs them in the order in which they begin. None for the first slot of a sequence.

        Raises:
            UsageError: devices of the plan do not keep state.
            DeviceError: there is no room for buffers.
            ExecutionError: the executor is closed.
        """
        raise UsageError(
            "This placement runs on streams of an accelerator, which keep no state from one request to the next: place the "
            "model on CPU core sets, or on other devices that OpenVINO drives."
        )

    def close_slot(self, slot: Slot) -> None:  # noqa: B027 (there may be none)
        """Release a slot of :meth:`open_slot`. A second call has no effect.

        A slot in which a run that was abandoned has not ended is released with the executor.
        """

    def join(self, queue: _core.RequestQueue, bell: Bell, every: int) -> Slots | None:  # noqa: ARG002
        """Join a compiled queue, which runs requests in this executor while it serves, if they need no Python.

        Args:
            queue: the queue.
            bell: bell of the thread that serves, which the queue rings for requests that need Python.
            every: for a candidate, which takes one request in ``every``, one at a time; 0 for any other executor.

        Returns:
            The slots of the executor in the queue; None if all of its requests need Python.
        """
        return None

    @abstractmethod
    def _execute(self, count: int, deadline: float) -> None:
        """Run ``count`` requests on the inputs that were set. Requires the turn."""

    @abstractmethod
    def _prepare(self, bell: Bell) -> ActiveRun:
        """Prepare a run of requests that are admitted later; it rings the bell whenever a request ends."""

    @abstractmethod
    def _admit(self, run: ActiveRun, request: int, inputs: Mapping[str, Any], out: Mapping[str, GpuArray]) -> None:
        """Begin one more request of a run with a bell, unless the run has been stopped.

        Args:
            run: the run.
            request: number of the request among those in flight.
            inputs: inputs that were checked (:meth:`checked`).
            out: arrays of :meth:`on_device` for outputs; other outputs go to the host.
        """

    @abstractmethod
    def _admit_no_more(self, run: ActiveRun) -> None:
        """End a run with a bell as soon as no request of it is in flight."""

    def _ended(self, run: ActiveRun) -> list[int]:
        """Return the numbers of the requests of a run with a bell that have ended since the last call.

        ``run.failures`` has the errors of requests that failed.
        """
        return [run.ended.popleft() for _ in range(len(run.ended))]

    @abstractmethod
    def _outcome(self, run: ActiveRun, request: int) -> tuple[dict[str, NDArray[np.generic]], Sequence[Ran], Sequence[Moved]]:
        """Return copies of the outputs of a request that has ended, its segments, and its transfers."""

    @abstractmethod
    def _start(self, run: ActiveRun) -> None:
        """Begin a run on the lanes, which open ``run.over`` when it has ended."""

    @abstractmethod
    def _running(self, run: ActiveRun) -> list[str]:
        """Describe the segments and transfers of a run that are on devices and links."""

    @abstractmethod
    def _check_lanes(self) -> None:
        """Raise ExecutionError if the thread of a lane has ended."""

    @abstractmethod
    def _write(self, inputs: Mapping[str, NDArray[np.generic]], request: int) -> None:
        """Copy checked inputs to the buffers of a request."""

    def _put(self, inputs: Mapping[str, NDArray[np.generic]], request: int) -> None:
        """Set the checked inputs of a request, which must not change until it has ended."""
        self._write(inputs, request)

    def _write_to(self, out: Mapping[str, NDArray[Any] | GpuArray]) -> Collection[str]:  # noqa: ARG002
        """Set arrays for outputs of the next run; return the names of the outputs that it writes there without a copy."""
        return ()

    @abstractmethod
    def _read(self, request: int, given: Mapping[str, NDArray[Any]] = {}) -> dict[str, NDArray[np.generic]]:
        """Return the outputs of a request by name: copies, or the arrays of the caller that they were written to."""

    @abstractmethod
    def _blank(self, sentinel: int) -> str | None:
        """Implement :meth:`blank`."""

    @abstractmethod
    def _release(self) -> None:
        """Release buffers and programs; it may be called again if it was interrupted."""

    def _sequences(self, slots: int) -> Continuing:  # noqa: ARG002
        """Return the slots that keep state, of the first ``slots`` slots."""
        return Continuing(())

    def _blend(self, found: Sequence[Timed], runs: int) -> None:  # noqa: ARG002
        """Replace the times of the last ``runs`` runs by the weighted mean of ``found``, which counts as one run."""
        raise UsageError("This executor is timed on one request.")

    def _pass_time(self, run: ActiveRun) -> None:  # noqa: B027 (for lanes of a virtual clock)
        """Advance a virtual clock until the run ends; does nothing on lanes in real time."""

    def _end_lanes(self) -> None:  # noqa: B027 (lanes may be the runtime's)
        """Stop the executor's own threads, which have no work left. The caller must not hold the lock."""
