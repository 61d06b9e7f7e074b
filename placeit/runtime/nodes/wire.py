"""Sockets between nodes: an authenticated handshake, then frames of a header and raw bytes.

Data from a socket is never unpickled. A payload is received into memory that the receiver has prepared for it; otherwise the
connection ends. Sizes of a tensor in a frame are checked before memory is allocated for them
(:mod:`placeit.runtime.nodes.tensors`).
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import hmac
import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from placeit.core.errors import DeviceError

__all__ = ["CHUNK", "Connection", "Frame", "Kind", "Listener", "Parcel", "ProtocolError", "Receiver", "connect"]

CHUNK = 1 << 17
"""Maximum bytes of a frame's payload, which a frame of higher priority may have to wait for."""
_MAX_DIRECT_BYTES = 1 << 18  # limit on payloads that are sent on the calling thread
_MAX_JOINED_BYTES = 1 << 14  # limit on a payload that is sent in one call with its header
_READ_BYTES = 1 << 16  # size of the read buffer
_MAGIC = b"placeit nodes 2\n"
_NONCE = 32
_HANDSHAKE_S = 5.0
_MAX_HANDSHAKES, _BACKLOG = 32, 128  # limits on connections in the handshake, and on those that wait for it
_ATTEMPTS, _PAUSE_S = 3, 0.1
_UNSENT = 1 << 18  # limit on unsent bytes in the kernel
_TCP_NOTSENT_LOWAT = 25
_HEADER = struct.Struct("<BBBxIIIIQdd")  # the third field is the number of sizes, which follow the header
_MAX_SIZES = 255  # sizes in a message, whose header counts them in a byte


class ProtocolError(Exception):
    """The other end has violated the protocol; its connection is closed."""


class Kind(IntEnum):
    """Kinds of frame."""

    BEGIN = 1
    DATA = 2
    ENDED = 3
    ARRIVED = 4
    PING = 5
    PONG = 6
    LOST = 7


class Frame(NamedTuple):
    """The header of a frame.

    Attributes:
        kind: a :class:`Kind`.
        coding: coding of data; see :mod:`placeit.runtime.nodes.coding`.
        slot: number of a slot, for a request in flight.
        epoch: number of a run of the slot.
        target: number of a buffer or an instance.
        size: bytes of the payload.
        offset: offset of the payload in the buffer, in bytes.
        start: seconds by the sender's clock.
        finish: seconds by the sender's clock; of data, the scale of its coding.
        sizes: of data, the sizes of all dimensions of its tensor if they are open; empty if they are fixed.
    """

    kind: int
    coding: int = 0
    slot: int = 0
    epoch: int = 0
    target: int = 0
    size: int = 0
    offset: int = 0
    start: float = 0.0
    finish: float = 0.0
    sizes: tuple[int, ...] = ()

    def packed(self, size: int, offset: int = 0) -> bytes:
        """Return the header for a part of its payload: ``size`` bytes from ``offset`` on."""
        kind, coding, *others, sizes = self._replace(size=size, offset=offset)
        return _HEADER.pack(kind, coding, len(sizes), *others) + struct.pack(f"<{len(sizes)}I", *sizes)


class Receiver(Protocol):
    """Receives the frames of a connection, on the thread of the connection."""

    def place(self, frame: Frame) -> memoryview | None:
        """Return memory of the payload's size, or None to drop the payload. Raises ProtocolError if it is not expected."""

    def handle(self, frame: Frame, payload: memoryview | None, connection: Connection) -> None:
        """Handle a frame whose payload has been received. Raises ProtocolError if the frame is invalid."""

    def lost(self, connection: Connection, why: str) -> None:
        """Handle the end of the connection: nothing more will come. Called once."""


class Parcel(NamedTuple):
    """A frame to send, with its payload.

    Attributes:
        frame: the header; its size is set when it is sent.
        payload: must not change before it has been sent, or is no longer current (:meth:`Connection.send_all`).
        priority: frames with lower values are sent first; frames with equal values in the order in which they were given.
    """

    frame: Frame
    payload: memoryview | None = None
    priority: tuple[float, ...] = ()


class _Message:
    """A frame that is being sent in parts; ``offset`` is the number of bytes of its payload that have been sent."""

    def __init__(self, frame: Frame, payload: memoryview, is_current: Callable[[], bool]) -> None:
        self.frame, self.payload, self.is_current = frame, payload, is_current
        self.offset = 0


class Connection:
    """An authenticated socket: a thread receives frames, and frames are sent in the order of their priority.

    Args:
        sock: an authenticated socket, as :func:`connect` returns it.
        name: name of the other end.
        receiver: gets the frames.
        patience: seconds in which the other end has to acknowledge data.
    """

    def __init__(self, sock: socket.socket, name: str, receiver: Receiver, patience: float) -> None:
        self.name, self._sock, self._receiver = name, sock, receiver
        self._queue: list[tuple[tuple[float, ...], int, _Message]] = []
        self._count = itertools.count()
        self._changed = threading.Condition()
        self._sending = self._closed = False
        self._end_lock = threading.Lock()
        self.sent = 0  # bytes
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # Linux only
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(patience * 1000))
        for what, job in (("from", self._receive), ("to", self._send)):
            threading.Thread(target=job, name=f"placeit {what} {name}", daemon=True).start()

    def send(self, frame: Frame, payload: memoryview | None = None, *, priority: tuple[float, ...] = ()) -> None:
        """Send a frame; see :meth:`send_all`."""
        self.send_all([Parcel(frame, payload, priority)])

    def send_all(self, parcels: Sequence[Parcel], is_current: Callable[[], bool] = lambda: True) -> None:
        """Send frames without waiting. A long payload is sent in several frames, and other frames may be sent between them.

        Args:
            parcels: the frames.
            is_current: returns whether they still have to be sent; called before each part that is not sent immediately.
        """
        messages = [_Message(one.frame, memoryview(b"") if one.payload is None else one.payload, is_current) for one in parcels]
        with self._changed:
            if self._closed:
                return
            sent_count = 0 if self._sending or self._queue else self._send_now(messages)
            for parcel, message in zip(parcels[sent_count:], messages[sent_count:], strict=True):
                heapq.heappush(self._queue, (parcel.priority, next(self._count), message))
            if self._queue:
                self._changed.notify()

    def _send_now(self, messages: Sequence[_Message]) -> int:
        """Send the first messages on the calling thread if they are small and the socket accepts them; return their number.

        If the socket accepts only a part of them, the sending thread sends the rest.
        """
        small = [*itertools.takewhile(lambda message: len(message.payload) <= CHUNK, messages)]
        if not small or sum(len(message.payload) for message in small) > _MAX_DIRECT_BYTES:
            return 0
        data = b"".join(part for one in small for part in (one.frame.packed(len(one.payload)), one.payload))
        try:
            done = self._sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            with contextlib.suppress(OSError):  # the receiving thread notices it, and reports it without holding the lock
                self._sock.shutdown(socket.SHUT_RDWR)
            return len(messages)
        self.sent += done
        if done < len(data):
            rest = _Message(Frame(0), memoryview(data)[done:], lambda: True)
            heapq.heappush(self._queue, ((-float("inf"),), next(self._count), rest))
        return len(small)

    def _send(self) -> None:
        try:
            while True:
                with self._changed:
                    self._sending = False
                    while not self._queue and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
                    priority, count, message = heapq.heappop(self._queue)
                    self._sending = True
                if self._send_part(message):
                    with self._changed:
                        heapq.heappush(self._queue, (priority, count, message))
        except BaseException as error:  # noqa: BLE001 (it is reported to the receiver)
            self._end(error)

    def _send_part(self, message: _Message) -> bool:
        """Send the next part of a message in one frame; return whether there are more parts."""
        if message.frame.kind == 0:  # the rest of what :meth:`_send_now` has sent
            self._sock.sendall(message.payload)
            self.sent += len(message.payload)
            return False
        if not message.is_current():
            return False
        part = message.payload[message.offset : message.offset + CHUNK]
        header = message.frame.packed(len(part), message.offset)
        if len(part) <= _MAX_JOINED_BYTES:
            self._sock.sendall(header + part)
        else:
            self._sock.sendall(header, socket.MSG_MORE)
            self._sock.sendall(part)
        self.sent += len(header) + len(part)
        message.offset += len(part)
        return message.offset < len(message.payload)

    def _receive(self) -> None:
        header, sizes = memoryview(bytearray(_HEADER.size)), memoryview(bytearray(4 * _MAX_SIZES))
        discarded, reader = memoryview(bytearray(CHUNK)), _BufferedReader(self._sock)
        try:
            while True:
                reader.fill(header)
                kind, coding, count, *others = _HEADER.unpack(header)
                reader.fill(sizes[: 4 * count])
                frame = Frame._make((kind, coding, *others, struct.unpack_from(f"<{count}I", sizes) if count else ()))
                if frame.size > CHUNK:
                    raise ProtocolError(f"a frame of {frame.size} bytes, more than the maximum of {CHUNK}")
                into: memoryview | None = None
                if frame.size:
                    into = self._receiver.place(frame)
                    reader.fill(discarded[: frame.size] if into is None else into)
                if into is not None or not frame.size:
                    self._receiver.handle(frame, into, self)
        except BaseException as error:  # noqa: BLE001 (any error ends the connection, and is reported)
            self._end(error)

    def _end(self, error: BaseException) -> None:
        if self._end_lock.acquire(blocking=False):
            closed = self._closed
            self.close()
            if not closed:
                self._receiver.lost(self, _reason(error))

    def close(self) -> None:
        """Close the connection and end both threads, without reporting a loss."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        if self._changed.acquire(timeout=1.0):  # reentrant: the caller may hold it, in a thread that sends
            self._changed.notify_all()
            self._changed.release()


def _reason(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, OSError | EOFError | ProtocolError):
        return text or "the connection was closed by the other end"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Listener:
    """Accepts connections from processes that know the secret. Other processes get a nonce, and are closed after 5 s.

    If there are more than 32 connections in the handshake, the oldest one of them is closed.

    Args:
        host: address of this node; never all interfaces.
        secret: the secret.
        accept: called with the socket and the name of each process that knows the secret.
    """

    def __init__(self, host: str, secret: bytes, accept: Callable[[socket.socket, str], object]) -> None:
        if host in ("", "0.0.0.0", "::"):  # noqa: S104
            raise DeviceError(f"A node listens on its own address only, and not on '{host}'.")
        self._secret, self._accept = secret, accept
        self._handshakes: list[socket.socket] = []  # the oldest first
        self._lock, self._closed = threading.Lock(), threading.Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self.address: tuple[str, int] = self._sock.getsockname()[:2]
        threading.Thread(target=self._listen, name="placeit listener", daemon=True).start()

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = self._sock.accept()
            except OSError:  # such as too many open files, which passes
                self._closed.wait(_PAUSE_S)
                continue
            with self._lock:
                self._handshakes.append(sock)
                if len(self._handshakes) > _MAX_HANDSHAKES:
                    with contextlib.suppress(OSError):  # its thread closes it
                        self._handshakes.pop(0).shutdown(socket.SHUT_RDWR)
            try:
                threading.Thread(target=self._handshake, args=(sock,), name="placeit handshake", daemon=True).start()
            except RuntimeError:  # too many threads
                self._reject(sock)

    def _handshake(self, sock: socket.socket) -> None:
        try:
            name = _server_handshake(sock, self._secret)
            with self._lock:
                if sock not in self._handshakes:
                    raise EOFError("it was closed to make room for another one")
                self._handshakes.remove(sock)
            self._accept(sock, name)
        except (OSError, EOFError, ProtocolError, UnicodeDecodeError, RuntimeError):  # the last one for too many threads
            self._reject(sock)

    def _reject(self, sock: socket.socket) -> None:
        with self._lock:
            if sock in self._handshakes:
                self._handshakes.remove(sock)
            sock.close()

    def close(self) -> None:
        """Stop accepting connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def connect(address: tuple[str, int], secret: bytes, name: str) -> socket.socket:
    """Connect to a listener; both ends prove to each other that they know the secret.

    If the listener closes the connection, there are two more attempts: it may have closed it to make room for another one.

    Args:
        address: host and port.
        secret: secret of the listener.
        name: name of this end.

    Raises:
        DeviceError: nothing answers at the address, or the other end does not know the secret.
    """
    where, deadline, attempts = f"{address[0]}:{address[1]}", time.monotonic() + _HANDSHAKE_S, _ATTEMPTS
    while True:
        try:
            sock = socket.create_connection(address, timeout=_HANDSHAKE_S)
        except OSError as error:
            raise DeviceError(f"Nothing answers at {where}: {error.strerror or error}.") from error
        try:
            _client_handshake(sock, secret, name, deadline)
        except (OSError, EOFError, ProtocolError) as error:
            sock.close()
            attempts -= 1
            if attempts == 0 or not isinstance(error, EOFError | ConnectionError):
                raise DeviceError(f"The handshake with {where} failed: {str(error) or 'it ended the connection'}.") from error
            time.sleep(_PAUSE_S)
        else:
            return sock


def _client_handshake(sock: socket.socket, secret: bytes, name: str, deadline: float) -> None:
    """Perform the handshake of the end that connects."""
    hello = _receive_exactly(sock, len(_MAGIC) + _NONCE, deadline)
    if hello[: len(_MAGIC)] != _MAGIC:
        raise ProtocolError("the other end uses another protocol, or another version of it")
    theirs, mine, called = hello[len(_MAGIC) :], os.urandom(_NONCE), name.encode()[:255]
    proof = _proof(secret, b"client", theirs, mine, called)
    sock.sendall(mine + bytes([len(called)]) + called + proof)
    if not hmac.compare_digest(_receive_exactly(sock, len(proof), deadline), _proof(secret, b"server", mine, theirs, called)):
        raise ProtocolError("the other end does not know the secret of this run")


def _server_handshake(sock: socket.socket, secret: bytes) -> str:
    """Perform the handshake of the end that listens; return the name of the other end."""
    deadline = time.monotonic() + _HANDSHAKE_S
    sock.settimeout(_HANDSHAKE_S)
    mine = os.urandom(_NONCE)
    sock.sendall(_MAGIC + mine)
    theirs = _receive_exactly(sock, _NONCE, deadline)
    called = _receive_exactly(sock, _receive_exactly(sock, 1, deadline)[0], deadline)
    proof = _receive_exactly(sock, hashlib.sha256().digest_size, deadline)
    if not hmac.compare_digest(proof, _proof(secret, b"client", mine, theirs, called)):
        raise ProtocolError("the other end does not know the secret")
    sock.sendall(_proof(secret, b"server", theirs, mine, called))
    return called.decode()


def _proof(secret: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret, b"".join(len(part).to_bytes(4, "little") + part for part in parts), hashlib.sha256).digest()


def _receive_exactly(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = memoryview(bytearray(size))
    while data:
        sock.settimeout(max(1e-3, deadline - time.monotonic()))
        data = data[_read(sock, data) :]
    return bytes(data.obj)


class _BufferedReader:
    """Reads a socket through a buffer: each call of the socket releases and takes Python's global interpreter lock."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._memory = sock, memoryview(bytearray(_READ_BYTES))
        self._read = memoryview(b"")

    def fill(self, into: memoryview) -> None:
        """Wait until ``into`` is filled. Raises EOFError if the connection ends before."""
        while into:
            if self._read:
                count = min(len(into), len(self._read))
                into[:count], self._read = self._read[:count], self._read[count:]
                into = into[count:]
            elif len(into) < _READ_BYTES:
                self._read = self._memory[: _read(self._sock, self._memory)]
            else:
                into = into[_read(self._sock, into) :]


def _read(sock: socket.socket, into: memoryview) -> int:
    count = sock.recv_into(into)
    if count == 0:
        raise EOFError("the other end closed it")
    return count
