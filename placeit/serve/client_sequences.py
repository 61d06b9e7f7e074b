"""Sequences of requests that clients name: Triton's parameters ``sequence_id``, ``sequence_start`` and ``sequence_end``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from placeit.core.errors import PlaceitError
from placeit.serve.refusal import RefusedError, Status, invalid, refusal_of
from placeit.serving.sequence import Sequence
from placeit.serving.server import Server

__all__ = ["IDLE_S", "Asked", "Sequences"]

T = TypeVar("T")

IDLE_S = 60.0
_MOST_OPEN = 1024  # open sequences of one model; each has separate buffers


@dataclass(frozen=True)
class Asked:
    """The sequence parameters of a request.

    Attributes:
        name: name that the client has given the sequence.
        start: whether the sequence begins with this request.
        end: whether the sequence ends with this request.
    """

    name: int | str
    start: bool
    end: bool

    @classmethod
    def of(cls, parameters: Mapping[str, object]) -> Asked | None:
        """Read the parameters of a request; return None if it belongs to no sequence. Raises RefusedError."""
        name = parameters.get("sequence_id", 0)
        flags = [parameters.get(flag, False) for flag in ("sequence_start", "sequence_end")]
        if not isinstance(name, int | str) or isinstance(name, bool):
            raise invalid("The parameter 'sequence_id' has to be a number or a text.")
        if not all(isinstance(flag, bool) for flag in flags):
            raise invalid("The parameters 'sequence_start' and 'sequence_end' are true or false.")
        if not name:
            if any(flags):
                raise invalid("A request that begins or ends a sequence needs its name: give it a 'sequence_id'.")
            return None
        return cls(name, *map(bool, flags))


class Sequences:
    """The sequences of a model's clients. Its methods are called on the thread of the event loop.

    A sequence is closed with the request that ends it, or when no request of it has arrived for some time.

    Args:
        server: of the model.
        idle_s: seconds without a request after which a sequence is closed.
    """

    def __init__(self, server: Server, idle_s: float = IDLE_S) -> None:
        self._server, self._idle_s = server, idle_s
        self._open: dict[int | str, Sequence] = {}
        self._slow = asyncio.Semaphore(1)  # calls that may ask nodes take one of the loop's threads at a time
        self._timers: dict[int | str, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def find(self, asked: Asked) -> Sequence:
        """Return the sequence of a request; open or reset it if the request begins it.

        Raises:
            RefusedError: there is no such sequence, or no room for another one.
        """
        found = self._open.get(asked.name)
        if found is None and not asked.start:
            raise RefusedError(
                Status.UNKNOWN,
                f"There is no sequence {asked.name!r}: it has ended, none of its requests has come for {self._idle_s:g} s, or "
                "none begins it: begin one with 'sequence_start'.",
            )
        if found is None:
            if len(self._open) >= _MOST_OPEN:
                raise RefusedError(Status.FULL, f"{_MOST_OPEN} sequences are open: end some with 'sequence_end'.")
            try:
                found = await self._apart(self._server.sequence)
            except PlaceitError as error:
                raise refusal_of(error, closed=True) from error
            if self._open.setdefault(asked.name, found) is not found:  # another request began it while this one waited
                found.close(drain=False)
                found = self._open[asked.name]
                await self._apart(found.reset)
        elif asked.start:
            await self._apart(found.reset)
        self._wait(asked.name)
        return found

    async def _apart(self, function: Callable[[], T]) -> T:
        """Call a function that may ask nodes, on another thread."""
        async with self._slow:
            return await asyncio.to_thread(function)

    def ended(self, asked: Asked, *, began: bool) -> None:
        """Close the sequence of a request that ended it; else restart the sequence's idle time.

        Args:
            asked: the parameters of the request.
            began: whether the server accepted the request; if not, the client may send it again.
        """
        if asked.end and began:
            self._close(asked.name)
        elif asked.name in self._open:
            self._wait(asked.name)

    def _wait(self, name: int | str) -> None:
        """Restart the idle time of a sequence, after which it is closed."""
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(self._idle_s, self._close, name)

    def _close(self, name: int | str) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()
        sequence = self._open.pop(name, None)
        if sequence is not None:
            sequence.close(drain=True)
