"""Digests of a model's computation: attributes, models inside ops, constants that affect running times; and stamps of files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

__all__ = ["constant_digest", "digest", "file_stamp"]

_MAX_VALUES = 1024  # integers or truth values of a constant that is compared by its values
_WHOLE = frozenset(("bool", "boolean", "int16", "int32", "int64", "uint16", "uint32", "uint64"))


def digest(parts: Iterable[object]) -> str:
    """Return a hash of objects by their printed form."""
    found = hashlib.sha256()
    for part in parts:
        found.update(repr(part).encode(errors="replace"))
        found.update(b"\n")
    return found.hexdigest()[:16]


def constant_digest(dtype: str, shape: Sequence[int], value: Callable[[], bytes]) -> str:
    """Return a text for a constant: type and shape, and its value if that may be a number of steps, a size, an axis or a bound.

    Such values are single numbers, and up to 1,024 integers or truth values. Weights are distinguished by type and shape only:
    a model that has been trained further takes as much time, and can be placed in the same way.

    Args:
        dtype: element type, NumPy spelling.
        shape: the constant's sizes.
        value: returns the bytes of the value.
    """
    size = math.prod(shape)
    matters = size == 1 or (size <= _MAX_VALUES and dtype in _WHOLE)
    return f"{dtype}{list(shape)}{value().hex() if matters else ''}"


def file_stamp(path: Path) -> tuple[int, ...] | None:
    """Return numbers that change when a file is replaced or written to; None without a file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
