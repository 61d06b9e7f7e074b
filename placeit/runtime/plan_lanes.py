"""What executors do in their own way, on lanes or on streams."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from placeit.runtime.slots import Slot
from placeit.runtime.spans import Labels, Moved, Ran, Span, Timed

__all__ = ["PlanLanes"]


class PlanLanes(ABC):
    """The part of an executor that differs between lanes and streams.

    Methods with an underscore are called in turn and, except ``_start``, while nothing runs.

    Args:
        plan: what to run.
        in_flight: how many requests may be in flight at once.
        inputs: of the model, by name.

    Raises:
        UsageError: ``in_flight`` is below 1.
    """

    def __init__(self, plan: Plan, in_flight: int, inputs: Mapping[str, BufferSpec]) -> None:
        check_requests(in_flight)
        self.plan, self.in_flight, self.inputs = plan, in_flight, inputs
        self._lock = threading.Lock()  # of the state that lanes share
        self._run: ActiveRun | None = None  # the last one
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
        """Return the segments and transfers of each request of the last call, with its number among those in flight.

        After a call of more requests than can be in flight at once, these are the last ones.
        """

    @abstractmethod
    def segment_seconds(self, *, last: bool = False) -> NDArray[np.float64]:
        """Return each segment's median seconds over many runs, or its last ones, ``float64[S]``; zero if it runs nothing."""

    @property
    @abstractmethod
    def outputs_wanted(self) -> Mapping[str, BufferSpec]:
        """Shape and type of each output of the model, by name."""

    def checked(self, inputs: Arrays) -> dict[str, Any]:
        """Return inputs in the model's order and types: arrays on the host, or where this executor reads them without a copy.

        The result may be given to any other executor of the model, too.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or type than the model wants.
        """
        return dict(checked_inputs(inputs, self.inputs))

    def adopted(self, name: str, array: GpuArray) -> GpuArray:  # noqa: ARG002
        """Make an array on a GPU ready to have an output written to it. Raises UsageError if it cannot be written there."""
        raise UsageError(
            f"'out' has an array on a GPU for '{name}', and the devices of this placement write outputs to the host's memory: "
            "give a NumPy array."
        )

    def on_device(self) -> dict[str, GpuArray]:
        """Make arrays for the outputs of a request, by name, in the memory of devices that is not the host's."""
        return {}

    @property
    def refused(self) -> Mapping[int, str]:
        """Why the compiler of a device refused segments, which run op by op, by their numbers in the plan."""
        return {}

    @property
    def by_size(self) -> bool:
        """True if a segment is compiled for each size of its inputs."""
        return False

    @property
    def stays(self) -> bool:
        """True if :meth:`~placeit.runtime.serving_loop.ServingLoop.serve` may wait for requests while none is in flight."""
        return False

    @property
    def spun_s(self) -> float:
        """Seconds that threads of lanes have spun, that is, waited awake."""
        return 0.0

    @property
    def window(self) -> tuple[float, float]:
        """When lanes began the last call of :meth:`times`, and when they ended, in seconds of ``time.perf_counter``."""
        run = self._run
        return (0.0, 0.0) if run is None else (run.begin, run.end)

    @property
    def gone(self) -> PlaceitError | None:
        """Error that a device is lost, so that nothing can run here any more; else None."""
        return self._gone

    def lose(self, why: PlaceitError) -> None:
        """Declare a device of the plan lost, for this executor."""
        self._gone = why

    def at_work(self) -> Collection[tuple[int, int, int]]:
        """Return the segments that run now, where a lane tells: segment, slot, and how much has begun in the lane until now.

        Segments that are compiled when a size first comes are left out, as that takes any time.
        """
        return ()

    def devices(self) -> list[DeviceStats]:
        """Return the state and counts of each device of its cluster, whether the plan uses it or not."""
        return [DeviceStats(name) for name in self.plan.problem.device_names]

    def spans(self) -> list[Span]:
        """Return the spans of :meth:`last_run`, by start: one per segment and transfer, on a track per device and link."""
        spans = [span for request in self.last_run() for span in self.labels.spans(*request)]
        return sorted(spans, key=lambda span: span.start)

    @property
    def room_for_state(self) -> dict[str, float]:
        """Bytes that its devices may hold besides the plan's weights, by device name; empty if they keep no state."""
        return {}

    def open_slot(self, *, beside: Slot | None = None) -> Slot:  # noqa: ARG002
        """Make a slot for the requests of one sequence, each of which continues from the state that the one before has left.

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
        """Release a slot of :meth:`open_slot`, in which nothing is running. A second call has no effect."""

    def join(self, queue: _core.RequestQueue, bell: Bell, every: int) -> Slots | None:  # noqa: ARG002
        """Have a queue of requests run them here while it serves, if they need no Python for that, and ring a bell for others.

        Args:
            queue: the queue.
            bell: of the thread that serves.
            every: for a candidate, which takes one request in ``every``, one at a time; 0 for any other executor.

        Returns:
            The slots of the executor in the queue; None if its requests need Python.
        """
        return None

    @abstractmethod
    def _prepare(self, count: int, bell: Bell | None = None) -> ActiveRun:
        """Prepare a run of ``count`` requests or, with a bell to ring at each end, of requests that are admitted later."""

    @abstractmethod
    def _admit(self, run: ActiveRun, request: int, inputs: Mapping[str, Any], out: Mapping[str, GpuArray]) -> None:
        """Begin one more request of a run with a bell, unless the run has been stopped.

        Args:
            run: the run.
            request: its number among those in flight.
            inputs: inputs that were checked (:meth:`checked`).
            out: arrays of :meth:`on_device` for outputs; other outputs go to the host.
        """

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

    def _put(self, inputs: Mapping[str, NDArray[np.generic]], request: int) -> None:
        """Have a request read checked inputs, which must not change until it has ended."""
        self._write(inputs, request)

    def _write_to(self, out: Mapping[str, NDArray[Any] | GpuArray]) -> Collection[str]:  # noqa: ARG002
        """Have the next run write outputs to some arrays; return the names of the outputs that it does write there."""
        return ()

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
