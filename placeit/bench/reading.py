"""Conversion of errors in files of problems into errors that name the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from placeit.core.errors import FileError, PlaceitError

__all__ = ["reading"]


@contextlib.contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Convert errors of a ``with`` block that parses the contents of a file into errors that name the file."""
    try:
        yield
    except PlaceitError as error:
        raise type(error)(f"{path}: {error}") from None
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"{path} does not hold {what}: {type(error).__name__}: {error}.") from None
