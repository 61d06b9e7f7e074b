"""Sequences of requests that clients name: Triton's parameters ``sequence_id``, ``sequence_start`` and ``sequence_end``."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from placeit.backends.base import Arrays
from placeit.core.errors import PlaceitError
from placeit.serve.refusal import RefusedError, Status, invalid, refusal_of
from placeit.serving.answers import Answer, Outputs
from placeit.serving.sequence import Sequence
from placeit.serving.server import Server

__all__ = ["IDLE_S", "Asked", "Sequences"]

T = TypeVar("T")

IDLE_S = 60.0
_MAX_OPEN = 1024  # open sequences of one model; each has separate buffers
_APART_BYTES: Final = 1 << 16  # bytes of inputs, from which on another thread computes their digest
_KEPT_BYTES: Final = 1 << 20  # most bytes of an answer that is kept in case that its request comes again
_ALL_KEPT_BYTES: Final = 16 << 20  # most bytes of all answers of a model that are kept
_LONGEST: Final = 256  # most characters of the name of a sequence, or of a request of one


@dataclass(frozen=True)
class Asked:
    """The sequence parameters of a request.

    Attributes:
        name: name that the client has given the sequence.
        start: whether the sequence begins with this request.
        end: whether the sequence ends with this request.
        request: name that the client has given the request; empty for no name.
    """

    name: int | str
    start: bool
    end: bool
    request: str = ""

    @classmethod
    def of(cls, parameters: Mapping[str, object], request: str = "") -> Asked | None:
        """Read the parameters of a request; return None if it belongs to no sequence. Raises RefusedError."""
        name = parameters.get("sequence_id", 0)
        flags = [parameters.get(flag, False) for flag in ("sequence_start", "sequence_end")]
        if not isinstance(name, int | str) or isinstance(name, bool):
            raise invalid("The parameter 'sequence_id' has to be a number or a text.")
        if name and max(len(name) if isinstance(name, str) else 0, len(request)) > _LONGEST:
            raise invalid(f"The name of a sequence, and the 'id' of its requests, have at most {_LONGEST} characters.")
        if not all(isinstance(flag, bool) for flag in flags):
            raise invalid("The parameters 'sequence_start' and 'sequence_end' are true or false.")
        if not name:
            if any(flags):
                raise invalid("A request that begins or ends a sequence needs its name: give it a 'sequence_id'.")
            return None
        return cls(name, bool(flags[0]), bool(flags[1]), request)


@dataclass(eq=False)
class _Named:
    """A sequence of a client.

    Attributes:
        sequence: the sequence; None before it is open, and after it has ended.
        turn: held while a request is submitted, so that requests are submitted in the order of their arrival.
        users: number of requests that are submitted, or wait for their turn.
        last: parameters of the last request, if it has a name, the digest of its inputs, and its answer, which is None if it is
            too large to be kept.
        ending: answer of the request that ends the sequence; None without such a request in flight.
        timer: closes the sequence.
    """

    sequence: Sequence | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    last: tuple[Asked, bytes, Answer | None] | None = None
    ending: Answer | None = None
    timer: asyncio.TimerHandle | None = None

    def answered(self, asked: Asked, digest: bytes) -> Answer | None:
        """Return the answer of the last request if this is the same request again, unless it failed or did not run.

        Raises:
            RefusedError: it is the same request, whose answer was not kept.
        """
        if self.last is None or self.last[:2] != (asked, digest):
            return None
        answer = self.last[2]
        if answer is None:
            raise RefusedError(
                Status.UNAVAILABLE,
                f"This request has run, and its answer was not kept, as it has more than {_KEPT_BYTES} bytes, or others came "
                "later: begin the sequence again with 'sequence_start'.",
            )
        return answer if not answer.done() or _is_well(answer) else None

    def forget(self) -> None:
        """Drop the answer of the last request."""
        if self.last is not None:
            self.last = (*self.last[:2], None)

    def end(self) -> None:
        """Close the sequence if the request that ends it has succeeded; if it has failed, keep the sequence open."""
        answer = self.ending
        if answer is not None and answer.done():
            self.ending = None
            if _is_well(answer):
                self.close()

    def close(self) -> None:
        """Close the sequence, if it is open."""
        sequence, self.sequence = self.sequence, None
        if sequence is not None:
            sequence.close(drain=True)


def _is_well(answer: Answer) -> bool:
    return not answer.cancelled() and answer.exception() is None


def _size(tensors: Arrays | Outputs) -> int:
    return sum(value.nbytes for value in tensors.values())


def _digest(inputs: Arrays) -> bytes:
    """Return bytes that differ between different inputs."""
    found = hashlib.blake2b()
    for name in sorted(inputs):
        value = np.ascontiguousarray(inputs[name])
        found.update(repr((name, value.dtype.str, value.shape)).encode())
        found.update(value.reshape(-1).view(np.uint8).data)
    return found.digest()


class Sequences:
    """The sequences of a model's clients. Its methods are called on the thread of the event loop.

    A sequence is closed by the request that ends it, or after some time without a request.

    Args:
        server: of the model.
        idle_s: seconds without a request after which a sequence is closed.
        recompute: whether to keep the inputs of sequences, to recompute states that are lost.
    """

    def __init__(self, server: Server, idle_s: float = IDLE_S, *, recompute: bool = False) -> None:
        self._server, self._idle_s, self._recompute = server, idle_s, recompute
        self._named: dict[int | str, _Named] = {}
        self._kept: dict[_Named, int] = {}  # bytes of answers that are kept, the oldest first
        self._slow = asyncio.Semaphore(1)  # calls that may ask nodes take one of the loop's threads at a time

    def __len__(self) -> int:
        return sum(one.sequence is not None for one in self._named.values())

    def __contains__(self, name: int | str) -> bool:
        return name in self._named

    async def submit(self, asked: Asked, inputs: Arrays, submit: Callable[[Sequence], Answer]) -> Answer:
        """Submit a request of a sequence, and begin or end the sequence if the request asks for it.

        A request that equals the last one, its name included, gets the answer of that one, even if it ended the sequence.

        Args:
            asked: its parameters.
            inputs: by name.
            submit: submits it to the sequence.

        Raises:
            RefusedError: the sequence is unknown, or there is no room for another one.
            PlaceitError: an error of ``submit``. No error changes the sequence.
        """
        named = self._named.get(asked.name)
        if named is None:
            if not asked.start:
                raise self._unknown(asked)
            if len(self._named) >= _MAX_OPEN:
                self._forget()
            if len(self._named) >= _MAX_OPEN:
                raise RefusedError(Status.FULL, f"{_MAX_OPEN} sequences are open: end some with 'sequence_end'.")
            named = self._named[asked.name] = _Named()
        named.users += 1
        try:
            async with named.turn:
                digest = b""
                if asked.request:
                    digest = await asyncio.to_thread(_digest, inputs) if _size(inputs) >= _APART_BYTES else _digest(inputs)
                    if (again := named.answered(asked, digest)) is not None:
                        return again
                if named.ending is not None:
                    await _until_done(named.ending)
                    named.end()
                answer = submit(await self._ready(named, asked))
                self._kept.pop(named, None)
                named.last = (asked, digest, answer) if asked.request else None
                named.ending = answer if asked.end else None
                if asked.end or asked.request:
                    answer.add_done_callback(_later(partial(self._ended, named), asyncio.get_running_loop()))
                return answer
        finally:
            named.users -= 1
            self._wait(asked.name, named)

    def _ended(self, named: _Named, answer: Answer) -> None:
        """After a request: limit the bytes of kept answers, and close the sequence if the request ends it."""
        if named.last is not None and named.last[2] is answer and _is_well(answer):
            self._kept[named] = _size(answer.result())
            if self._kept[named] > _KEPT_BYTES:
                self._kept.pop(named)
                named.forget()
            while sum(self._kept.values()) > _ALL_KEPT_BYTES:
                oldest = next(iter(self._kept))
                self._kept.pop(oldest)
                oldest.forget()
        named.end()

    async def _ready(self, named: _Named, asked: Asked) -> Sequence:
        """Return the sequence of a request; open or reset it if the request begins it. Raises RefusedError."""
        try:
            if named.sequence is None and asked.start:
                named.sequence = await self._apart(lambda: self._server.sequence(recompute=self._recompute))
            elif named.sequence is not None and asked.start:
                await self._apart(named.sequence.reset)
        except PlaceitError as error:
            raise refusal_of(error, closed=True) from error
        if named.sequence is None:
            raise self._unknown(asked)
        return named.sequence

    def _unknown(self, asked: Asked) -> RefusedError:
        return RefusedError(
            Status.UNKNOWN,
            f"There is no sequence {asked.name!r}: it has ended, none of its requests has come for {self._idle_s:g} s, or "
            "none begins it: begin one with 'sequence_start'.",
        )

    async def _apart(self, function: Callable[[], T]) -> T:
        """Call a function that may ask nodes, on another thread."""
        async with self._slow:
            return await asyncio.to_thread(function)

    def _wait(self, name: int | str, named: _Named) -> None:
        """Restart the idle time, after which the sequence is closed and its last answer is dropped."""
        if self._named.get(name) is not named:
            return
        if named.timer is not None:
            named.timer.cancel()
        if named.sequence is None and named.last is None and not named.users:
            del self._named[name]
            return
        named.timer = asyncio.get_running_loop().call_later(self._idle_s, self._tire, name)

    def _tire(self, name: int | str) -> None:
        """Drop a sequence whose idle time is over, unless a request of it is being submitted."""
        if not self._named[name].users:
            self._drop(name)

    def close(self) -> None:
        """Close all sequences; requests that were submitted run."""
        for name in [*self._named]:
            self._drop(name)

    def _forget(self) -> None:
        """Drop the sequences that have ended, and their last answers."""
        for name in [name for name, named in self._named.items() if named.sequence is None and not named.users]:
            self._drop(name)

    def _drop(self, name: int | str) -> None:
        named = self._named.pop(name)
        self._kept.pop(named, None)
        if named.timer is not None:
            named.timer.cancel()
        named.close()


async def _until_done(answer: Answer) -> None:
    """Wait until an answer succeeds or fails. If the caller is cancelled, the answer is not."""
    # not wrap_future: if the answer fails, asyncio logs that no code has retrieved the copy's exception
    done = asyncio.Event()
    answer.add_done_callback(_later(lambda _: done.set(), asyncio.get_running_loop()))
    await done.wait()


def _later(function: Callable[[Answer], object], loop: asyncio.AbstractEventLoop) -> Callable[[Any], None]:
    """Return a callback of an answer that calls a function on the thread of the event loop."""

    def call(answer: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and its sequences with the server
            loop.call_soon_threadsafe(function, answer)

    return call
