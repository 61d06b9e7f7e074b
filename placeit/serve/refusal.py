"""Refusals of requests: the HTTP and gRPC status, and the reason that the client is told."""

from __future__ import annotations

import enum
import hmac
import logging

from placeit.core.errors import (
    DeadlineError,
    PlaceitError,
    QueueFullError,
    SequenceError,
    StateLostError,
    StateMemoryError,
    UsageError,
)

__all__ = ["RefusedError", "Status", "check_token", "invalid", "refusal_of", "told"]

_LOG = logging.getLogger("placeit")
_LONGEST = 1000  # most characters of a message, as gRPC sends it in a header


class Status(enum.Enum):
    """Reasons to refuse a request: the HTTP status code, and the name of the gRPC status code.

    The codes are Triton's, except for the gRPC code of a full queue: Triton sends its code of a server that shuts down.
    """

    INVALID = 400, "INVALID_ARGUMENT"
    UNAUTHENTICATED = 401, "UNAUTHENTICATED"
    FORBIDDEN = 403, "PERMISSION_DENIED"
    UNKNOWN = 404, "NOT_FOUND"
    SLOW = 408, "DEADLINE_EXCEEDED"
    TOO_LARGE = 413, "RESOURCE_EXHAUSTED"
    ENCODED = 415, "UNIMPLEMENTED"
    GONE = 499, "CANCELLED"
    FAILED = 500, "INTERNAL"
    FULL = 503, "RESOURCE_EXHAUSTED"
    UNAVAILABLE = 503, "UNAVAILABLE"
    LATE = 504, "DEADLINE_EXCEEDED"

    def __init__(self, http: int, grpc: str) -> None:
        self.http, self.grpc = http, grpc


class RefusedError(PlaceitError):
    """A request is refused.

    Args:
        status: the kind of reason.
        message: the fault, and the remedy.
    """

    def __init__(self, status: Status, message: str) -> None:
        if len(message) > _LONGEST:  # it may have names from the client, of any length
            message = f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 :]}"
        super().__init__(message.encode("utf-8", "replace").decode())
        self.status = status


def refusal_of(error: PlaceitError, *, closed: bool = False) -> RefusedError:
    """Return the refusal for an error of the server that runs a model.

    Args:
        error: the error that the server has raised.
        closed: whether other errors mean that the server is closed.
    """
    match error:
        case StateLostError():
            why = f"The state of this sequence is lost: {error.why} Begin it again with 'sequence_start'."
            return RefusedError(Status.UNAVAILABLE, why)
        case StateMemoryError() | QueueFullError():
            status = Status.FULL
        case UsageError() | SequenceError():
            status = Status.INVALID
        case DeadlineError():
            status = Status.LATE
        case _:
            status = Status.UNAVAILABLE if closed else Status.FAILED
    return RefusedError(status, str(error))


def told(error: Exception) -> RefusedError:
    """Return the refusal for any error of a request. Errors that are not refusals are logged and hidden from clients."""
    if isinstance(error, RefusedError):
        return error
    _LOG.error("A request has failed: %s: %s", type(error).__name__, error)
    return RefusedError(Status.FAILED, "This request has failed in the server, whose log says why.")


def check_token(authorization: bytes, token: bytes) -> None:
    """Raise RefusedError if the value of an ``Authorization`` header does not have the server's token."""
    scheme, _, given = authorization.partition(b" ")
    if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), token):
        why = "This server requires a token: send 'Authorization: Bearer TOKEN'."
        raise RefusedError(Status.UNAUTHENTICATED, why)


def invalid(message: str) -> RefusedError:
    """Return the refusal of an invalid request."""
    return RefusedError(Status.INVALID, message)
