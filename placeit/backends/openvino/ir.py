"""Write OpenVINO IR: a program (``.xml``), and its weights in a second file (``.bin``)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from placeit.core.errors import FileError
from placeit.core.files import replacing_both
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino_errors import what_openvino_says

__all__ = ["weights_end", "write_ir"]

openvino = import_openvino()


def write_ir(model: Any, path: Path, check: Callable[[Path, Path], None] | None = None) -> None:
    """Write an ``openvino.Model`` as IR. If that fails, neither file is written.

    Args:
        model: the model.
        path: the ``.xml``; the weights go beside it as ``.bin``.
        check: checks both files before they are moved into place, and raises an error to prevent that.

    Raises:
        FileError: the files cannot be written.
    """
    with replacing_both(path, path.with_suffix(".bin")) as (xml, weights):
        try:
            openvino.serialize(model, str(xml), str(weights))
        except RuntimeError as error:
            said = what_openvino_says(error).rstrip(".")
            raise FileError(f"Cannot write {path}: {said}. Is the disk full? Nothing was written there.") from error
        # OpenVINO does not check whether there was room
        if not xml.read_bytes().rstrip().endswith(b"</net>") or weights_end(xml) not in (None, weights.stat().st_size):
            raise FileError(f"Cannot write {path}: there was no room for all of it. Nothing was written there.")
        if check is not None:
            check(xml, weights)


def weights_end(xml: Path) -> int | None:
    """Return the size of an IR's weights in bytes, as stated in the IR; None if it uses no weights."""
    ends = [int(offset) + int(size) for offset, size in re.findall(rb'offset="(\d{1,19})" size="(\d{1,19})"', xml.read_bytes())]
    return max(ends, default=None)
