"""The interface of all executors."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import UsageError
from placeit.planning.segments import Plan
from placeit.runtime.spans import Span

__all__ = ["DispatchOrder", "PlanExecutor", "check_timeout", "empty_samples", "seconds_of"]

DispatchOrder: TypeAlias = Literal["dynamic", "static", "graph"]
"""Who decides what runs when: the scheduler as things end, or the simulated schedule ahead of time, launched or replayed."""

_KEPT_SAMPLES = 1000  # times of a segment


def empty_samples(segments: int) -> list[deque[float]]:
    """Make empty buffers for the times of each segment in its last runs."""
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
        """The plan that this executor runs."""
        ...

    @property
    def native(self) -> bool:
        """Whether runs need no Python from their begin to their end."""
        ...

    @property
    def host_paced(self) -> tuple[str, ...]:
        """Names of the devices with streams that nothing is launched ahead on: the host waits for each end and hands over."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None: ...

    def close(self) -> None:
        """Release buffers and programs. A second call has no effect."""
        ...

    def set_inputs(self, inputs: Mapping[str, NDArray[np.generic]], *, request: int = 0) -> None:
        """Copy the model's inputs into place, from which each run reads them.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or type than the model wants.
        """
        ...

    def outputs(self, *, request: int = 0) -> dict[str, NDArray[np.generic]]:
        """Return copies of the outputs of the last run, by name."""
        ...

    def run(self, inputs: Mapping[str, NDArray[np.generic]], *, timeout: float | None = None) -> dict[str, NDArray[np.generic]]:
        """Run once and return the outputs by name; see :meth:`times`. Raises UsageError or ExecutionError."""
        ...

    def time(self, *, timeout: float | None = None) -> float:
        """Run once on the inputs in place and return the seconds it took; see :meth:`times`. Raises ExecutionError."""
        ...

    def times(self, count: int, *, timeout: float | None = None) -> float:
        """Run ``count`` requests, as many in flight as the executor was made for, and return their seconds.

        Args:
            count: how many requests.
            timeout: seconds until an ExecutionError says what still runs; None to wait for as long as it takes.

        Raises:
            ExecutionError: a device failed, has been closed, or takes longer than ``timeout``.
            UsageError: no request at all.
        """
        ...

    def spans(self) -> list[Span]:
        """Spans of the last call: one per segment and transfer, on a track per device and per link."""
        ...

    def segment_seconds(self, *, last: bool = False) -> NDArray[np.float64]:
        """``float64[S]``, median seconds of each segment over many runs, or of the last one; zero if it runs nothing."""
        ...

    def blank(self, sentinel: int) -> str | None:
        """Fill everything that a run writes (outputs, tensors between segments) with NaN, or a sentinel for other types.

        What the next run does not write, or writes too late, then shows (:mod:`placeit.runtime.check`).

        Args:
            sentinel: 0 or 1.

        Returns:
            Who has written where nothing should have been written, as far as that can be told; None if nobody has. After a
            first call that is anybody at all, if nothing has run since, and else whoever had reported the end before.
        """
        ...


def check_timeout(timeout: float | None) -> None:
    """Raise UsageError unless the time-out is a positive number of seconds, or None for no limit."""
    if timeout is not None and not timeout > 0:
        raise UsageError(f"'timeout' must be a positive number of seconds; got {timeout}.")
