"""What a client is told that gets no answer: a status of HTTP and of gRPC, and why."""

from __future__ import annotations

import enum
import hmac
from collections.abc import Container

from placeit.core.errors import DeadlineError, PlaceitError, QueueFullError, SequenceError, StateMemoryError, UsageError

__all__ = ["RefusedError", "Status", "check_token", "invalid", "none_of", "refusal_of"]


_LONGEST = 1000  # characters of a message, which headers of gRPC have to hold


class Status(enum.Enum):
    """Reasons to refuse a request: the status code of HTTP, and the name of the one of gRPC.

    The codes are those of Triton, but for gRPC's of a full queue, which Triton does not tell from a server that ends.
    """

    INVALID = 400, "INVALID_ARGUMENT"
    UNAUTHENTICATED = 401, "UNAUTHENTICATED"
    UNKNOWN = 404, "NOT_FOUND"
    TOO_LARGE = 413, "RESOURCE_EXHAUSTED"
    ENCODED = 415, "UNIMPLEMENTED"
    GONE = 499, "CANCELLED"
    FAILED = 500, "INTERNAL"
    FULL = 503, "RESOURCE_EXHAUSTED"
    UNAVAILABLE = 503, "UNAVAILABLE"
    LATE = 504, "DEADLINE_EXCEEDED"

    @property
    def http(self) -> int:
        """Status code of HTTP."""
        return self.value[0]

    @property
    def grpc(self) -> str:
        """Name of the status code of gRPC."""
        return self.value[1]


class RefusedError(PlaceitError):
    """A request that gets no answer.

    Args:
        status: which kind of reason.
        message: what is wrong, and what to do.
    """

    def __init__(self, status: Status, message: str) -> None:
        if len(message) > _LONGEST:  # names in it may be the client's
            message = f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 :]}"
        super().__init__(message.encode("utf-8", "replace").decode())
        self.status = status


def refusal_of(error: PlaceitError, *, closed: bool = False) -> RefusedError:
    """Return what a client is told about an error of the server that runs a model.

    Args:
        error: what it has raised.
        closed: whether it has taken no request, as it is closed, where the error has no other reason.
    """
    match error:
        case StateMemoryError():
            status = Status.FULL
        case UsageError() | SequenceError():
            status = Status.INVALID
        case QueueFullError():
            status = Status.FULL
        case DeadlineError():
            status = Status.LATE
        case _:
            status = Status.UNAVAILABLE if closed else Status.FAILED
    return RefusedError(status, str(error))


def check_token(authorization: bytes, token: bytes) -> None:
    """Raise RefusedError if what a client sends as ``Authorization`` does not bring the server's token."""
    scheme, _, given = authorization.partition(b" ")
    if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), token):
        why = "This server answers who brings its token: send 'Authorization: Bearer TOKEN'."
        raise RefusedError(Status.UNAUTHENTICATED, why)


def invalid(message: str) -> RefusedError:
    """Return what a client is told whose request is wrong."""
    return RefusedError(Status.INVALID, message)


def none_of(parameters: Container[str], *names: str) -> None:
    """Raise RefusedError if a request has parameters that change what is asked, and that this server does not have."""
    for name in names:
        if name in parameters:
            raise invalid(f"This server does not have what the parameter '{name}' asks for: leave it out.")
