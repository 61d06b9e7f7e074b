"""A sequence of requests, each of which continues from the model's state that the previous request left."""

from __future__ import annotations

import weakref
from time import perf_counter
from types import TracebackType
from typing import Self

from placeit.backends.base import Arrays
from placeit.core.errors import ExecutionError
from placeit.serving.answers import Answer, Outputs
from placeit.serving.line import Line
from placeit.serving.queueing import NewRequest, Queueing

__all__ = ["Sequence"]


class Sequence:
    """A sequence of requests, made by :meth:`placeit.serving.server.Server.sequence`. Use it as a context manager.

    Its first request starts from the model's initial state, and each later one from the state that the previous request left.
    The requests run in the order in which they are submitted, beside the requests of other sequences. Where devices allow it,
    a request enters a device when the request before it has left the device for the next one. Any thread may submit.

    A sequence to which no reference is left is closed.
    """

    def __init__(self, server: Queueing, line: Line) -> None:
        self._server, self.line = server, line
        self._dropped = weakref.finalize(self, server.sequences.dropped.append, line)
        self._dropped.atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close(drain=kind is None)

    @property
    def number(self) -> int:
        """Number of the sequence on its server, from 1."""
        return self.line.number

    @property
    def state_bytes(self) -> int:
        """Size of its state, in bytes."""
        return self.line.bytes.total()

    @property
    def at_once(self) -> int:
        """Most of its requests that may be in flight, each on another device. Further requests wait."""
        return self.line.at_once

    def submit(
        self,
        inputs: Arrays,
        *,
        start_within_s: float | None = None,
        wait: bool = True,
        timeout: float | None = None,
        behind: bool = True,
    ) -> Answer:
        """Submit a run of the model that continues from the state that the previous requests leave.

        Args:
            inputs: by name. Arrays are read when the request begins, not now: leave them as they are until it has ended.
            start_within_s: seconds in which it has to begin; if it has not by then, its future fails.
            wait: whether to wait for room in the server's queue.
            timeout: seconds to wait at most; None for as long as it takes.
            behind: whether it may wait for earlier requests of the sequence.

        Raises:
            SequenceError: the sequence is closed; or it may not wait for earlier requests, and one has not ended.
            UsageError, QueueFullError, DeadlineError, ExecutionError: as by :meth:`placeit.serving.server.Server.submit`.
        """
        return self._server.enqueue(NewRequest(inputs, start_within_s, wait, timeout, line=self.line, behind=behind))

    def run(self, inputs: Arrays, *, timeout: float | None = None) -> Outputs:
        """Run the model on inputs and on the state that the previous requests leave, and return the outputs by name.

        Args:
            inputs: by name.
            timeout: seconds to wait at most; None for as long as it takes.

        Raises:
            ExecutionError: the request failed; it takes longer than ``timeout`` (if it has not begun by then, it never will;
                otherwise it goes on to its end); or the caller is a callback of one of the server's futures, which would wait
                for itself.
            SequenceError: the sequence is closed, or its state is not known after a failure.
            StateMemoryError: there is no room for its state to grow; the state is unchanged.
            UsageError, QueueFullError: as by :meth:`submit`.
        """
        self._server.check_thread()
        until = None if timeout is None else perf_counter() + timeout
        answer = self.submit(inputs, timeout=timeout)
        try:
            return answer.result(None if until is None else max(0.0, until - perf_counter()))
        except TimeoutError as late:
            gone = "has not begun, and will not" if answer.cancel() else "goes on to its end"
            raise ExecutionError(f"The time-out is over, and the request has not ended: it {gone}.") from late

    def reset(self) -> None:
        """Reset the state: requests that are submitted from now on start from the initial state again.

        Requests submitted before are not affected. A sequence whose state was lost can be used again.

        Raises:
            SequenceError: the sequence is closed.
        """
        self._server.sequences.reset(self.line)

    def fork(self, *, timeout: float | None = None) -> Sequence:
        """Return a new sequence that continues from the state after all requests submitted so far; wait for these to end.

        Args:
            timeout: seconds to wait at most; None for as long as it takes.

        Raises:
            SequenceError: the sequence is closed, or its state is not known after a failure.
            StateMemoryError: there is no room for another state.
            ExecutionError: requests take longer than ``timeout``; the caller is a callback of one of the server's futures,
                which would wait for itself; or the server is closed.
            DeviceError: there is no room for buffers.
        """
        self._server.check_thread()
        return Sequence(self._server, self._server.sequences.fork(self.line, timeout))

    def close(self, *, drain: bool = True) -> None:
        """Take no more requests, and release the state when the submitted requests have ended. A second call has no effect.

        Args:
            drain: whether to run the requests that wait; otherwise their futures fail.
        """
        self._dropped.detach()
        self._server.end(self.line, drain=drain)
