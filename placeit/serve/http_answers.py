"""Answers of HTTP that may be large: in pieces, between which other requests are answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

__all__ = ["Pieces", "takes_gzip"]

_PIECE: Final = 1 << 18  # bytes that are written at a time
_SMALL: Final = 1 << 16  # most bytes of an answer in one piece


class Pieces:
    """An answer that is written in pieces if it is large, as fast as its client reads them.

    Args:
        parts: of its body.
        *headers: besides its length.

    Attributes:
        size: bytes of its body.
    """

    def __init__(self, parts: Sequence[bytes | memoryview], *headers: tuple[bytes, bytes]) -> None:
        self.size, self._parts = sum(map(len, parts)), parts
        self._headers = [*headers, (b"content-length", b"%d" % self.size)]

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """Send the answer."""
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        if self.size <= _SMALL:
            await send({"type": "http.response.body", "body": b"".join(self._parts)})
            return
        views = [memoryview(part) for part in self._parts if len(part)]
        pieces = [view[at : at + _PIECE] for view in views for at in range(0, len(view), _PIECE)]
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": piece is not pieces[-1]})


def takes_gzip(request: Request) -> bool:
    """Return whether a client reads answers that are compressed with gzip."""
    for one in request.headers.get("accept-encoding", "").split(","):
        name, _, quality = one.replace(" ", "").lower().partition(";")
        if name == "gzip":
            return not quality or quality.strip("q=0.") != ""
    return False
