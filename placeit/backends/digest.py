"""Digests of what determines a model's running time, and stamps that tell whether a file has changed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

__all__ = ["constant_digest", "digest", "file_stamp"]

_MAX_VALUES = 1024  # most integers or booleans of a constant that is compared by its values
_INTEGERS = frozenset(("bool", "boolean", "int16", "int32", "int64", "uint16", "uint32", "uint64"))


def digest(parts: Iterable[object]) -> str:
    """Return a hash of the ``repr`` of objects."""
    return hashlib.sha256(b"".join(repr(part).encode(errors="replace") + b"\n" for part in parts)).hexdigest()[:16]


def constant_digest(dtype: str, shape: Sequence[int], value: Callable[[], bytes]) -> str:
    """Return a text for a constant: type and shape, and the value if it may be a number of steps, a size, an axis or a bound.

    Such values are single numbers, and up to 1,024 integers or booleans. Weights are represented by type and shape only, since
    a model that has been trained further takes the same time and can be placed in the same way.

    Args:
        dtype: element type, NumPy spelling.
        shape: shape of the constant.
        value: returns the bytes of the value; called only if the text has them.
    """
    size = math.prod(shape)
    has_value = size == 1 or (size <= _MAX_VALUES and dtype in _INTEGERS)
    return f"{dtype}{list(shape)}{value().hex() if has_value else ''}"


def file_stamp(path: Path) -> tuple[int, ...] | None:
    """Return numbers that change when a file is replaced or written to; None if there is no such file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
