"""Attendants of a server: threads that observe ended requests, and may switch the server to another plan."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placeit.core.errors import PlaceitError
from placeit.core.threads import Gate, Worker
from placeit.measuring.measure import FAILURES
from placeit.planning.segments import Plan
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.spans import Ran
from placeit.serving.refinement import Refinement

__all__ = ["Attendant", "Request"]

_MAX_UNHEARD = 100_000  # ended requests that are kept until the attendant looks; beyond, the oldest are dropped


@dataclass(frozen=True, eq=False)
class Request:
    """A request that has ended.

    Attributes:
        plan: the plan that it ran on.
        begun: when it began, in seconds of ``time.perf_counter``.
        ended: when it ended, in seconds of ``time.perf_counter``.
        ran: its segments, and when each of them ran.
        alone: whether no other request was in flight on the server.
        explored: whether it ran on a candidate.
    """

    plan: Plan
    begun: float
    ended: float
    ran: Sequence[Ran]
    alone: bool
    explored: bool

    @property
    def seconds(self) -> float:
        """Seconds from its begin to its end."""
        return self.ended - self.begun


class Attendant(ABC):
    """A thread that attends a server, from :meth:`start` until it is closed. If it fails, the server continues without it.

    Args:
        name: of the thread.

    Attributes:
        report: results of refining; None if the attendant does not refine.
    """

    def __init__(self, name: str) -> None:
        self.report: Refinement | None = None
        self._ended: deque[Request] = deque(maxlen=_MAX_UNHEARD)  # appended to by the threads that serve
        self._lock, self._closing, self._gone = threading.Lock(), Gate(), Gate()
        self._thread = Worker(name)

    def start(self) -> None:
        """Start the thread."""
        self._thread.submit(self._work)

    def ended(self, request: Request) -> None:
        """Record an ended request. Any thread may call this; it returns at once."""
        self._ended.append(request)

    def suspect(self, executor: PlanExecutor, error: PlaceitError) -> None:  # noqa: B027 (most attendants do not)
        """Check for a lost device of an executor after a request failed there; runs on the thread that serves."""

    def close(self, seconds: float) -> None:
        """Stop the thread, and wait at most ``seconds`` for its end; a compilation in progress ends first."""
        with self._lock:
            if not self._closing.is_open:
                self._closing.open()
                self._thread.submit(self._thread.close)
        self._gone.wait(min(seconds, threading.TIMEOUT_MAX))

    @abstractmethod
    def attend(self) -> None:
        """Attend the server until :meth:`close` is called; runs on the attendant's thread, and may raise :data:`FAILURES`."""

    @abstractmethod
    def failed(self, error: BaseException) -> None:
        """Report that the attendant has stopped, and why."""

    def heard(self) -> Iterator[Request]:
        """Yield the requests that have ended since the last call."""
        for _ in range(len(self._ended)):
            yield self._ended.popleft()

    def _work(self) -> None:
        try:
            self.attend()
        except FAILURES as error:
            self.failed(error)
        finally:
            self._gone.open()
