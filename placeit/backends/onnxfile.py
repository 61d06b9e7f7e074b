"""What OpenVINO does not tell about an ONNX file."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

__all__ = ["node_names"]


def node_names(path: Path) -> set[str]:
    """Collect the names of nodes and tensors of an ONNX file without reading its weights."""
    names: set[str] = set()
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for field, start, end in _protobuf_fields(data, 0, len(data)):
            if field != 7:  # ModelProto.graph
                continue
            for part, first, last in _protobuf_fields(data, start, end):
                if part != 1:  # GraphProto.node
                    continue
                for item, a, b in _protobuf_fields(data, first, last):
                    if item in (2, 3):  # NodeProto.output and NodeProto.name
                        names.add(data[a:b].decode(errors="replace"))
    return names


def _protobuf_fields(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, end) of the length-delimited fields of a protobuf message; stop where it makes no sense."""

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while at < end:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return value

    while at < end:
        tag = varint()
        match tag & 7:
            case 0:
                varint()
            case 1:
                at += 8
            case 2:
                size = varint()
                yield tag >> 3, at, min(at + size, end)
                at += size
            case 5:
                at += 4
            case _:
                return
