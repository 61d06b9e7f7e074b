"""HTTP connections with limits on time and size, for clients that are slow or send too much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["Connection", "Crowd", "drop", "has_arrived", "on_leave"]

_CONTINUE: Final = b"HTTP/1.1 100"
_JOINED_BYTES: Final = 1 << 16  # most bytes of a body that are copied behind the head of the answer
_OF_SCOPE: Final = "placeit.connection"
_HEAD_BYTES: Final = 1 << 16  # most bytes of the request line and headers
_HEADS_BYTES: Final = 1 << 22  # most bytes of all heads that have not arrived whole
_PIPELINED: Final = 64  # requests that a client may send before the first of them is answered
_SPARE: Final = 2  # times the limit of a body that are read before the connection is closed, so that a client sees its answer


class Crowd:
    """The connections of a server, of which those without a request give way to new ones.

    Args:
        max_open: maximum number of open connections.

    Attributes:
        closing: whether the server is closing; connections that are made from then on are closed at once.
    """

    def __init__(self, max_open: int) -> None:
        self.closing = False
        self._max_open, self._open, self._heads = max_open, 0, 0
        self._waiting: dict[Connection, None] = {}  # for a request to arrive, the one that waits for longest first

    def enter(self) -> None:
        """Count a new connection, and close the one that waits for longest if there are too many."""
        self._open += 1
        if self._open > self._max_open and self._waiting:
            first = next(iter(self._waiting))
            del self._waiting[first]
            first.transport.abort()

    def leave(self, one: Connection) -> None:
        """Count a connection that has been closed."""
        self._open -= 1
        self._waiting.pop(one, None)

    def head(self, more: int) -> None:
        """Count bytes of incomplete heads; close the oldest connections with one if there are too many."""
        self._heads += more
        for one in [*self._waiting] if more > 0 else ():
            if self._heads <= _HEADS_BYTES:
                break
            if one.head:
                del self._waiting[one]
                self._heads -= one.head
                one.head = 0
                one.transport.abort()

    def wait(self, one: Connection, *, waits: bool) -> None:
        """Record whether a connection waits for a request to arrive."""
        self._waiting.pop(one, None)
        if waits and not one.transport.is_closing():
            self._waiting[one] = None


class _Joining:
    """A transport that sends the head of an answer together with its body, which takes one call of the system less.

    Args:
        transport: transport of the connection.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""

    def __getattr__(self, name: str) -> Any:
        """Return another attribute of the transport."""
        return getattr(self._transport, name)

    def write(self, data: bytes | memoryview) -> None:
        """Keep the head of an answer, and write anything else, behind the head that was kept."""
        if not self._head and data[:5] == b"HTTP/" and data[:12] != _CONTINUE:
            self._head = bytes(data)
            return
        if self._head and len(data) <= _JOINED_BYTES:
            data, self._head = self._head + bytes(data), b""
        self.flush()
        self._transport.write(data)

    def flush(self) -> None:
        """Write the head of an answer without a body."""
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)

    def close(self) -> None:
        """Write what was kept, and close the transport."""
        self.flush()
        self._transport.close()


class _Parser:
    """A parser that declines upgrades to other protocols, such as Java's clients ask for (HTTP/2).

    httptools ends such a request after its head, so the head is parsed again without the header ``Upgrade``.

    Args:
        connection: its callbacks.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._parser = connection, HttpRequestParser(connection)

    def __getattr__(self, name: str) -> Any:
        """Return another attribute of the parser."""
        return getattr(self._parser, name)

    @property
    def declines(self) -> bool:
        """True at the end of a head that is to be parsed again."""
        return bool(self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT")

    def feed_data(self, data: bytes) -> None:
        """Parse bytes. Raises HttpParserError, or HttpParserUpgrade for the method CONNECT."""
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            if not self.declines:
                raise
            head = self._connection.head_without_upgrade(self._parser.get_method(), self._parser.get_http_version())
            self._parser = HttpRequestParser(self._connection)
            self.feed_data(head + data[upgrade.args[0] :])


def has_arrived(scope: Any) -> bool:
    """Return whether the whole body of a request has arrived, of which nothing was read."""
    connection: Connection | None = scope.get(_OF_SCOPE)
    cycle = None if connection is None else connection.cycle
    return (
        cycle is not None
        and cycle.scope is scope
        and not (cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue)
    )


def on_leave(scope: Any, callback: Callable[[], object]) -> Callable[[], None]:
    """Call a function when the client of a request, whose body was read, disconnects; return a function that undoes this."""
    connection: Connection = scope[_OF_SCOPE]
    return connection.on_leave(callback)


def drop(scope: Any) -> Callable[[], None]:
    """Return a function that closes the connection of a request at once."""
    connection: Connection = scope[_OF_SCOPE]
    return connection.transport.abort


class Connection(HttpToolsProtocol):
    """A connection that is closed if a request does not arrive in time, or the client does not receive its answer in time.

    Args:
        timeout_s: seconds for a request to arrive, from its first byte or from the start of the connection, and for the client
            to receive an answer.
        max_bytes: of the body of a request.
        crowd: all connections of the server.

    Attributes:
        head: bytes of a head that has not arrived whole.
    """

    def __init__(self, *args: Any, timeout_s: float, max_bytes: int, crowd: Crowd, **options: Any) -> None:
        super().__init__(*args, **options)
        self.parser: Any = _Parser(self)
        self._timeout_s, self._max_bytes, self._crowd = timeout_s, max_bytes, crowd
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._bytes, self.head, self._in_head, self._begun = 0, 0, True, False
        self._leaving: dict[Callable[[], object], None] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._joining = _Joining(transport)
        self.transport = cast("asyncio.Transport", self._joining)
        self._crowd.enter()
        self._crowd.wait(self, waits=True)
        self._await_request()
        if self._crowd.closing:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers of the connection, and end its reference cycles, which would keep its buffers for the collector."""
        self._crowd.leave(self)
        self._crowd.head(-self.head)
        self._cancel()
        for callback in [*self._leaving]:
            callback()
        self.resume_writing()
        super().connection_lost(exc)
        self.parser = self.cycle = self.scope = cast("Any", None)

    def on_leave(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call a function when the client disconnects, or now if it has; return a function that undoes this."""
        self.flow.resume_reading()  # the end of the connection is noticed only while it is read
        if self.transport.is_closing():
            callback()
        self._leaving[callback] = None
        return lambda: self._leaving.pop(callback, None)

    def data_received(self, data: bytes) -> None:
        """Read bytes from the client, and close the connection if there are too many."""
        for at in range(0, len(data), _HEAD_BYTES):
            piece = data[at : at + _HEAD_BYTES]
            self._bytes += len(piece)
            super().data_received(piece)
            more = len(piece) if self._begun else -self.head
            self.head += more
            self._crowd.head(more)
            if self._bytes > _HEAD_BYTES + (0 if self._in_head else _SPARE * self._max_bytes):
                self._leave(b"431 Request Header Fields Too Large")
            if self.transport.is_closing():
                break

    def on_message_begin(self) -> None:
        """Start the time limit of a request. Raises ValueError, which ends the connection, if too many have been sent ahead."""
        if len(self.pipeline) >= _PIPELINED:
            raise ValueError
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[_OF_SCOPE] = self
        self._bytes, self._in_head, self._begun = 0, True, True
        self._await_request()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header, without the blanks around its value (RFC 9110, section 5.5): httptools keeps those behind it."""
        super().on_header(name, value.strip(b" \t"))

    def head_without_upgrade(self, method: bytes, version: str) -> bytes:
        """Return the head of the current request without the header ``Upgrade``."""
        kept = (name + b": " + value + b"\r\n" for name, value in self.headers if name != b"upgrade")
        return b"".join([method, b" ", self.url, b" HTTP/", version.encode(), b"\r\n", *kept, b"\r\n"])

    def on_headers_complete(self) -> None:
        """Record that the body of a request follows."""
        if self.parser.declines:
            return
        self._in_head = self._begun = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the time limit of a request, which has arrived."""
        if self.parser.declines:
            return
        self._cancel()
        self._crowd.wait(self, waits=False)
        self._bytes, self._in_head = 0, True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it has arrived already."""
        self._joining.flush()
        super().on_response_complete()
        if self.cycle is None or self.cycle.response_complete:
            self._crowd.wait(self, waits=True)

    def pause_writing(self) -> None:
        """Start the time limit for the client to receive its answer."""
        super().pause_writing()
        self._writing = self.loop.call_later(self._timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the time limit for the answer, and continue to write."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    def _await_request(self) -> None:
        self._cancel()
        self._reading = self.loop.call_later(self._timeout_s, self._too_slow)

    def _cancel(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _too_slow(self) -> None:
        """Close the connection of a slow client, unless the server has paused reading to answer an earlier request."""
        if self.flow.read_paused:
            self._await_request()
        else:
            self._leave(b"408 Request Timeout")

    def _leave(self, status: bytes) -> None:
        """Close the connection, with an error status unless another answer is due or has begun."""
        if not (self.transport.is_closing() or self.pipeline or (self.cycle is not None and self.cycle.response_started)):
            self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()
