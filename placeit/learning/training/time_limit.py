"""The time limit of a training stage, and the deadlines of its measurements."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from placeit.core import clock
from placeit.learning.training.stages import CostFactory, Stage, Timed

__all__ = ["StageClock"]

_EVALUATION_SHARE = 0.1  # share of a stage's seconds that is reserved for an evaluation, until one is timed


class StageClock:
    """The clock of a stage: when it is over, and the deadlines of its measured costs.

    Deadlines leave time for the last evaluation.

    Args:
        stage: the stage.
        costs: factory of the stage's cost functions; None for the instances' own cost functions.
        spent: seconds that the stage has taken so far, before it was resumed.
    """

    def __init__(self, stage: Stage, costs: CostFactory | None, spent: float) -> None:
        self._start = clock.now() - spent
        self._costs = costs if isinstance(costs, Timed) else None
        self._end, self._evaluation_s = math.inf, 0.0
        if stage.seconds is not None:
            seconds = stage.seconds * (1.0 if self._costs is None else 1 - self._costs.spare)
            self._end, self._evaluation_s = self._start + seconds, _EVALUATION_SHARE * seconds
        self._timed = False  # whether an evaluation was timed
        self._deadline = self._end

    @property
    def spent(self) -> float:
        """Seconds of the stage so far."""
        return clock.now() - self._start

    @property
    def share(self) -> float:
        """Elapsed share of the stage's seconds, at most 1; 0 without a limit."""
        return min(1.0, self.spent / (self._end - self._start))

    @property
    def is_late(self) -> bool:
        """Whether the deadline of the current update or evaluation has passed."""
        return clock.now() >= self._deadline

    def start_update(self, *, evaluated: bool) -> None:
        """Set the deadline of an update.

        If an evaluation follows, the deadline leaves the time of the longest one so far, at most half of the time left.
        """
        left = max(0.0, self._end - clock.now())
        reserved = min(self._evaluation_s, left / 2) if evaluated and self._costs is not None else 0.0
        self._set_deadline(self._end - reserved)

    @contextlib.contextmanager
    def evaluation(self, *, last: bool = False) -> Iterator[None]:
        """Set the deadline of an evaluation, which runs in this context: half of the time left; for the last one, all of it."""
        start = clock.now()
        self._set_deadline(self._end if last else start + max(0.0, self._end - start) / 2)
        yield
        self._evaluation_s = max(clock.now() - start, self._evaluation_s if self._timed else 0.0)
        self._timed = True

    def _set_deadline(self, deadline: float) -> None:
        self._deadline = deadline
        if self._costs is not None:
            self._costs.deadline = deadline
