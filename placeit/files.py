"""Reading and writing files so that nothing is ever left half-written."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from placeit.errors import FileError

__all__ = ["read_json", "read_text", "replacing", "write_text"]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; move it into place if the block succeeds, delete it if not.

    Raises:
        FileError: the folder is missing or read-only, or the disk is full.
    """
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        raise FileError(f"Cannot write {path}: {error.strerror or error}. Nothing was written there.") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step. Raises FileError."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_text(path: Path) -> str:
    """Read a text file. Raises FileError, naming it."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise FileError(f"Cannot read {path}: it is not a text file ({error.reason} at byte {error.start}).") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary of the members of a JSON object, which keeps the last of several with one key without a word."""
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"the key '{key}' comes twice")
        fields[key] = value
    return fields


def read_json(path: Path, format_name: str) -> dict[str, Any]:
    """Read a JSON object whose "format", if it says one, is ``format_name``. Raises FileError, naming the file."""
    try:
        data = json.loads(read_text(path), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(data, dict) or data.get("format", format_name) != format_name:
        raise FileError(f"{path} is not a {format_name} file.")
    if data.get("version", 1) != 1:
        raise FileError(f"{path} has version {data['version']!r}; this placeit reads version 1 of {format_name}.")
    return data
