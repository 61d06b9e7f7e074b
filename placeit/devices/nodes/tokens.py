"""Find out whether a Ray cluster requires a token, by a request that any client could send.

Ray itself only warns where a cluster that accepts every client is started, and silently accepts a token that it does not need.
"""

from __future__ import annotations

import socket
from typing import IO

from placeit.core.errors import DeviceError

__all__ = ["host_of", "open_socket", "wants_token"]

_CONNECT_TIMEOUT_S, _ANSWER_TIMEOUT_S = 3.0, 10.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _GO_AWAY = 0, 1, 3, 4, 7
_END_STREAM, _END_HEADERS, _MAX_FRAME_BYTES = 1, 4, 1 << 14
_PSEUDO_HEADERS = (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/ray.rpc.NodeInfoGcsService/GetClusterId")
_OTHER_HEADERS = (b":authority", b"ray"), (b"te", b"trailers"), (b"content-type", b"application/grpc")


def host_of(address: str) -> str:
    """Return the host of ``HOST:PORT``, without the brackets of an IPv6 address (``[::1]:6379``)."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def open_socket(address: str) -> socket.socket:
    """Return a socket connected to ``HOST:PORT``. Raises DeviceError if no server answers within 3 s."""
    try:
        return socket.create_connection((host_of(address), int(address.rpartition(":")[2])), timeout=_CONNECT_TIMEOUT_S)
    except OSError as error:
        raise DeviceError(f"No server answers at {address} ({error.strerror or error}): is the Ray cluster up?") from error


def wants_token(address: str) -> bool:
    """Return whether a Ray cluster refuses requests without a token.

    A server that does not speak plain gRPC, such as a cluster with TLS, counts as one that refuses them.

    Raises:
        DeviceError: no server answers at the address, or no answer arrives within 10 s.
    """
    fields = b"".join(b"\0" + _text(name) + _text(value) for name, value in _PSEUDO_HEADERS + _OTHER_HEADERS)
    request = _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS, 1, fields) + _frame(_DATA, _END_STREAM, 1, bytes(5))
    with open_socket(address) as sock, sock.makefile("rb") as answer:
        sock.settimeout(_ANSWER_TIMEOUT_S)
        try:
            sock.sendall(_PREFACE + request)
            return _refused(answer)
        except TimeoutError as error:
            raise DeviceError(
                f"The Ray cluster at {address} has not answered for {_ANSWER_TIMEOUT_S:g} s: it hangs."
            ) from error
        except OSError:
            return True


def _text(text: bytes) -> bytes:
    """Return a string literal of HPACK (RFC 7541, 5.2)."""
    return bytes([len(text)]) + text


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2 (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _refused(answer: IO[bytes]) -> bool:
    """Return whether the server ends the stream of the request without data."""
    while len(header := answer.read(9)) == 9:
        size, kind, flags, stream = int.from_bytes(header[:3]), header[3], header[4], int.from_bytes(header[5:])
        if size > _MAX_FRAME_BYTES or kind in (_RESET, _GO_AWAY):
            return True
        answer.read(size)
        if stream == 1 and kind == _DATA and size:
            return False
        if stream == 1 and flags & _END_STREAM:
            return True
    return True
