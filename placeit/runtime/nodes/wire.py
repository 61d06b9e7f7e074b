"""Sockets between nodes: an authenticated handshake, then frames of a fixed header and raw bytes.

Data from a socket is never unpickled. A payload goes to memory that the receiver has prepared for it, or the connection ends.
Sizes of a tensor that come from a socket are checked before memory is allocated for them
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
"""Most bytes of a payload: an urgent frame waits for no more than this."""
_AT_ONCE = 1 << 18  # bytes of payloads that are sent without waking a thread
_SMALL = 1 << 14  # bytes of a payload that is copied behind its header
_READ = 1 << 16  # bytes that are read at once
_MAGIC = b"placeit nodes 2\n"
_NONCE = 32
_HANDSHAKE_S = 5.0
_STRANGERS, _BACKLOG = 32, 128  # most connections in the handshake, and most that wait for it
_TRIES, _PAUSE_S = 3, 0.1
_UNSENT = 1 << 18  # most unsent bytes in the kernel
_TCP_NOTSENT_LOWAT = 25
_HEADER = struct.Struct("<BBBxIIIIQdd")  # the third field is the number of sizes, which follow the header
_MAX_SIZES = 255  # sizes in a message, whose header counts them in a byte


class ProtocolError(Exception):
    """The other end does not keep to the protocol; its connection is closed."""


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
        start: seconds by the sender's clock, or a scale.
        finish: seconds by the sender's clock, or a scale.
        sizes: sizes of all dimensions of the tensor that data is a part of, if they are open; empty if they are fixed.
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
    """Receiver of frames. It is called on the connection's thread."""

    def place(self, frame: Frame) -> memoryview | None:
        """Return memory of a payload's size for it, or None to drop it. Raises ProtocolError if it is not expected."""
        ...

    def took(self, frame: Frame, payload: memoryview | None, connection: Connection) -> None:
        """Handle a frame whose payload is in place. Raises ProtocolError if the frame makes no sense."""
        ...

    def lost(self, connection: Connection, why: str) -> None:
        """Handle the end of the connection: nothing more will come. Called once."""
        ...


class Parcel(NamedTuple):
    """A frame to send, with its payload.

    Attributes:
        frame: the header; its size is set when it is sent.
        payload: must not change until it has been sent, or need not be sent any more.
        urgency: the lowest is sent first; of equal ones, the one that was given first.
    """

    frame: Frame
    payload: memoryview | None = None
    urgency: tuple[float, ...] = ()


class _Message:
    def __init__(self, frame: Frame, payload: memoryview, current: Callable[[], bool]) -> None:
        self.frame, self.payload, self.current = frame, payload, current
        self.offset = 0


class Connection:
    """An authenticated socket: a thread receives frames, and frames are sent in the order of their urgency.

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
        self._more = threading.Condition()
        self._sending = self._closed = False
        self._told = threading.Lock()
        self.sent = 0  # bytes
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # Linux only
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(patience * 1000))
        for what, job in (("from", self._receive), ("to", self._send)):
            threading.Thread(target=job, name=f"placeit {what} {name}", daemon=True).start()

    def send(
        self,
        frame: Frame,
        payload: memoryview | None = None,
        *,
        urgency: tuple[float, ...] = (),
        current: Callable[[], bool] = lambda: True,
    ) -> None:
        """Send a frame; see :meth:`send_all`."""
        self.send_all([Parcel(frame, payload, urgency)], current)

    def send_all(self, parcels: Sequence[Parcel], current: Callable[[], bool] = lambda: True) -> None:
        """Send frames and return at once. A long payload is sent in several frames, between which others may be sent.

        Args:
            parcels: the frames.
            current: returns whether they still have to be sent; called before each part that is not sent at once.
        """
        messages = [_Message(one.frame, memoryview(b"") if one.payload is None else one.payload, current) for one in parcels]
        with self._more:
            if self._closed:
                return
            gone = 0 if self._sending or self._queue else self._at_once(messages)
            for parcel, message in zip(parcels[gone:], messages[gone:], strict=True):
                heapq.heappush(self._queue, (parcel.urgency, next(self._count), message))
            if self._queue:
                self._more.notify()

    def _at_once(self, messages: Sequence[_Message]) -> int:
        """Send the first messages on the calling thread, if they are small and the socket takes them; return how many.

        If the socket takes only a part of them, the sending thread sends the rest.
        """
        small = [*itertools.takewhile(lambda message: len(message.payload) <= CHUNK, messages)]
        if not small or sum(len(message.payload) for message in small) > _AT_ONCE:
            return 0
        data = b"".join(part for one in small for part in (one.frame.packed(len(one.payload)), one.payload))
        try:
            done = self._sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            with contextlib.suppress(OSError):  # the receiving thread notices, and reports it without a lock
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
                with self._more:
                    self._sending = False
                    while not self._queue and not self._closed:
                        self._more.wait()
                    if self._closed:
                        return
                    urgency, count, message = heapq.heappop(self._queue)
                    self._sending = True
                if self._send_part(message):
                    with self._more:
                        heapq.heappush(self._queue, (urgency, count, message))
        except BaseException as error:  # noqa: BLE001 (it is reported to the receiver)
            self._end(error)

    def _send_part(self, message: _Message) -> bool:
        """Send what fits into one frame; return whether there is more."""
        if message.frame.kind == 0:  # the rest of a frame
            self._sock.sendall(message.payload)
            self.sent += len(message.payload)
            return False
        if not message.current():
            return False
        part = message.payload[message.offset : message.offset + CHUNK]
        header = message.frame.packed(len(part), message.offset)
        if len(part) <= _SMALL:
            self._sock.sendall(header + part)
        else:
            self._sock.sendall(header, socket.MSG_MORE)
            self._sock.sendall(part)
        self.sent += len(header) + len(part)
        message.offset += len(part)
        return message.offset < len(message.payload)

    def _receive(self) -> None:
        header, sizes = memoryview(bytearray(_HEADER.size)), memoryview(bytearray(4 * _MAX_SIZES))
        waste, inflow = memoryview(bytearray(CHUNK)), _Inflow(self._sock)
        try:
            while True:
                inflow.fill(header)
                kind, coding, count, *others = _HEADER.unpack(header)
                inflow.fill(sizes[: 4 * count])
                frame = Frame._make((kind, coding, *others, struct.unpack_from(f"<{count}I", sizes) if count else ()))
                if frame.size > CHUNK:
                    raise ProtocolError(f"a frame of {frame.size} bytes, where {CHUNK} are the most")
                into: memoryview | None = None
                if frame.size:
                    into = self._receiver.place(frame)
                    inflow.fill(waste[: frame.size] if into is None else into)
                if into is not None or not frame.size:
                    self._receiver.took(frame, into, self)
        except BaseException as error:  # noqa: BLE001 (any error ends the connection, and is reported)
            self._end(error)

    def _end(self, error: BaseException) -> None:
        if self._told.acquire(blocking=False):
            closed = self._closed
            self.close()
            if not closed:
                self._receiver.lost(self, _why(error))

    def close(self) -> None:
        """End the connection; nothing is reported as lost. Both threads end."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        if self._more.acquire(timeout=1.0):  # reentrant: a thread that sends may notice the end
            self._more.notify_all()
            self._more.release()


def _why(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, OSError | EOFError | ProtocolError):
        return text or "the connection was closed by the other end"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Listener:
    """Accepts connections from processes that know the secret. Others get a nonce, a few seconds, and nothing else.

    If more than 32 connections try at the same time, the one that has tried for longest is closed to make room.

    Args:
        host: address of this node; never all interfaces.
        secret: secret of this run.
        accept: called with the socket of a process that knows the secret, and its name.
    """

    def __init__(self, host: str, secret: bytes, accept: Callable[[socket.socket, str], object]) -> None:
        if host in ("", "0.0.0.0", "::"):  # noqa: S104
            raise DeviceError(f"A node listens on its own address only, and not on '{host}'.")
        self._secret, self._accept = secret, accept
        self._strangers: list[socket.socket] = []  # in the order in which they came
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
                self._strangers.append(sock)
                if len(self._strangers) > _STRANGERS:
                    with contextlib.suppress(OSError):  # its thread closes it
                        self._strangers.pop(0).shutdown(socket.SHUT_RDWR)
            try:
                threading.Thread(target=self._shake, args=(sock,), name="placeit handshake", daemon=True).start()
            except RuntimeError:  # too many threads
                self._send_away(sock)

    def _shake(self, sock: socket.socket) -> None:
        try:
            name = _answer(sock, self._secret)
            with self._lock:
                if sock not in self._strangers:
                    raise EOFError("it has made room for another one")
                self._strangers.remove(sock)
            self._accept(sock, name)
        except (OSError, EOFError, ProtocolError, UnicodeDecodeError):
            self._send_away(sock)

    def _send_away(self, sock: socket.socket) -> None:
        with self._lock:
            if sock in self._strangers:
                self._strangers.remove(sock)
            sock.close()

    def close(self) -> None:
        """Stop accepting connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def connect(address: tuple[str, int], secret: bytes, name: str) -> socket.socket:
    """Connect to a listener; both ends prove to each other that they know the secret.

    If the listener closes the connection, it is tried twice more: it may have been closed to make room for another one.

    Args:
        address: host and port.
        secret: secret of the listener.
        name: name of this end.

    Raises:
        DeviceError: nothing answers at the address, or the other end does not know the secret.
    """
    where, deadline, tries = f"{address[0]}:{address[1]}", time.monotonic() + _HANDSHAKE_S, _TRIES
    while True:
        try:
            sock = socket.create_connection(address, timeout=_HANDSHAKE_S)
        except OSError as error:
            raise DeviceError(f"Nothing answers at {where}: {error.strerror or error}.") from error
        try:
            _ask(sock, secret, name, deadline)
        except (OSError, EOFError, ProtocolError) as error:
            sock.close()
            tries -= 1
            if tries == 0 or not isinstance(error, EOFError | ConnectionError):
                raise DeviceError(f"The handshake with {where} failed: {str(error) or 'it ended the connection'}.") from error
            time.sleep(_PAUSE_S)
        else:
            return sock


def _ask(sock: socket.socket, secret: bytes, name: str, deadline: float) -> None:
    """Perform the handshake of the end that connects."""
    hello = _take(sock, len(_MAGIC) + _NONCE, deadline)
    if hello[: len(_MAGIC)] != _MAGIC:
        raise ProtocolError("another protocol, or another version of it, is spoken there")
    theirs, mine, called = hello[len(_MAGIC) :], os.urandom(_NONCE), name.encode()[:255]
    proof = _proof(secret, b"client", theirs, mine, called)
    sock.sendall(mine + bytes([len(called)]) + called + proof)
    if not hmac.compare_digest(_take(sock, len(proof), deadline), _proof(secret, b"server", mine, theirs, called)):
        raise ProtocolError("it does not know the secret of this run")


def _answer(sock: socket.socket, secret: bytes) -> str:
    """Perform the handshake of the end that listens; return the name of the other end."""
    deadline = time.monotonic() + _HANDSHAKE_S
    sock.settimeout(_HANDSHAKE_S)
    mine = os.urandom(_NONCE)
    sock.sendall(_MAGIC + mine)
    theirs = _take(sock, _NONCE, deadline)
    called = _take(sock, _take(sock, 1, deadline)[0], deadline)
    proof = _take(sock, hashlib.sha256().digest_size, deadline)
    if not hmac.compare_digest(proof, _proof(secret, b"client", mine, theirs, called)):
        raise ProtocolError("a stranger")
    sock.sendall(_proof(secret, b"server", theirs, mine, called))
    return called.decode()


def _proof(secret: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret, b"".join(len(part).to_bytes(4, "little") + part for part in parts), hashlib.sha256).digest()


def _take(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = memoryview(bytearray(size))
    while data:
        sock.settimeout(max(1e-3, deadline - time.monotonic()))
        data = data[_read(sock, data) :]
    return bytes(data.obj)


class _Inflow:
    """Reads a socket in as few calls as possible, since Python's lock is released and taken again in each."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._memory = sock, memoryview(bytearray(_READ))
        self._read = memoryview(b"")

    def fill(self, into: memoryview) -> None:
        """Wait until all of ``into`` has come. Raises EOFError."""
        while into:
            if self._read:
                count = min(len(into), len(self._read))
                into[:count], self._read = self._read[:count], self._read[count:]
                into = into[count:]
            elif len(into) < _READ:
                self._read = self._memory[: _read(self._sock, self._memory)]
            else:
                into = into[_read(self._sock, into) :]


def _read(sock: socket.socket, into: memoryview) -> int:
    count = sock.recv_into(into)
    if count == 0:
        raise EOFError("the other end closed it")
    return count
