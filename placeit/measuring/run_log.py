"""A log of single requests of an executor: their times, segments and transfers."""

from __future__ import annotations

from collections import deque

from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.spans import Done

__all__ = ["RunLog"]


class RunLog:
    """Times single requests, and keeps the segments and transfers of the last ones.

    Args:
        executor: runs the requests; it must be idle.
        most: most segments and transfers to keep; one request is kept in any case.

    Attributes:
        done: the last requests.
        inner: seconds of each request from when its lanes began to the end of its last segment.
    """

    def __init__(self, executor: PlanExecutor, most: int) -> None:
        self._executor, plan = executor, executor.plan
        self.inner: list[float] = []
        self.done: deque[Done] = deque(maxlen=max(1, most // (len(plan.segments) + len(plan.tensors))))

    def time(self) -> float:
        """Run once and return the seconds from the call to the answer, without keeping the rest. Raises ExecutionError."""
        seconds = self._executor.time()
        self.inner.append(self._executor.inner)
        self.done.append(self.last())
        return seconds

    def last(self) -> Done:
        """Return the last request of the executor, however it was run."""
        (begin, end), ((_, ran, moved), *_) = self._executor.window, self._executor.last_run()
        return Done(0, self._executor.labels, begin, begin, end, ran, moved)
