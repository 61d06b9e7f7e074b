"""Fields of messages in protobuf's wire format, without a description of the messages and without copies."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

__all__ = ["LENGTH_DELIMITED", "field_head", "message_fields"]

LENGTH_DELIMITED = 2
"""Wire type of texts, bytes, messages and packed numbers."""


def message_fields(data: bytes | mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, wire type, start, end) of each field of a message, which may be damaged: stop at invalid data.

    Args:
        data: holds the message.
        at: offset of the message.
        end: offset behind it; a field that would end behind it is invalid.
    """

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while at < end:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80 or shift > 63:
                break
        return value

    while at < end:
        tag = varint()
        match tag & 7:
            case 0:
                start = at
                varint()
            case 1:
                start, at = at, at + 8
            case 2:
                size = varint()
                start, at = at, at + size
            case 5:
                start, at = at, at + 4
            case _:
                return
        if at > end:
            return
        yield tag >> 3, tag & 7, start, at


def field_head(number: int, size: int) -> bytes:
    """Return the header of a text, bytes or message field: its field number with the wire type, and its size in bytes."""
    return _varint(number << 3 | LENGTH_DELIMITED) + _varint(size)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
