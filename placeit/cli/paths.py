"""Check the paths that a command reads and writes before it starts to work."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from placeit.core.errors import UsageError
from placeit.core.files import check_writable

__all__ = ["OutputFile", "check_outputs", "named_files"]


@dataclass(frozen=True)
class OutputFile:
    """A file that a command writes before it prints its result. If that fails, other files and the result are still written.

    Attributes:
        path: path of the file.
        what: its content, for the message that says that it is lost: ``the placement``.
        write: writes it. Raises FileError.
    """

    path: Path
    what: str
    write: Callable[[], object]


def check_outputs(*outputs: Path | None, page: Path | None = None, inputs: Iterable[Path | None] = ()) -> None:
    """Check that files can be written, before hours are spent on their content. Files that are None are ignored.

    Args:
        outputs: files to write.
        page: another file to write, as HTML. A name without a suffix is accepted, such as /dev/stdout.
        inputs: files that the command reads.

    Raises:
        FileError: a folder is missing or read-only, the disk is full, or the path names a folder.
        UsageError: the command also reads the file, under any name, or writes it twice; the page's suffix is not one of HTML.
    """
    if page is not None and page.suffix.lower() not in ("", ".html", ".htm"):
        raise UsageError(f"{page}: a page is written as HTML only: give a name that ends in .html or .htm.")
    used = {_identity(path) for path in inputs if path is not None}
    for path in (*outputs, page):
        if path is None:
            continue
        identity = _identity(path)
        if identity is not None and identity in used:
            raise UsageError(
                f"{path} is named twice, by this name or another, or belongs to a file that is: what is written there would "
                "replace what is read or written before."
            )
        used.add(identity)
        check_writable(path)


def named_files(texts: Sequence[str] | None) -> list[Path]:
    """Return the files that are named in options of placers or agents, as in ``giph:weights=mine.safetensors``."""
    values = (item.partition("=")[2] for text in texts or () for item in text.partition(":")[2].split(","))
    return [Path(value) for value in values if value and Path(value).is_file()]


def _identity(path: Path) -> object:
    """Return a key that is equal for two names of one file; None for a special file, which writing does not replace."""
    try:
        found = path.stat()
    except OSError:
        return os.path.realpath(path)
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None
