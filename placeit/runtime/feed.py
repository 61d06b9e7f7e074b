"""Where an executor takes requests from while others are in flight, what wakes who does so, and what comes of them."""

from __future__ import annotations

import math
import os
import select
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.errors import PlaceitError
from placeit.runtime.devices.worker import Gate

__all__ = ["Bell", "Feed", "Outcome", "Ran", "Served"]

T = TypeVar("T")
_LOOK_S = 0.5

Ran: TypeAlias = tuple[int, float, float]
"""What ran, by its number in the plan (a segment), and when it began and ended."""
Served: TypeAlias = tuple[int, dict[str, NDArray[np.generic]], Sequence[Ran]]
"""A request that has ended, by its number among those in flight; copies of its outputs; and what segments ran when."""


class Bell:
    """What one thread waits for, and any thread may ring, in Python or out of it: a counter of the kernel (``eventfd``).

    Attributes:
        counter: for compiled lanes, which may ring it after it has been closed here: its descriptor stays theirs until then.
    """

    def __init__(self) -> None:
        self.counter: _core.Bell | None = _core.Bell()
        self.fd = self.counter.descriptor
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def ring(self) -> None:
        """Wake the thread that waits, or the next one that will. Nothing happens once it is closed."""
        counter = self.counter
        if counter is not None:
            counter.ring()

    def wait(self, seconds: float) -> None:
        """Wait until it has been rung since the last wait, for some seconds at most."""
        if self._poll.poll(max(0.0, seconds) * 1e3):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Give the counter back; nobody may wait."""
        self.counter = None


class _Condition(threading.Condition):
    """A condition whose ``with`` calls its lock's methods, in C: an exception at the start of its own leaves the lock taken."""

    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)


class Outcome(Future[T]):
    """A future that may be used in a thread where signal handlers raise, at any moment.

    An exception inside a method of ``concurrent.futures.Future`` can leave the future's lock taken, and who sets its result
    then hangs for ever (as with ``Event``, see :class:`placeit.runtime.devices.worker.Gate`). Here nobody waits with that lock,
    and whoever holds it lets go of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition = _Condition()
        self._gate = Gate()
        self.add_done_callback(_open)

    def result(self, timeout: float | None = None) -> T:
        """See ``concurrent.futures.Future``."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See ``concurrent.futures.Future``."""
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        until = math.inf if timeout is None else perf_counter() + timeout
        while not self._gate.wait(max(0.0, min(_LOOK_S, until - perf_counter()))):
            if self.done():  # and who cancelled it was interrupted before the gate was open
                return
            if perf_counter() >= until:
                raise TimeoutError


def _open(outcome: Future[Any]) -> None:
    cast("Outcome[Any]", outcome)._gate.open()


class Feed(Protocol):
    """A source of requests, and where their outputs go. Called by the thread that serves; an item is whatever the feed gives.

    Attributes:
        bell: rung by the feed when there may be something to take.
    """

    bell: Bell

    def take(self) -> Any | None:
        """The next request, with its ``inputs`` by name as the model wants them; None if there is none to take now."""
        ...

    def patience(self) -> float:
        """Seconds after which to ask again whether there is something to take, if the bell has not been rung until then."""
        ...

    def ended(self, item: Any, outputs: Mapping[str, NDArray[np.generic]], ran: Sequence[Ran]) -> None:
        """A request has ended: copies of its outputs, and what ran."""
        ...

    def failed(self, item: Any, error: PlaceitError) -> None:
        """A request has failed."""
        ...

    def again(self, items: Sequence[Any]) -> None:
        """These were in flight beside one that failed, and have to begin again: take them first."""
        ...
