"""The bodies of requests over HTTP, read within limits."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncIterator
from typing import Any, Final

import numpy as np
from starlette.requests import Request

from placeit.core.records import parsed
from placeit.serve.arriving import Room
from placeit.serve.refusal import RefusedError, Status, invalid
from placeit.serve.service import Service

__all__ = ["Bodies"]

_JOINED_BYTES: Final = 1 << 20  # most bytes of a body that are joined on the thread of the event loop
_AT_ONCE: Final = 16  # most bytes of all bodies that are kept at once, in multiples of the limit of one body
_SMALL_BYTES: Final = 1 << 15  # most bytes of a body that takes no room from larger ones, nor they from it
_SMALL_AT_ONCE: Final = 1024  # of these that are kept at once
_WINDOWS: Final = {"identity": 0, "gzip": 31, "deflate": 15}  # content encodings, with zlib's number for them


class Bodies:
    """Reads the bodies of requests, within a limit of the bytes that are kept at once.

    Small bodies, of known length, have separate room: large ones that do not end keep none of them out.

    Args:
        service: whose requests they are.
        most_bytes: of one body; all bodies together may have 16 times as many.
    """

    def __init__(self, service: Service, most_bytes: int) -> None:
        self._service = service
        self._most, what = most_bytes, "bytes of requests are being read"
        self._room, self._small = Room(most_bytes * _AT_ONCE, what), Room(_SMALL_BYTES * _SMALL_AT_ONCE, what)

    @contextlib.asynccontextmanager
    async def of(self, request: Request, most_bytes: int | None = None) -> AsyncIterator[bytes | memoryview]:
        """Read the body of a request, which counts towards the limit until the context ends.

        Args:
            request: the request.
            most_bytes: a lower limit for its body; None for none.

        Raises:
            RefusedError: the body is too large, or no such body can be read.
        """
        most = self._most if most_bytes is None else min(self._most, most_bytes)
        encoding = request.headers.get("content-encoding", "identity")
        if encoding not in _WINDOWS:
            raise RefusedError(Status.ENCODED, f"The content encoding '{encoding}' is not supported: gzip and deflate are.")
        length = int(request.headers.get("content-length", 0))
        if length > most:
            raise self._too_large(most)
        room = self._small if 0 < length <= _SMALL_BYTES and encoding == "identity" else self._room
        parts: list[bytes] = []
        size, more = 0, True
        async with room.arrival() as arrival:
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise RefusedError(Status.GONE, "The client has gone.")
                part, more = message.get("body", b""), message.get("more_body", False)
                size += len(part)
                if size > most:
                    raise self._too_large(most)
                room.take(arrival, len(part))
                parts.append(part)
            room.arrived(arrival)
            body: bytes | memoryview
            if size > _JOINED_BYTES:
                body = await self._service.apart(_joined, parts, brief=True)
            else:
                body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            if encoding != "identity":
                body = await self._service.apart(self._decoded, body, _WINDOWS[encoding], most)
                room.take(arrival, len(body))
            yield body

    def _decoded(self, body: bytes | memoryview, window: int, most: int) -> bytes:
        """Decompress a body. Raises RefusedError if it is larger than a body may be, or not compressed in this way."""
        reader = zlib.decompressobj(window)
        try:
            found = reader.decompress(body, most + 1)
        except zlib.error as error:
            raise invalid(f"The body is not compressed as its content encoding says: {error}.") from None
        if len(found) > most:
            raise self._too_large(most)
        if not reader.eof:
            raise invalid("The compressed body ends too early.")
        return found

    def _too_large(self, most: int) -> RefusedError:
        option = " (--max-request-bytes)" if most == self._most else ""
        return RefusedError(Status.TOO_LARGE, f"The body of a request has at most {most} bytes here{option}.")

    async def json_object(self, request: Request, most_bytes: int) -> dict[str, Any]:
        """Read a request whose body is a small JSON object; an empty object without a body. Raises RefusedError."""
        async with self.of(request, most_bytes) as body:
            try:
                found = parsed(bytes(body) or b"{}")
            except ValueError as error:
                raise invalid(f"The body of this request is not JSON: {error}.") from None
        if not isinstance(found, dict):
            raise invalid("The body of this request is to be a JSON object.")
        return found


def _joined(parts: list[bytes]) -> memoryview:
    """Return the parts of a body as one, copied part by part; other threads can run in between."""
    whole, at = np.empty(sum(map(len, parts)), np.uint8).data, 0
    for part in parts:
        whole[at : at + len(part)] = part
        at += len(part)
    return whole
