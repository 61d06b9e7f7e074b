"""Feeds of requests for executors, the futures of their outcomes, and the bell that wakes the serving thread."""

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
_RETRY_S = 1e-3  # wait after the helper returned, while another thread resolves the future


class Bell:
    """An ``eventfd`` counter that one thread waits for and any thread may ring, from Python or from compiled code.

    Attributes:
        counter: the counter; None after :meth:`close`. Its descriptor stays open while compiled lanes refer to it.
    """

    def __init__(self) -> None:
        self.counter: _core.Bell | None = _core.Bell()
        self.fd = self.counter.descriptor
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def ring(self) -> None:
        """Wake the thread that waits, or else the next one that waits. A closed bell does nothing."""
        counter = self.counter
        if counter is not None:
            counter.ring()

    def wait(self, seconds: float) -> None:
        """Wait until the bell is rung, for at most ``seconds``; return at once if it was rung since the last wait."""
        if self._poll.poll(max(0.0, seconds) * 1e3):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Release the counter. No thread may be waiting for it."""
        self.counter = None


def report(what: str, error: BaseException) -> None:
    """Log an exception that is not raised. Exceptions of log handlers are ignored, as the thread serves other requests."""
    with contextlib.suppress(Exception):
        _LOG.error("%s %s: %s", what, type(error).__name__, error, exc_info=error)


class _Condition(threading.Condition):
    """A condition whose ``with`` statement calls the lock's methods directly, in C.

    In ``threading.Condition``, these are Python methods, in which an exception of a signal handler can leave the lock taken.
    """

    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)


class Outcome(Future[T]):
    """A future that ends exactly once, whatever callbacks or owners do, and stays usable if signal handlers raise.

    An exception inside a method of ``concurrent.futures.Future`` can leave the future's lock taken, and a thread that sets its
    result then hangs for ever (as with ``Event``, see :class:`placeit.core.threads.Gate`). Here no thread waits while it holds
    that lock, and every thread that holds it releases it.

    Each callback is called once, even if an earlier one raises an exception such as ``SystemExit``.
    """

    _done_callbacks: list[Callable[[Future[T]], object]]

    def __init__(self) -> None:
        super().__init__()
        self._condition = _Condition()
        self._gate = Gate()
        self._begun = False
        self.helper: Callable[[float], object] | None = None  # called with a deadline: waits until then, and may resolve it

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
        """True if some of its callbacks have not been called yet."""
        return bool(self._done_callbacks)

    def begin(self) -> bool:
        """Make the future impossible to cancel; return False if it has ended (was cancelled, or set by its owner)."""
        if not self._begun and not self.running() and (self.cancelled() or not self.done()):
            with contextlib.suppress(RuntimeError):  # its owner has set it in the meantime
                self.set_running_or_notify_cancel()
            self._begun = True
        return not self.done()

    def end(self, resolve: Callable[[Self], object]) -> None:
        """Set the future's result or exception, unless it has ended. Exceptions of ``resolve`` and callbacks are not raised.

        Args:
            resolve: calls ``set_result`` or ``set_exception``. If it fails, the future gets an ExecutionError that says so.
        """
        try:
            if self.begin():
                resolve(self)
        except InvalidStateError:  # its owner has set it in the meantime
            pass
        except BaseException as error:  # noqa: BLE001 (it belongs to this future, and the thread serves others)
            self.end_after(error)

    def end_after(self, error: BaseException) -> None:
        """End the future after ``error`` was raised while its result was set. Raises nothing."""
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
        """Call each callback once; then raise the first exception such as ``SystemExit`` that one of them has raised."""
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
        deadline = math.inf if timeout is None else perf_counter() + timeout
        while not self._gate.is_open:
            next_check = min(deadline, perf_counter() + CHECK_S)
            if self.helper is not None and not self._done_callbacks:
                self.helper(next_check)
                next_check = min(next_check, perf_counter() + _RETRY_S)
            if self._gate.wait(max(0.0, next_check - perf_counter())):
                return
            if self.done():  # the thread that cancelled it was interrupted before it opened the gate
                return
            if perf_counter() >= deadline:
                raise TimeoutError


class Slots:
    """The slots of an executor in a compiled queue, in which other threads than the serving one begin requests, too.

    Args:
        queue: the queue.
        number: number of the executor in the queue.
        decode: returns the segments and transfers of a request, given its slot and the queue's record of what ran.
    """

    def __init__(
        self,
        queue: _core.RequestQueue,
        number: int,
        decode: Callable[[int, Sequence[Ran]], tuple[tuple[Ran, ...], tuple[Moved, ...]]],
    ) -> None:
        self._queue, self.number, self.decode = queue, number, decode

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
    """A source of requests, which also gets their outputs. The serving thread calls it; an item is what ``take`` returns.

    Items that were taken, and have neither ended nor failed when ``PlanExecutor.serve`` returns or raises, have to begin again.

    Attributes:
        bell: the feed rings it when :meth:`take` may have another request.
    """

    bell: Bell

    def take(self, *, room: bool) -> Any | None:
        """Return the next request; None if no request can be taken now.

        A request has these attributes:

        - ``inputs``: arrays by name, as the model takes them;
        - ``on``: memory of its outputs, ``host`` or ``device``;
        - ``slot``: number of its sequence's slot (:meth:`placeit.runtime.plan_executor.PlanExecutor.open_slot`), in which
          nothing is running; None outside sequences.

        Args:
            room: whether there is a free slot for a request outside sequences.
        """
        ...

    def patience(self) -> float:
        """Return the seconds after which to call :meth:`take` again if the bell has not been rung until then."""
        ...

    def stays(self) -> bool:
        """Return whether serving goes on while no request is in flight, as more requests may come."""
        ...

    @property
    def slots(self) -> Slots | None:
        """Slots to take numbers from, if other threads than the serving one begin requests, too; else None."""
        ...

    def at(self, number: int) -> Any | None:
        """Return the request that another thread has begun in a slot; None if the slot is empty."""
        ...

    def ended(self, item: Any, outputs: Mapping[str, NDArray[np.generic]], ran: Sequence[Ran], moved: Sequence[Moved]) -> None:
        """Handle the end of a request, with copies of its outputs, its segments and its transfers."""
        ...

    def failed(self, item: Any, error: PlaceitError, *, begun: bool = True) -> None:
        """Handle the failure of a request, which may not have begun. Does nothing if the request has ended."""
        ...
