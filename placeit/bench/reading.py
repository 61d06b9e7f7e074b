"""Turn what is wrong in the files of other people's problems into errors that name the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from placeit.core.errors import FileError, PlaceitError

__all__ = ["reading"]


@contextlib.contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Raise FileError, with the path, for the errors of a block that takes problems or graphs out of a file's contents."""
    try:
        yield
    except PlaceitError as error:
        raise type(error)(f"{path}: {error}") from None
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"{path} does not hold {what}: {type(error).__name__}: {error}.") from None
