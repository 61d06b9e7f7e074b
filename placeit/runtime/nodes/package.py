"""Segments in the form that is sent to nodes. Large weights are sent separately, in pieces that are named by their SHA-256."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from placeit.backends.base import Format
from placeit.core.errors import DeviceError
from placeit.runtime.devices.base import SegmentSource
from placeit.runtime.nodes.formats import Package, encode

__all__ = ["Unpacked", "pack"]


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
            package, pieces = encode(form, program, len(segment.inputs))
            return replace(package, inputs=segment.inputs, outputs=segment.outputs), pieces
    raise refused or DeviceError("The device compiles no format of segments.")


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
