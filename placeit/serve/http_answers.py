"""Answers of HTTP that may be large: in pieces, between which other requests are answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["Pieces", "takes_gzip"]

_PIECE: Final = 1 << 18  # bytes that are written at a time
_SMALL: Final = 1 << 16  # most bytes of an answer in one piece


class Pieces(Response):
    """An answer that is written in pieces if it is large, as fast as its client reads them.

    Args:
        parts: of its body.
        headers: besides its length.
    """

    def __init__(self, parts: Sequence[bytes | memoryview], headers: Mapping[str, str]) -> None:
        size = sum(map(len, parts))
        super().__init__(b"".join(parts) if size <= _SMALL else None, headers=dict(headers))
        self._parts = [] if size <= _SMALL else [memoryview(part) for part in parts if len(part)]
        self.headers["content-length"] = str(size)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        if not self._parts:
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pieces = [part[at : at + _PIECE] for part in self._parts for at in range(0, len(part), _PIECE)]
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": piece is not pieces[-1]})


def takes_gzip(request: Request) -> bool:
    """Return whether a client reads answers that are compressed with gzip."""
    for one in request.headers.get("accept-encoding", "").split(","):
        name, _, quality = one.replace(" ", "").lower().partition(";")
        if name == "gzip":
            return not quality or quality.strip("q=0.") != ""
    return False
