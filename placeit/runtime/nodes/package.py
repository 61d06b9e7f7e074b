"""Segments in the form that is sent to nodes. Large weights are sent separately, in pieces that are named by their SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placeit.backends.base import Format
from placeit.core.errors import DeviceError
from placeit.runtime.devices.base import BufferSpec, SegmentSource
from placeit.runtime.nodes.formats import Names, Part, decode, encode

__all__ = ["Package", "Unpacked", "pack", "pack_program"]


@dataclass(frozen=True)
class Package:
    """A segment without its large weights.

    Attributes:
        form: its format.
        files: the parts of each of its files.
        names: as in :class:`placeit.runtime.nodes.formats.Encoded`.
        variables: names of the variables that hold its state.
        inputs: inputs of the segment.
        outputs: outputs of the segment.
    """

    form: Format
    files: tuple[tuple[Part, ...], ...]
    names: Names | None
    variables: tuple[str, ...]
    inputs: tuple[BufferSpec, ...] = ()
    outputs: tuple[BufferSpec, ...] = ()

    @property
    def pieces(self) -> tuple[str, ...]:
        """SHA-256 of the pieces that its weights are made of, in order."""
        return tuple(part.piece for file in self.files for part in file if part.piece)

    @property
    def identity(self) -> str:
        """SHA-256 of its content."""
        return hashlib.sha256(repr((self.form, self.files, self.names)).encode()).hexdigest()

    def program(self, pieces: Mapping[str, bytes]) -> Any:
        """Return the segment in its format, with ``pieces`` of its weights. Raises DeviceError if it cannot be read."""
        files = [b"".join(pieces[part.piece] if part.piece else part.data for part in file) for file in self.files]
        return decode(self.form, files, self.names, [file[0].piece if len(file) == 1 else "" for file in self.files])


def pack(segment: SegmentSource, forms: Sequence[Format]) -> tuple[Package, dict[str, bytes]]:
    """Pack a segment; return the package, and pieces of its weights by their digests.

    Args:
        segment: the segment.
        forms: formats that the device compiles, the preferred one first.

    Raises:
        DeviceError: the segment exists in none of these formats, or is too large for it.
        FileError: there is no room for temporary files.
    """
    refused: DeviceError | None = None
    for form in forms:
        try:
            program = segment.in_format(form)
        except DeviceError as error:
            refused = refused or error
        else:
            files, pieces, names, variables = encode(form, program, len(segment.inputs))
            return Package(form, files, names, variables, segment.inputs, segment.outputs), pieces
    raise refused or DeviceError("The device compiles no format of segments.")


def pack_program(form: Format, program: Any) -> tuple[Package, dict[str, bytes]]:
    """Pack a program that is not a segment of a plan; see :func:`pack`."""
    encoded = encode(form, program)
    return Package(form, encoded.files, encoded.names, encoded.variables), encoded.pieces


class Unpacked:
    """A received segment, on the node that compiles it.

    Args:
        package: the package that was received.
        pieces: pieces of its weights.
    """

    def __init__(self, package: Package, pieces: Mapping[str, bytes]) -> None:
        self.inputs, self.outputs, self.identity = package.inputs, package.outputs, package.identity
        self._package, self._pieces = package, pieces

    def in_format(self, form: Format) -> Any:
        """Return the segment in its format. Raises DeviceError for any other format, or if its runtime does not read it."""
        if form != self._package.form:
            raise DeviceError(f"A segment was sent in the format '{self._package.form}', and not as '{form}'.")
        return self._package.program(self._pieces)
