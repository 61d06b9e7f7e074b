"""Requests for inference over a stream of gRPC: Triton's ``ModelStreamInfer``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

import grpc.aio

from placeit.serve.arriving import SMALL_BYTES, Room
from placeit.serve.refusal import RefusedError, Status, told
from placeit.serve.rpc_messages import Received, encoded
from placeit.serve.service import Service, about_to_end

__all__ = ["Methods", "Streams"]

_IN_FLIGHT: Final = 64  # most requests of a stream in flight
_SHARE: Final = 4  # a stream whose requests in flight take this part of the room is not read
_READ: Final = 1024  # most streams that wait for a request
_MIN_READ: Final = 16  # streams that may wait for a request, however large requests are
_ASKS_FINAL: Final = "triton_enable_empty_final_response"
_ANSWER: Final = 2  # number of the field of a response that is the answer
_IS_FINAL: Final = "triton_final_response"


@dataclass(frozen=True)
class Methods:
    """Methods of the protocol for streams.

    Attributes:
        response: class of a stream's responses.
        parse: returns the request in some bytes, with its tensors; raises RefusedError.
        sequence: returns a key of the sequence of a request; None without a valid sequence.
        infer: runs a request of a call, after another task has ended if there is one, and returns the answer, without its
            tensors, and their bytes.
    """

    response: Callable[[], Any]
    parse: Callable[[bytes], Awaitable[Received]]
    sequence: Callable[[Any], Hashable | None]
    infer: Callable[[Received, Any, asyncio.Task[None] | None], Awaitable[tuple[Any, list[memoryview]]]]


class Streams:
    """The streams of a server.

    A stream is read while few of its requests are in flight; otherwise, gRPC lets its client wait. The next request has no time
    limit unless too many streams wait for one, since the server cannot see whether a part of it has arrived.

    Args:
        service: its end ends the streams.
        methods: of the protocol.
        room: bytes of requests that are kept at once.
        max_bytes: of a request.
        timeout_s: seconds in which a client has to receive a response.
    """

    def __init__(self, service: Service, methods: Methods, room: Room, *, max_bytes: int, timeout_s: float) -> None:
        self.service, self.methods, self.room, self.timeout_s = service, methods, room, timeout_s
        most = min(_READ, max(_MIN_READ, room.size // max_bytes))
        self.reading = Room(most, "streams wait for requests")

    async def answer(self, context: Any) -> None:
        """Answer the requests of a stream until its client ends it. Raises RefusedError if it ends for another reason."""
        await context.send_initial_metadata(())  # before the first response: if that is not received, no status could follow it
        await _Stream(self, context).answer()


class _Stream:
    """A stream of requests; see :class:`Streams`."""

    def __init__(self, streams: Streams, context: Any) -> None:
        self._streams, self._context, self._methods = streams, context, streams.methods
        self._running: dict[asyncio.Task[None], tuple[int, Hashable | None]] = {}  # their bytes and sequences, the oldest first
        self._writing = asyncio.Lock()

    async def answer(self) -> None:
        end: RefusedError | None = None
        ending = asyncio.ensure_future(self._streams.service.ending.wait())
        try:
            async with asyncio.TaskGroup() as group:  # if the client leaves, which cancels this task, it cancels the requests
                try:
                    while await self._next(group, ending):
                        while self._is_full():
                            await asyncio.wait(self._running, return_when="FIRST_COMPLETED")
                except RefusedError as error:
                    end = error  # for the client, after the answers of its requests
        except* RefusedError as errors:
            end = next(error for error in errors.exceptions if isinstance(error, RefusedError))
        finally:
            ending.cancel()
        if end is not None:
            raise end

    def _is_full(self) -> bool:
        taken = sum(size for size, _ in self._running.values())
        return len(self._running) >= _IN_FLIGHT or taken >= self._streams.room.size // _SHARE

    async def _next(self, group: asyncio.TaskGroup, ending: asyncio.Future[Any]) -> bool:
        """Begin to serve the next request; return whether there was one. Raises RefusedError."""
        sent = await self._received(ending)
        if sent is None:
            return False
        sequence = None
        try:
            request = await self._methods.parse(sent)
        except Exception as error:  # noqa: BLE001 (it concerns this request only)
            serving = self._write(self._refused(error))
        else:
            sequence = self._methods.sequence(request.message)
            same = [task for task, (_, other) in self._running.items() if sequence is not None and other == sequence]
            serving = self._serve(request, len(sent), same[-1] if same else None)
        task = group.create_task(serving)
        self._running[task] = len(sent), sequence
        task.add_done_callback(self._running.pop)
        return True

    async def _received(self, ending: asyncio.Future[Any]) -> bytes | None:
        """Return the next request; None if the client sends no more. Raises RefusedError."""
        room = self._streams.reading
        async with room.arrival() as one:
            room.take(one, 1)
            coming = asyncio.ensure_future(self._context.read())
            try:
                await asyncio.wait([coming, ending], return_when="FIRST_COMPLETED")
                if not coming.done():
                    raise about_to_end()
                sent = coming.result()
            finally:
                coming.cancel()
        return None if sent is grpc.aio.EOF else sent

    async def _serve(self, sent: Received, size: int, before: asyncio.Task[None] | None) -> None:
        """Answer a request of a size, after the one before it in its sequence. Raises RefusedError."""
        request = sent.message
        final = _ASKS_FINAL in request.parameters and request.parameters[_ASKS_FINAL].bool_param
        try:
            with self._streams.room.kept(size):
                answer, raw = await self._methods.infer(sent, self._context, before)
                if final:
                    answer.parameters[_IS_FINAL].bool_param = True
                found = await encoded(self._streams.service, answer, raw, within=_ANSWER)
        except Exception as error:  # noqa: BLE001 (it concerns this request only)
            found = self._refused(error, request.id, final=final)
        await self._write(found)

    def _refused(self, error: Exception, request: str = "", *, final: bool = False) -> bytes:
        answer = self._methods.response()
        answer.error_message = str(told(error))
        answer.infer_response.id = request
        if final:
            answer.infer_response.parameters[_IS_FINAL].bool_param = True
        return bytes(answer.SerializeToString())

    async def _write(self, answer: bytes) -> None:
        """Send a response. Raises RefusedError if the client has gone, or does not receive it in time."""
        room = self._streams.room
        sending = room.begin()
        if len(answer) > SMALL_BYTES:
            room.answered(sending, len(answer))
        try:
            async with asyncio.timeout(None) as sending.limit:
                await self._writing.acquire()  # for good if this fails: the stream ends, and gRPC takes no other response
                sending.limit.reschedule(asyncio.get_running_loop().time() + self._streams.timeout_s)
                await self._context.write(answer)
        except TimeoutError:
            raise RefusedError(Status.SLOW, "The client of this stream has not received its answers in time.") from None
        except grpc.aio.InternalError:
            raise RefusedError(Status.GONE, "The client has gone.") from None
        finally:
            room.end(sending)
        self._writing.release()
