"""What OpenVINO does not tell about an ONNX file."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from placeit.errors import FileError, ModelError

__all__ = ["check_external_files", "external_files", "node_names"]

_PARTS = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external data"},
}
"""Numbers of the fields of ONNX's messages in which names of other files can be."""
_LOCATION = b"\n\x08location\x12"
"""How an entry of external data begins that names the file."""


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


def external_files(path: Path) -> list[Path]:
    """Return the files that an ONNX file names as those of its weights; none if it cannot be read, or is damaged."""
    names: dict[str, None] = {}
    try:
        if not path.is_file():
            return []
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            parts = [("model", 0, len(data))] if data.find(_LOCATION) >= 0 else []
            while parts:
                kind, start, end = parts.pop()
                if kind == "external data":
                    if data[start : start + len(_LOCATION)] == _LOCATION:
                        fields = {number: data[a:b] for number, a, b in _protobuf_fields(data, start, end)}
                        names[os.fsdecode(fields.get(2, b""))] = None
                    continue
                known = _PARTS[kind]
                parts += [(known[number], a, b) for number, a, b in _protobuf_fields(data, start, end) if number in known]
    except (OSError, ValueError):
        return []
    return [path.parent / name for name in names if name and "\0" not in name]


def check_external_files(path: Path) -> None:
    """Check that the weights of an ONNX file that are in other files are there, and where they may be.

    Raises:
        FileError: such a file cannot be read.
        ModelError: it is outside of the model's folder, where nobody who reads ONNX files looks: a model could name any file.
    """
    for file in external_files(path):
        try:
            with file.open("rb"):
                pass
        except OSError as error:
            other = Path(os.path.realpath(path)).parent / file.name
            there = os.path.exists(other)  # noqa: PTH110 (Path.exists raises for some names)
            hint = f" It is beside the file that {path.name} is a link to: give placeit that one." if there else ""
            raise FileError(
                f"Cannot read {file}, which holds weights of {path}: {error.strerror or error}.{hint or ' Put it there.'}"
            ) from error
        if Path(os.path.relpath(file, path.parent)).parts[0] == "..":
            raise ModelError(f"{path} keeps weights in {file}, outside of its folder, where weights are not read from.")
        folder, real = Path(os.path.realpath(path.parent)), Path(os.path.realpath(file))
        if not real.is_relative_to(folder):
            raise ModelError(
                f"{path} keeps weights in {file}, which is a link to {real}, as in the cache of Hugging Face. Weights are not "
                "read from outside of a model's folder, since a model could name any file. Copy both without links and give "
                f"placeit the copy: mkdir copy && cp -L {path} {file} copy/ (or download by 'hf download --local-dir DIR')."
            )


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
            if byte < 0x80 or shift > 63:
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
