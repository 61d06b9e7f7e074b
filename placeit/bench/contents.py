"""Read the files of other people's problems: JSON, also compressed, in which anything may be missing or wrong."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from placeit.core.errors import FileError, PlaceitError
from placeit.core.files import read_text
from placeit.core.records import parsed

__all__ = ["contents", "reading"]


def contents(path: Path) -> Any:
    """Read a JSON file, with ``.gz`` a compressed one. Raises FileError if it cannot be read or is not JSON."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return parsed(read_text(path, cast("BinaryIO", stream)))
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from None
    except (EOFError, zlib.error, ValueError) as error:
        raise FileError(f"{path} is not valid JSON: {error}.") from None


@contextlib.contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Raise FileError, with the path, for the errors of a block that takes problems or graphs out of a file's contents."""
    try:
        yield
    except PlaceitError as error:
        raise type(error)(f"{path}: {error}") from None
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"{path} does not hold {what}: {type(error).__name__}: {error}.") from None
