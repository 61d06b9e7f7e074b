"""Attendants of a server: threads beside it that hear of every request that ends, and may have it serve by another plan."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placeit.core.threads import Gate, Worker
from placeit.measuring.measure import FAILURES
from placeit.planning.segments import Plan
from placeit.runtime.spans import Ran
from placeit.serving.refining import Refinement

__all__ = ["Attendant", "Request"]

_MOST_UNHEARD = 100_000  # requests that have ended since the attendant looked; of more, the last ones count


@dataclass(frozen=True, eq=False)
class Request:
    """A request that has ended.

    Attributes:
        plan: what it ran on.
        begun: by ``time.perf_counter``.
        ended: by ``time.perf_counter``.
        ran: its segments, and when each of them ran.
        alone: whether no other request was in flight on the server in the meantime.
        explored: whether it tried a candidate.
    """

    plan: Plan
    begun: float
    ended: float
    ran: Sequence[Ran]
    alone: bool
    explored: bool

    @property
    def seconds(self) -> float:
        """From begin to end."""
        return self.ended - self.begun


class Attendant(ABC):
    """A thread that attends a server, from :meth:`start` until it is closed or fails; the server goes on without it.

    Args:
        name: of the thread.

    Attributes:
        report: what came of refining, of an attendant that refines; None of any other.
    """

    def __init__(self, name: str) -> None:
        self.report: Refinement | None = None
        self._ended: deque[Request] = deque(maxlen=_MOST_UNHEARD)  # appended to by the threads that serve
        self._lock, self._closing, self._gone = threading.Lock(), Gate(), Gate()
        self._thread = Worker(name)

    def start(self) -> None:
        """Begin to attend."""
        self._thread.submit(self._work)

    def ended(self, request: Request) -> None:
        """Tell of a request that has ended; from any thread, at once."""
        self._ended.append(request)

    def close(self, seconds: float) -> None:
        """Stop, and wait for that for some seconds at most: what is compiled now ends first."""
        with self._lock:
            if not self._closing.is_open:
                self._closing.open()
                self._thread.submit(self._thread.close)
        self._gone.wait(min(seconds, threading.TIMEOUT_MAX))

    @abstractmethod
    def attend(self) -> None:
        """Do what it is for, until it is to close; on its thread. May raise what :data:`FAILURES` names."""

    @abstractmethod
    def failed(self, error: BaseException) -> None:
        """Say that it attends no more, and why."""

    def heard(self) -> Iterator[Request]:
        """Take the requests that have ended since this was called last."""
        for _ in range(len(self._ended)):
            yield self._ended.popleft()

    def _work(self) -> None:
        try:
            self.attend()
        except FAILURES as error:
            self.failed(error)
        finally:
            self._gone.open()
