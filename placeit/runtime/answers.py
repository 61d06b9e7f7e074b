"""What becomes of a request: its future, and who tells it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import InvalidStateError
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays
from placeit.core.errors import DeadlineError, PlaceitError
from placeit.runtime.feed import Outcome

__all__ = ["Answer", "Outputs", "Pending", "fail", "fail_late", "settle"]

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
    future: Answer = field(default_factory=Answer)
    begun: bool = False
    alone: bool = False  # when it began
    number: int = 0  # of those that began
    explored: bool = False  # whether a candidate has it
    over: bool = False  # whether it has ended, well or not

    def begin(self) -> bool:
        """Have it not be cancelled any more; False if it has been."""
        if not self.begun:
            self.begun = True
            return self.future.set_running_or_notify_cancel()
        return not self.future.cancelled()


def fail_late(requests: Sequence[Pending]) -> None:
    """Fail those whose deadline was over before they could begin."""
    if requests:
        fail(requests, DeadlineError("The deadline of this request was over before it could begin."))


def fail(requests: Sequence[Pending], error: PlaceitError) -> None:
    """Fail the futures of requests."""
    for request in requests:
        settle(request, lambda future: future.set_exception(error))


def settle(request: Pending, tell: Callable[[Answer], None]) -> None:
    """Tell a future what became of it, unless it was cancelled, or failed when the server was closed."""
    if request.begin():
        with contextlib.suppress(InvalidStateError):
            tell(request.future)
