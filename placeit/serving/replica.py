"""Replicas of a server: each runs requests with an executor and a thread, and is replaced when it is lost."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

from placeit import _core
from placeit.core.errors import ExecutionError, PlaceitError
from placeit.core.threads import Gate, Worker
from placeit.runtime.feed import Bell
from placeit.runtime.plan_executor import PlanExecutor
from placeit.serving.answers import Pending
from placeit.serving.batching import Batches
from placeit.serving.stepping import Stepping

__all__ = ["Replace", "Replacement", "Replica"]


@dataclass
class Replacement:
    """Record of the replacement of an executor: the reason, the new devices, and how long each step took.

    Attributes:
        why: the reason: a device or a link was lost, is back, or is slow.
        devices: devices that requests run on afterwards.
        silent_s: seconds from the last sign of life of the lost device or link until the loss was noticed; 0 without a loss.
        decided_s: seconds to decide on the new placement.
        compiled_s: seconds from the decision until the placement could run.
        answered_s: seconds from then to its first answer; NaN before that.
        asked: whether the user asked for it; otherwise, it is logged as a warning.
    """

    why: str
    devices: tuple[str, ...]
    silent_s: float
    decided_s: float
    compiled_s: float
    answered_s: float = math.nan
    asked: bool = False

    def __str__(self) -> str:
        return (
            f"{self.why} Requests are run on {', '.join(self.devices)}: noticed after {self.silent_s:.2f} s, decided in "
            f"{self.decided_s:.2f} s, compiled in {self.compiled_s:.2f} s, first answer {self.answered_s:.2f} s later."
        )


Replace: TypeAlias = Callable[[PlanExecutor, Sequence[PlanExecutor], PlaceitError], tuple[PlanExecutor, Replacement]]
"""Replaces a lost executor, given it, the executors that still run, and the error. Raises PlaceitError if it cannot."""


class Replica:
    """An executor, and the requests in flight there. :class:`placeit.serving.replica_thread.ReplicaThread` runs them.

    Args:
        queued: the compiled queue of the server.
        executor: closed with the replica.
        replacement: logged with its first answer; None if this replica replaces none.
        every: a candidate gets one request in ``every``; 0 for any other replica.

    Attributes:
        slots: its slots in the compiled queue of the server; None if its requests need Python.
        exploring: whether it is a candidate.
        flying: requests in flight; read and changed with the server's lock.
        lost: whether it cannot run requests any more.
        retired: whether it takes no more requests.
        failures: failures in a row that no request caused.
        ready: when it was made, in seconds of ``time.perf_counter``.
        batches: how many rows its executor runs as one.
        stepping: joins the steps of its sequences; None if the model has no such steps.
        gone: opens when its thread has nothing left to do.
    """

    def __init__(
        self, queued: _core.RequestQueue, executor: PlanExecutor, replacement: Replacement | None = None, *, every: int = 0
    ) -> None:
        self.executor, self._queued, self.replacement, self.exploring = executor, queued, replacement, every > 0
        self.ready = perf_counter()
        self.bell, self.gone = Bell(), Gate()
        self.flying: list[Pending] = []
        self.lost = self.retired = False
        self.batches = Batches()
        self.stepping: Stepping | None = None
        self.failures = 0
        self._thread = 0
        self._worker = Worker("placeit serving")
        self.slots = executor.join(queued, self.bell, every)

    @property
    def able(self) -> bool:
        """True if the replica may take requests."""
        return not (self.lost or self.retired)

    @property
    def room(self) -> bool:
        """True if the replica may take a request of no sequence; requests of sequences have separate slots."""
        return self.able and (self.runs if self.slots is None else self._relayed) < self.executor.in_flight

    @property
    def runs(self) -> int:
        """Number of runs in flight of requests of no sequence that need Python; a batch is one run."""
        return sum(request.line is None and not request.riding for request in self.flying)

    @property
    def steps(self) -> int:
        """Number of runs in flight of steps that may be joined; a joined step is one run."""
        return sum(request.step and not request.riding for request in self.flying)

    @property
    def busy(self) -> bool:
        """True if it has a run in flight for each device of its plan."""
        return self.runs >= len({segment.device for segment in self.executor.plan.programs})

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds that the thread has used."""
        return self._worker.cpu_seconds

    @property
    def _relayed(self) -> int:
        return 0 if self.slots is None else self._queued.in_flight(self.slots.number)

    @property
    def load(self) -> int:
        """Number of requests in flight, by which the server chooses the replica for the next request."""
        return len(self.flying) + self._relayed

    def is_here(self) -> bool:
        """Return whether the calling thread is the replica's thread."""
        return self._thread == threading.get_ident()

    def close(self) -> None:
        """End the thread and release the executor, now or when the thread has ended its current work."""
        if self.gone.is_open:
            self._end()
        else:
            with contextlib.suppress(ExecutionError):  # the thread ends already
                self._worker.submit(self._end)

    def discard(self) -> None:
        """End the thread of a replica that was never started; the executor stays open."""
        self._worker.close()
        self.bell.close()

    def _end(self) -> None:
        self.discard()
        self.executor.close()

    def adopt(self) -> None:
        """Turn a candidate into an ordinary replica, which gets as many requests as any other."""
        self.exploring = False
        if self.slots is not None:
            self._queued.adopt(self.slots.number)

    def retire(self) -> None:
        """Take no more requests, and wake the thread, which then ends."""
        self.retired = True
        if self.slots is not None:
            self.slots.retire()
        self.bell.ring()
