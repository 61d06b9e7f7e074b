"""Feed requests to an executor while others are in flight, wake the thread that takes them, and report their outcomes."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from time import perf_counter
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.errors import ExecutionError, PlaceitError, forget_frames
from placeit.core.threads import CHECK_S, Gate
from placeit.runtime.spans import Moved, Ran

__all__ = ["Bell", "Feed", "Outcome", "Slots", "report"]

T = TypeVar("T")
_LOG = logging.getLogger("placeit")
_SHORT_S = 1e-3


class Bell:
    """A counter of the kernel (``eventfd``) that one thread waits for, and any thread may ring, in Python or out of it.

    Attributes:
        counter: for compiled lanes, which may ring it after :meth:`close`: its descriptor stays open while they use it.
    """

    def __init__(self) -> None:
        self.counter: _core.Bell | None = _core.Bell()
        self.fd = self.counter.descriptor
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def ring(self) -> None:
        """Wake the thread that waits, or the next one that will. A closed bell does nothing."""
        counter = self.counter
        if counter is not None:
            counter.ring()

    def wait(self, seconds: float) -> None:
        """Wait until the bell has been rung since the last wait, for some seconds at most."""
        if self._poll.poll(max(0.0, seconds) * 1e3):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Release the counter. No thread may be waiting for it."""
        self.counter = None


def report(what: str, error: BaseException) -> None:
    """Log an exception that no caller gets; ignore exceptions of log handlers, as the thread serves other requests."""
    with contextlib.suppress(Exception):
        _LOG.error("%s %s: %s", what, type(error).__name__, error, exc_info=error)


class _Condition(threading.Condition):
    """A condition whose ``with`` calls its lock's methods, in C: in Python's own, an exception can leave the lock taken."""

    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)


class Outcome(Future[T]):
    """A future that ends once, whatever its callbacks or its owner do, and that survives signal handlers that raise.

    An exception inside a method of ``concurrent.futures.Future`` can leave the future's lock taken, and a thread that sets its
    result then hangs for ever (as with ``Event``, see :class:`placeit.core.threads.Gate`). Here no thread waits while it holds
    that lock, and every thread that holds it releases it.

    All callbacks are called, each once, even if one before raises an exception, such as ``SystemExit``.
    """

    _done_callbacks: list[Callable[[Future[T]], object]]

    def __init__(self) -> None:
        super().__init__()
        self._condition = _Condition()
        self._gate = Gate()
        self._begun = False
        self.helper: Callable[[float], object] | None = None  # waits for the result until a time, and may end the future

    def result(self, timeout: float | None = None) -> T:
        """See ``concurrent.futures.Future``."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See ``concurrent.futures.Future``."""
        self._wait(timeout)
        return super().exception(0)

    @property
    def has_callbacks(self) -> bool:
        """True if it has callbacks that were not called yet."""
        return bool(self._done_callbacks)

    def begin(self) -> bool:
        """Make the future impossible to cancel; return False if it has ended, cancelled or set by its owner."""
        if not self._begun and not self.running() and (self.cancelled() or not self.done()):
            with contextlib.suppress(RuntimeError):  # its owner has set it just now
                self.set_running_or_notify_cancel()
            self._begun = True
        return not self.done()

    def end(self, tell: Callable[[Self], object]) -> None:
        """Give the future its result or its exception, unless it has ended; never raise what that or a callback raises.

        Args:
            tell: calls ``set_result`` or ``set_exception``. If it fails, the future gets an ExecutionError that says so.
        """
        try:
            if self.begin():
                tell(self)
        except InvalidStateError:  # its owner has set it just now
            pass
        except BaseException as error:  # noqa: BLE001 (it belongs to this future, and the thread serves others)
            self.end_after(error)

    def end_after(self, error: BaseException) -> None:
        """End the future after an exception that was raised while it ended; never raise."""
        forget_frames(error)  # frames hold this future
        try:
            if self.done():
                report("A callback of a future has raised", error)
                self._invoke_callbacks()
            else:
                failure = ExecutionError(f"The outcome could not be handed over: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self.set_exception(failure)
        except InvalidStateError:
            pass
        except BaseException as another:  # noqa: BLE001
            report("A callback of a future has raised", another)

    def _invoke_callbacks(self) -> None:
        """Call each callback once; then raise the first ``SystemExit`` or the like that one of them has raised."""
        self._gate.open()
        raised: BaseException | None = None
        while self._done_callbacks:
            callback = self._done_callbacks.pop(0)
            try:
                callback(self)
            except Exception as error:  # noqa: BLE001 (as of any future)
                report("A callback of a future has raised", error)
            except BaseException as error:  # noqa: BLE001
                raised = raised or error
        if raised is not None:
            raise raised

    def _wait(self, timeout: float | None) -> None:
        until = math.inf if timeout is None else perf_counter() + timeout
        while not self._gate.is_open:
            patience = min(until, perf_counter() + CHECK_S)
            if self.helper is not None and not self._done_callbacks:
                self.helper(patience)
                patience = min(patience, perf_counter() + _SHORT_S)  # while another thread resolves it
            if self._gate.wait(max(0.0, patience - perf_counter())):
                return
            if self.done():  # the thread that cancelled it was interrupted before it opened the gate
                return
            if perf_counter() >= until:
                raise TimeoutError


class Slots:
    """The slots of an executor in a compiled queue, where other threads begin requests beside the thread that serves.

    Args:
        queue: the queue.
        number: number of the executor in the queue.
        told: returns the segments and transfers of a request, given its slot and the queue's record of what ran.
    """

    def __init__(
        self,
        queue: _core.RequestQueue,
        number: int,
        told: Callable[[int, Sequence[Ran]], tuple[tuple[Ran, ...], tuple[Moved, ...]]],
    ) -> None:
        self._queue, self.number, self.told = queue, number, told

    def open(self) -> None:
        """Begin a run of the executor, and let other threads use its slots."""
        self._queue.open(self.number)

    def reserve(self) -> int | None:
        """Take a slot; None if none is free."""
        slot = self._queue.reserve(self.number)
        return slot if slot >= 0 else None

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self._queue.release(self.number, slot)

    def retire(self) -> bool:
        """Keep other threads from using the slots; return whether all of their requests have ended."""
        return self._queue.retire(self.number)


class Feed(Protocol):
    """A source of requests, which also gets their outputs. The thread that serves calls it; an item is what ``take`` returns.

    Items that were taken, and have neither ended nor failed when ``PlanExecutor.serve`` returns or raises, have to begin again.

    Attributes:
        bell: rung by the feed when there may be something to take.
    """

    bell: Bell

    def take(self, *, room: bool) -> Any | None:
        """Return the next request; None if no request can be taken now.

        It has ``inputs``, by name, as the model takes them; ``on``, where its outputs are wanted, ``host`` or ``device``; and
        ``slot``: the number of its sequence's slot (:meth:`placeit.runtime.plan_executor.PlanExecutor.open_slot`), in which
        nothing is running; None outside sequences.

        Args:
            room: whether it may be a request outside sequences.
        """
        ...

    def patience(self) -> float:
        """Return the seconds after which to call :meth:`take` again if the bell has not been rung until then."""
        ...

    def stays(self) -> bool:
        """Return whether serving goes on while no request is in flight, as others may come."""
        ...

    @property
    def slots(self) -> Slots | None:
        """Slots to take numbers from, if other threads begin requests beside the one that serves; else None."""
        ...

    def at(self, number: int) -> Any | None:
        """Return the request that another thread has begun in a slot; None for an empty slot."""
        ...

    def ended(self, item: Any, outputs: Mapping[str, NDArray[np.generic]], ran: Sequence[Ran], moved: Sequence[Moved]) -> None:
        """Report the end of a request, with copies of its outputs, and its segments and transfers."""
        ...

    def failed(self, item: Any, error: PlaceitError, *, begun: bool = True) -> None:
        """Report the failure of a request, which may not have begun. Nothing happens if it has ended."""
        ...
