"""A log of single requests that an executor runs: their times, segments and transfers."""

from __future__ import annotations

from collections import deque

from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.spans import Done

__all__ = ["RunLog"]


class RunLog:
    """Times single requests, and keeps the segments and transfers of the last ones.

    Args:
        executor: runs the requests; it must be idle.
        max_spans: largest number of segments and transfers to keep; at least one request is kept.

    Attributes:
        done: the last requests.
        inner: seconds of each request from the start of its lanes to the end of its last segment.
    """

    def __init__(self, executor: PlanExecutor, max_spans: int) -> None:
        self._executor, plan = executor, executor.plan
        self.inner: list[float] = []
        self.done: deque[Done] = deque(maxlen=max(1, max_spans // (len(plan.segments) + len(plan.tensors))))

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
