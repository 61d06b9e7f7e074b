"""Connections of clients that are slow, or send more than a server reads: a limit for all that uvicorn waits for."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["Connection"]

_HEAD_BYTES: Final = 1 << 16  # of the request line and headers
_PIPELINED: Final = 64  # requests that a client may send before the first of them is answered
_SPARE: Final = 2  # times the bytes of a body, which are read and forgotten so that a client sees that it sends too much


class Connection(HttpToolsProtocol):
    """A connection on which a request has to arrive in time, and its answer has to be taken in time.

    Args:
        patience_s: seconds for a request to arrive, from the first byte on, or for a new connection; and for an answer to be
            taken on.
        most_bytes: of the body of a request.
    """

    def __init__(self, *args: Any, patience_s: float, most_bytes: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._patience_s, self._most = patience_s, most_bytes
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._bytes, self._in_head = 0, True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._cancel()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what the client sends, and leave it if that is too much."""
        self._bytes += len(data)
        super().data_received(data)
        if self._bytes > _HEAD_BYTES + (0 if self._in_head else _SPARE * self._most):
            self._leave(b"431 Request Header Fields Too Large")
        elif len(self.pipeline) > _PIPELINED:
            self._leave(b"400 Bad Request")

    def on_message_begin(self) -> None:
        """Wait for the rest of a request."""
        super().on_message_begin()
        self._bytes, self._in_head = 0, True
        self._await_request()

    def on_headers_complete(self) -> None:
        """Wait for the body of a request."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Have all of a request."""
        self._cancel()
        self._bytes, self._in_head = 0, True
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Wait for the client to take its answer."""
        super().pause_writing()
        self._writing = self.loop.call_later(self._patience_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    def _await_request(self) -> None:
        self._cancel()
        self._reading = self.loop.call_later(self._patience_s, self._too_slow)

    def _cancel(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _too_slow(self) -> None:
        """Leave a client that is too slow, unless it is this server that reads nothing, as it answers another request first."""
        if self.flow.read_paused:
            self._await_request()
        else:
            self._leave(b"408 Request Timeout")

    def _leave(self, status: bytes) -> None:
        """Close the connection, with an answer if there was none."""
        if not (self.transport.is_closing() or self.pipeline or (self.cycle is not None and self.cycle.response_started)):
            self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()
