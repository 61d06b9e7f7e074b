"""The future of a request, and what resolves it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.backends.base import Arrays
from placeit.core.errors import DeadlineError, PlaceitError
from placeit.runtime.feed import Outcome
from placeit.serving.line import Line

__all__ = ["Answer", "Outputs", "Pending", "Queued", "fail", "late"]

Outputs: TypeAlias = dict[str, NDArray[np.generic]]


class Answer(Outcome[Outputs]):
    """The future of a request: its result is the outputs by name.

    Attributes:
        arrived: when it was submitted, by ``time.perf_counter``.
        begun: when its inputs were put into place; NaN before.
        ended: when its outputs were there; NaN before, and if it has failed.
    """

    def __init__(self) -> None:
        self._queued: Queued | None = None
        super().__init__()
        self.arrived, self.begun, self.ended = perf_counter(), math.nan, math.nan

    @property
    def _condition(self) -> threading.Condition:
        # asked for by other ways to wait than result(): the future has to be resolved as soon as the request is over
        if self._queued is not None:
            self._queued.watch()
        return self._own

    @_condition.setter
    def _condition(self, condition: threading.Condition) -> None:
        self._own = condition

    def attach(self, queued: Queued, wait: Callable[[float], object]) -> None:
        """Have the request wait in a compiled queue; ``wait`` waits for it until some time, and resolves the future."""
        self._queued, self.helper = queued, wait

    def detach(self) -> None:
        """Take note that the request is not in a compiled queue any more."""
        self._queued = self.helper = None

    def running(self) -> bool:
        """See ``concurrent.futures.Future``."""
        queued = self._queued
        return super().running() or (queued is not None and queued.flying and not super().done())

    def cancel(self) -> bool:
        """See ``concurrent.futures.Future``."""
        queued = self._queued
        return (queued is None or queued.cancel()) and super().cancel()

    def _invoke_callbacks(self) -> None:
        if self._queued is not None:
            self._queued.cancel()  # its owner has resolved it
        super()._invoke_callbacks()


class Queued:
    """A request in a compiled queue."""

    def __init__(self, queue: _core.RequestQueue, submission: _core.Submission) -> None:
        self._queue, self.submission = queue, submission

    @property
    def flying(self) -> bool:
        """True if it has begun and is not over, as far as it can be told."""
        return self.submission.state == _core.State.flying

    def watch(self) -> None:
        """Have its future be resolved at once when it is over, whether a thread waits for it or not."""
        self._queue.watch(self.submission)

    def cancel(self) -> bool:
        """Take it out if it waits; return whether it is cancelled."""
        return self._queue.cancel(self.submission)


@dataclass(eq=False)
class Pending:
    """A request that waits or is in flight."""

    inputs: Arrays
    deadline: float
    line: Line | None = None  # of which sequence it is
    position: int = 0  # among the requests of its sequence
    resets: int = 0  # how often its sequence was reset before it was submitted
    started: bool = False  # whether an executor has it
    settled: bool = True  # whether its sequence knows that it is not in flight
    replay: bool = False  # whether it is there for the state that it leaves, and nobody waits
    future: Answer = field(default_factory=Answer)
    alone: bool = False  # when it began
    number: int = 0  # of those that began
    explored: bool = False  # whether a candidate has it
    failure: PlaceitError | None = None  # with which it leaves the queue; None for that it was late
    over: bool = False  # whether it has ended, well or not
    submission: _core.Submission | None = None  # in the compiled queue; None if it is not there
    outputs: Outputs = field(default_factory=dict)  # where the compiled queue puts its outputs

    @property
    def slot(self) -> int | None:
        """The slot of its sequence in the executor; None if it is of no sequence."""
        return None if self.line is None or self.line.slot is None else self.line.slot.number


def late() -> DeadlineError:
    """The error of a request whose deadline was over before it could begin."""
    return DeadlineError("The deadline of this request was over before it could begin.")


def fail(requests: Iterable[Pending], error: PlaceitError) -> None:
    """Fail the futures of requests that have not ended."""
    for request in requests:
        request.future.end(lambda future: future.set_exception(error))
