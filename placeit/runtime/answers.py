"""The future of a request, and what resolves it."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays
from placeit.core.errors import DeadlineError, PlaceitError
from placeit.runtime.feed import Outcome
from placeit.runtime.line import Line

__all__ = ["Answer", "Outputs", "Pending", "fail", "late"]

Outputs: TypeAlias = dict[str, NDArray[np.generic]]


class Answer(Outcome[Outputs]):
    """The future of a request: its result is the outputs by name.

    Attributes:
        arrived: when it was submitted, by ``time.perf_counter``.
        begun: when its inputs were put into place; NaN before.
        ended: when its outputs were there; NaN before, and if it has failed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrived, self.begun, self.ended = perf_counter(), math.nan, math.nan


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
    turn: threading.Lock = field(default_factory=threading.Lock)  # of who has it begin, or sees to its end
    here: Any = None  # the replica on which the thread that submits it has it begin; None if it waits for one
    number_there: int = -1  # in the executor where the thread that submits it has it begin

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
