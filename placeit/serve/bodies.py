"""The bodies of requests over HTTP, read within limits."""

from __future__ import annotations

import contextlib
import mmap
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from placeit.core.records import parsed
from placeit.serve.arriving import SMALL_BYTES, Arrival, Room
from placeit.serve.http_connection import has_arrived
from placeit.serve.refusal import RefusedError, Status, invalid
from placeit.serve.service import Service

__all__ = ["Bodies", "Body"]

_MAPPED_BYTES: Final = 1 << 20  # bytes from which on a body is mapped, so that the system has its memory back at once
_SMALL_AT_ONCE: Final = 128  # small bodies of the largest size that are kept at once
_WINDOWS: Final = {"identity": 0, "gzip": 31, "deflate": 15}  # content encodings, with zlib's number for them


@dataclass(frozen=True)
class Body:
    """The body of a request, which takes room until it is closed.

    Attributes:
        data: its bytes.
        room: that it takes.
        arrival: of the request.
    """

    data: memoryview
    room: Room
    arrival: Arrival

    def close(self) -> None:
        """Free its room."""
        self.room.end(self.arrival)

    def answered(self, size: int, drop: Callable[[], object]) -> None:
        """Take room for the answer, of ``size`` bytes; ``drop`` disconnects a client that reads it slowly."""
        self.room.answered(self.arrival, size, drop)


class Bodies:
    """Reads the bodies of requests, which share room.

    Small bodies of known length have separate room, so that large ones do not keep them out.

    Args:
        service: whose requests they are.
        max_bytes: of one body.
        room: bytes that are kept at once, at least ``max_bytes``.
    """

    def __init__(self, service: Service, max_bytes: int, room: Room) -> None:
        self._service, self._max_bytes, self._room = service, max_bytes, room
        self._small = Room(SMALL_BYTES * _SMALL_AT_ONCE, "bytes of requests are being read")

    async def read(self, request: Request, max_bytes: int | None = None) -> Body:
        """Read the body of a request.

        Args:
            request: the request.
            max_bytes: a lower limit for its body; None for none.

        Raises:
            RefusedError: the body is too large, or cannot be read.
        """
        limit = self._max_bytes if max_bytes is None else min(self._max_bytes, max_bytes)
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in _WINDOWS:
            raise RefusedError(Status.ENCODED, f"The content encoding '{encoding}' is not supported: gzip and deflate are.")
        length = int(request.headers.get("content-length", 0))
        if length > limit:
            raise self._too_large(limit)
        room = self._small if 0 < length <= SMALL_BYTES and encoding == "identity" else self._room
        if room is self._small and has_arrived(request.scope):
            at_once = room.taken_at_once(length)
            if at_once is not None:
                return Body(memoryview((await request.receive())["body"]).toreadonly(), room, at_once)
        arrival = room.begin()
        try:
            async with room.arriving(arrival):
                body = await self._received(request, arrival, room, length, limit)
                if encoding != "identity":
                    body = memoryview(await self._service.apart(self._decoded, body, _WINDOWS[encoding], limit))
                    room.take(arrival, len(body))
        except BaseException:
            room.end(arrival)
            raise
        return Body(body, room, arrival)

    async def _received(self, request: Request, arrival: Arrival, room: Room, length: int, limit: int) -> memoryview:
        """Receive a body of ``length`` bytes, 0 if unknown. Raises RefusedError if it has more than ``limit`` bytes."""
        if length:
            await room.reserve(arrival, length)
        buffer = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) if length > _MAPPED_BYTES else bytearray(length)
        size, more = 0, True
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise RefusedError(Status.GONE, "The client has gone.")
            part, more = message.get("body", b""), message.get("more_body", False)
            if size + len(part) > limit:
                raise self._too_large(limit)
            if not length:
                room.take(arrival, len(part))
            buffer[size : size + len(part)] = part
            size += len(part)
        room.arrived(arrival)
        return memoryview(buffer).toreadonly()

    def _decoded(self, body: memoryview, window: int, limit: int) -> bytes:
        """Decompress a body. Raises RefusedError if it has more than ``limit`` bytes, or is damaged."""
        reader = zlib.decompressobj(window)
        try:
            found = reader.decompress(body, limit + 1)
        except zlib.error as error:
            raise invalid(f"The body is not compressed as its content encoding says: {error}.") from None
        if len(found) > limit:
            raise self._too_large(limit)
        if not reader.eof or reader.unused_data:
            raise invalid(f"The compressed body ends too {'late' if reader.eof else 'early'}.")
        return found

    def _too_large(self, limit: int) -> RefusedError:
        option = " (--max-request-bytes)" if limit == self._max_bytes else ""
        return RefusedError(Status.TOO_LARGE, f"The body of a request has at most {limit} bytes here{option}.")

    async def json_object(self, request: Request, max_bytes: int) -> dict[str, Any]:
        """Read a request whose body is a small JSON object; an empty object without a body. Raises RefusedError."""
        with contextlib.closing(await self.read(request, max_bytes)) as body:
            try:
                found = await self._service.by_size(len(body.data), parsed, bytes(body.data) or b"{}")
            except ValueError as error:
                raise invalid(f"The body of this request is not JSON: {error}.") from None
        if not isinstance(found, dict):
            raise invalid("The body of this request must be a JSON object.")
        return found
