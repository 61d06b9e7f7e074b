"""Segments on their way to a node: OpenVINO's XML, and its weights in pieces that are known by what they contain."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placeit.backends.base import Format
from placeit.core.errors import DeviceError
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core
from placeit.runtime.devices.base import BufferSpec, SegmentSource

__all__ = ["Package", "WeightStore", "pack"]

_PIECE = 1 << 12
"""Constants of fewer bytes are not worth a piece of their own."""
_DATA = re.compile(r'<data\b[^>]*\boffset="(\d+)"[^>]*\bsize="(\d+)"')
_STORE_BYTES = 8 << 30


@dataclass(frozen=True)
class Package:
    """A segment without its weights.

    Attributes:
        inputs: as of :class:`placeit.runtime.devices.base.SegmentSource`.
        outputs: likewise.
        xml: OpenVINO's.
        pieces: SHA-256 of the pieces that its weights are made of, in order.
    """

    inputs: tuple[BufferSpec, ...]
    outputs: tuple[BufferSpec, ...]
    xml: bytes
    pieces: tuple[str, ...]


def pack(segment: SegmentSource) -> tuple[Package, dict[str, bytes]]:
    """Pack a segment; return it and its pieces by their digests. Raises DeviceError if it is not OpenVINO's."""
    with tempfile.TemporaryDirectory(prefix="placeit-") as folder:
        xml, weights = Path(folder, "segment.xml"), Path(folder, "segment.bin")
        import_openvino().serialize(segment.in_format("openvino"), str(xml), str(weights))
        text, data = xml.read_bytes(), weights.read_bytes()
    cuts = {0, len(data)}
    for match in _DATA.finditer(text.decode()):
        offset, size = int(match[1]), int(match[2])
        if size >= _PIECE:
            cuts |= {offset, offset + size}
    ends = sorted(cut for cut in cuts if cut <= len(data))
    parts = [data[a:b] for a, b in itertools.pairwise(ends)]
    names = [hashlib.sha256(part).hexdigest() for part in parts]
    return Package(segment.inputs, segment.outputs, text, tuple(names)), dict(zip(names, parts, strict=True))


class Unpacked:
    """A segment on the node that is to compile it.

    Args:
        package: what came.
        weights: its pieces, joined.
    """

    def __init__(self, package: Package, weights: bytes) -> None:
        self.inputs, self.outputs = package.inputs, package.outputs
        self._xml, self._weights = package.xml, weights
        self.identity = hashlib.sha256(b"".join((package.xml, *(name.encode() for name in package.pieces)))).hexdigest()

    def in_format(self, form: Format) -> Any:
        """The segment as an ``openvino.Model``."""
        if form != "openvino":
            raise DeviceError(f"Segments go to other nodes as OpenVINO's, and not as '{form}'.")
        return openvino_core().read_model(self._xml, self._weights)


class WeightStore:
    """Weights that a machine has been sent, in files named by their digests, so that they are sent once.

    The least recently used ones are deleted when they take too much. What does not have the digest that its name says is not
    used.

    Args:
        folder: only its owner may write there; it is made if it is missing.
        most: bytes to keep.
    """

    def __init__(self, folder: Path, most: int = _STORE_BYTES) -> None:
        self._folder, self._most = folder, most
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise DeviceError(f"{folder} belongs to somebody else, or others may write there; weights are not kept in it.")

    @classmethod
    def of_user(cls) -> WeightStore:
        """The store of this user on this machine."""
        return cls(Path(tempfile.gettempdir(), f"placeit-weights-{os.getuid()}"))

    def missing(self, pieces: tuple[str, ...]) -> list[str]:
        """Those that are not here."""
        return [name for name in dict.fromkeys(pieces) if not self._path(name).exists()]

    def put(self, pieces: Mapping[str, bytes]) -> None:
        """Keep pieces. Raises DeviceError if there is no room."""
        try:
            for name, data in pieces.items():
                with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                    file.write(data)
                Path(file.name).replace(self._path(name))
            self._make_room(set(pieces))
        except OSError as error:
            raise DeviceError(f"Weights cannot be kept in {self._folder}: {error.strerror or error}.") from error

    def join(self, pieces: tuple[str, ...]) -> bytes | None:
        """Put weights together; None if some piece is not here any more."""
        parts: dict[str, bytes] = {}
        for name in dict.fromkeys(pieces):
            path = self._path(name)
            try:
                parts[name] = path.read_bytes()
                os.utime(path)
            except FileNotFoundError:
                return None
            if hashlib.sha256(parts[name]).hexdigest() != name:
                path.unlink(missing_ok=True)
                return None
        return b"".join(parts[name] for name in pieces)

    def _path(self, name: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", name):
            raise DeviceError(f"'{name}' is not a digest.")
        return self._folder / name

    def _make_room(self, needed: set[str]) -> None:
        files: list[tuple[float, int, Path]] = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process of this user has just deleted it
                found = path.stat()
                files.append((found.st_mtime, found.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._most:
                return
            if path.name not in needed:
                path.unlink(missing_ok=True)
                total -= size
