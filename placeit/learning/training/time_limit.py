"""The time limit of a stage, and the deadlines of its measurements."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from placeit.core import clock
from placeit.learning.training.stages import CostFactory, Stage, Timed

__all__ = ["StageClock"]

_EVALUATION = 0.1  # share of a stage's seconds kept for an evaluation, until one was timed


class StageClock:
    """Tells when a stage is over, and gives costs that take time a deadline that leaves some for the last evaluation.

    Args:
        stage: the stage.
        costs: factory of the stage's cost functions; None for the instances' own cost functions.
        spent: seconds that the stage has taken so far.
    """

    def __init__(self, stage: Stage, costs: CostFactory | None, spent: float) -> None:
        self._began = clock.now() - spent
        self._costs = costs if isinstance(costs, Timed) else None
        self._end, self._longest = math.inf, 0.0
        if stage.seconds is not None:
            seconds = stage.seconds * (1.0 if self._costs is None else 1 - self._costs.spare)
            self._end, self._longest = self._began + seconds, _EVALUATION * seconds
        self._timed = False  # whether an evaluation was timed
        self._until = self._end

    @property
    def spent(self) -> float:
        """Seconds of the stage so far."""
        return clock.now() - self._began

    @property
    def share(self) -> float:
        """Elapsed share of the stage's seconds, at most 1; 0 without a limit."""
        return min(1.0, self.spent / (self._end - self._began))

    @property
    def is_late(self) -> bool:
        """True if no time is left for another update."""
        return clock.now() >= self._until

    def begin_update(self, *, judged: bool) -> None:
        """Set the deadline of an update so that an evaluation fits after it: the longest so far, at most half of the rest."""
        left = max(0.0, self._end - clock.now())
        self._tell(self._end - (min(self._longest, left / 2) if judged and self._costs is not None else 0.0))

    @contextlib.contextmanager
    def evaluation(self, *, last: bool = False) -> Iterator[None]:
        """Set the deadline of an evaluation, which runs in this context: half of the time left; for the last one, all of it."""
        began = clock.now()
        self._tell(self._end if last else began + max(0.0, self._end - began) / 2)
        yield
        self._longest = max(clock.now() - began, self._longest if self._timed else 0.0)
        self._timed = True

    def _tell(self, until: float) -> None:
        self._until = until
        if self._costs is not None:
            self._costs.deadline = until
