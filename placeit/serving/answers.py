"""Requests of a server: their futures, and their records in the queues."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal, TypeAlias

from placeit import _core
from placeit.backends.base import Arrays
from placeit.core.errors import DeadlineError, ExecutionError, PlaceitError
from placeit.runtime.calls import failure_of
from placeit.runtime.feed import Outcome
from placeit.serving.line import Line

__all__ = ["Answer", "Outputs", "Pending", "fail", "interruption", "late", "too_late"]

Outputs: TypeAlias = dict[str, Any]
"""Outputs by name: NumPy arrays, or arrays on GPUs if these were asked for."""


class Answer(Outcome[Outputs]):
    """The future of a request: its result is the outputs by name.

    Attributes:
        arrived: when it was submitted, or was due to be, in seconds of ``time.perf_counter``.
        begun: when its inputs were put into place; NaN before then.
        ended: when its outputs were there; NaN before then, and if it has failed.
    """

    def __init__(self) -> None:
        self._queued: tuple[_core.RequestQueue, _core.Submission] | None = None  # the compiled queue that has the request
        super().__init__()
        self.arrived, self.begun, self.ended = perf_counter(), math.nan, math.nan

    @property
    def _condition(self) -> threading.Condition:
        # read by all waits other than result() and exception(); the future then has to be resolved when the request ends
        queued = self._queued
        if queued is not None:
            queued[0].watch(queued[1])
        return self._own

    @_condition.setter
    def _condition(self, condition: threading.Condition) -> None:
        self._own = condition

    def attach(self, queue: _core.RequestQueue, submission: _core.Submission, wait: Callable[[float], object]) -> None:
        """Attach the future to its request in a compiled queue.

        Args:
            queue: the queue.
            submission: the request.
            wait: waits for the request until a time of ``time.perf_counter``, and resolves the future if the request is over.
        """
        self._queued, self.helper = (queue, submission), wait

    def detach(self) -> None:
        """Detach the future from the compiled queue, which no longer has its request."""
        self._queued = self.helper = None

    def running(self) -> bool:
        """See ``concurrent.futures.Future``."""
        queued = self._queued
        return super().running() or (queued is not None and queued[1].state == _core.State.flying and not super().done())

    def cancel(self) -> bool:
        """See ``concurrent.futures.Future``."""
        queued = self._queued
        return (queued is None or queued[0].cancel(queued[1])) and super().cancel()

    def _invoke_callbacks(self) -> None:
        queued = self._queued
        if queued is not None:
            queued[0].cancel(queued[1])  # the caller has resolved the future itself
        super()._invoke_callbacks()


@dataclass(eq=False)
class Pending:
    """A request that waits or is in flight."""

    inputs: Arrays
    deadline: float
    priority: int = 0  # requests of a lower number begin first, of no sequence
    line: Line | None = None  # its sequence; None if it belongs to no sequence
    position: int = 0  # its number among the requests of its sequence, from 1
    resets: int = 0  # how often its sequence had been reset when it was submitted
    started: bool = False  # whether an executor has it
    rows: int = 0  # rows of its inputs, where requests are joined
    like: Any = None  # equal for requests that may be joined; None if it runs alone
    riding: bool = False  # whether it runs in a batch, or a joined step, that another request leads
    step: bool = False  # whether it is a step of its sequence that may be joined with steps of others
    single: bool = False  # whether it runs alone, as it could not be joined
    replay: bool = False  # whether it runs a kept input again to restore a lost state; no thread waits for it
    future: Answer = field(default_factory=Answer)
    alone: bool = False  # whether no other request was in flight with it
    number: int = 0  # its number among the requests that have begun
    explored: bool = False  # whether a candidate runs it
    failure: PlaceitError | None = None  # why it leaves the queue; None if its deadline has passed
    over: bool = False  # whether it has ended, well or not
    submission: _core.Submission | None = None  # in the compiled queue; None if it is not there
    on: Literal["host", "device"] = "host"  # where its outputs are wanted
    outputs: Outputs = field(default_factory=dict)  # arrays that the compiled queue writes its outputs to

    @property
    def slot(self) -> int | None:
        """Number of the slot of its sequence that it runs in; None without a sequence, and before it is ready."""
        slot = None if self.line is None else self.line.flying.get(self)
        return None if slot is None else slot.number

    def uncounted(self, error: BaseException) -> None:
        """Release its sequence after the server failed to count the request; the state counts as lost."""
        if self.line is not None and self in self.line.flying:
            self.line.failed(failure_of("a request was not counted", error), at=self.position, for_good=True)
            self.line.flying.pop(self, None)


def too_late() -> ExecutionError:
    """Return the error of a request that had not ended when its server was closed."""
    return ExecutionError("The server was closed, and this request had not ended in time.")


def interruption() -> ExecutionError:
    """Return the reason why a sequence's state is lost after an error of the server."""
    return ExecutionError("An error of the server interrupted a request of it.")


def late() -> DeadlineError:
    """Return the error of a request whose deadline passed before it could begin."""
    return DeadlineError("The deadline of this request passed before it could begin.")


def fail(requests: Iterable[Pending], error: PlaceitError) -> None:
    """Set an error on the futures of requests, except on futures that have ended."""
    for request in requests:
        request.future.end(lambda future: future.set_exception(error))
