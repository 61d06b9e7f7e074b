"""Messages of gRPC: their classes, and requests and answers whose tensors are copied as little as gRPC allows."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from placeit.core.protobuf import LENGTH_DELIMITED, field_head, message_fields
from placeit.serve.refusal import RefusedError, Status, invalid, told
from placeit.serve.service import APART_BYTES, Service

__all__ = ["SERVICE", "Messages", "Received", "encoded", "parsed", "refusing"]

SERVICE: Final = "inference.GRPCInferenceService"
_FIELDS: Final = 4096  # most fields of a request, as each of them takes many times its bytes
_TYPED_BYTES: Final = 16 << 20  # most bytes other than raw contents, as parsed values take many times their bytes
_RAW_IN: Final = "raw_input_contents"
_PIECE: Final = 1 << 20  # bytes that are copied at a time; other threads can run in between


class Messages:
    """The protocol's message classes, by name, in a separate pool, as a process may also use a client of the protocol."""

    def __init__(self) -> None:
        found = descriptor_pb2.FileDescriptorSet.FromString(files("placeit.serve").joinpath("open_inference.pb").read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for file in found.file:
            pool.Add(file)
        self.methods = {method.name: method for method in pool.FindServiceByName(SERVICE).methods}
        self.pool = pool

    def __getattr__(self, name: str) -> Any:
        """Return the class of a message."""
        found = message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"inference.{name}"))
        setattr(self, name, found)
        return found


@dataclass(frozen=True)
class Received:
    """A request as it was received.

    Attributes:
        message: the request; without its raw contents, if it is large.
        raw: its raw contents, which are views of what was received if it is large.
        typed: bytes other than raw contents, of a large request; 0 for any other.
    """

    message: Any
    raw: Sequence[bytes | memoryview]
    typed: int


async def parsed(service: Service, sent: bytes, kind: Any) -> Received:
    """Parse a message.

    Args:
        service: has threads for large messages.
        sent: the bytes of the message.
        kind: its class.

    Raises:
        RefusedError: it is not a message of its class, or has too many parts.
    """
    try:
        if len(sent) < APART_BYTES:
            message = kind.FromString(sent)
            return Received(message, getattr(message, _RAW_IN, ()), 0)
        places = _checked(sent, kind.DESCRIPTOR)
        typed = len(sent) - sum(stop - start for _, start, stop in places)
        message = await service.by_size(typed, _without, sent, places, kind)
        return Received(message, [memoryview(sent)[start:stop] for _, start, stop in places], typed)
    except DecodeError:
        raise invalid(f"This is not a {kind.DESCRIPTOR.name} in protobuf.") from None


def _without(sent: bytes, places: Sequence[tuple[int, int, int]], kind: Any) -> Any:
    """Parse a message without the fields at ``places``: begin of the field, begin and end of its value."""
    parts, at = [], 0
    for begin, _, stop in places:
        parts.append(sent[at:begin])
        at = stop
    return kind.FromString(b"".join([*parts, sent[at:]]))


def _checked(sent: bytes, kind: Any) -> list[tuple[int, int, int]]:
    """Return where raw contents are in a message: begin of their field, and begin and end of their bytes.

    Args:
        sent: the message.
        kind: its descriptor.

    Raises:
        DecodeError: it has invalid fields, or groups, which the protocol does not have.
        RefusedError: it has too many fields, or too many bytes other than raw contents.
    """
    count, raw = 0, list[tuple[int, int, int]]()
    todo = [(0, len(sent), kind)]
    while todo:
        at, end, kind = todo.pop()
        fields = kind.fields_by_number
        for number, wire, start, stop in message_fields(sent, at, end):
            count += 1
            if count > _FIELDS:
                raise invalid(f"This request has more than {_FIELDS} fields: send tensors as raw contents.")
            field = fields.get(number)
            if field is not None and wire == LENGTH_DELIMITED:
                if field.message_type is not None:
                    todo.append((start, stop, field.message_type))
                elif field.name == _RAW_IN:
                    raw.append((at, start, stop))
            at = stop
        if at != end:  # protobuf may read on where message_fields does not, behind a group
            raise DecodeError
    if len(sent) - sum(stop - start for _, start, stop in raw) > _TYPED_BYTES:
        raise RefusedError(Status.TOO_LARGE, f"At most {_TYPED_BYTES} bytes of a request may be other than raw contents.")
    return raw


async def encoded(service: Service, message: Any, raw: Sequence[memoryview], within: int | None = None) -> bytes:
    """Return the bytes of an answer.

    Args:
        service: has threads for large answers.
        message: the answer without raw contents.
        raw: its raw contents.
        within: number of the field of an outer message that holds the answer; None without an outer message.
    """
    parts: list[bytes | memoryview] = [message.SerializeToString()]
    number = message.DESCRIPTOR.fields_by_name["raw_output_contents"].number
    for one in raw:
        parts += [field_head(number, len(one)), one]
    size = sum(map(len, parts))
    if within is not None:
        parts.insert(0, field_head(within, size))
    return await service.by_size(0, _joined, parts, copied=size)


@contextlib.contextmanager
def refusing(context: Any) -> Iterator[None]:
    """End a call with the status for an error that the block raises."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (clients are told only that the request failed)
        refused = told(error)
        context.set_code(getattr(grpc.StatusCode, refused.status.grpc))  # abort() raises an error that keeps the server alive
        context.set_details(str(refused))


def _joined(parts: Sequence[bytes | memoryview]) -> bytes:
    """Return the parts of an answer as one, copied in pieces; other threads can run in between."""
    whole = io.BytesIO()
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), _PIECE):
            whole.write(view[at : at + _PIECE])
    return whole.getvalue()
