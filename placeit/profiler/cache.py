"""The cost cache: measured costs on disk."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from placeit.core.errors import FileError
from placeit.core.files import cache_folder
from placeit.core.interrupts import at_end
from placeit.core.records import RecordError, Within, parsed, record
from placeit.core.version import __version__

__all__ = ["Cache", "Kept", "Number", "Seconds"]

Number: TypeAlias = Annotated[float, Within(-1e18, 1e18)]
"""A number of any unit."""
Seconds: TypeAlias = Annotated[float, Within(0.0, 1e6)]
"""A measured time."""

_log = logging.getLogger("placeit")
_VERSION = 4
_DAYS = 30.0  # age that entries reach
_MAX_BYTES = 1 << 28  # most bytes of an entry
_ENTRY = re.compile(
    r"[0-9a-f]{64}\.json|\.[0-9a-f]{64}\.json\.\w+\.json|runs-[0-9a-f]{64}\.jsonl(\.damaged)?"
)  # or a draft of one


@dataclass(frozen=True)
class Kept:
    """An entry of the cache.

    Attributes:
        value: the value, as it was stored.
        written: when it was stored, in seconds since 1970.
        load: how many cores other processes kept busy while it was measured, on average; None if unknown.
    """

    value: Any
    written: float
    load: float | None


@dataclass(frozen=True)
class _Entry:
    """The content of an entry's file; ``load`` may be missing."""

    version: int
    written: Annotated[float, Within(0.0, 1e18)]
    key: Mapping[str, Any]
    value: Any
    load: Seconds | None = None


class Cache:
    """A folder of JSON files, each named by the SHA-256 of its key.

    The key has all conditions that the value holds for (graph, device, driver, precision ...), and placeit's own version is
    part of every key: if any of it changes, the entry is not found. Entries are written in one step, so processes can share a
    folder. A cache that cannot be read or written is no error: one warning is logged, and the work goes on without it.

    An entry that is too old counts as absent, since measured costs also depend on things that cannot be known (firmware,
    cooling, other work on the machine). The first write deletes all entries that are too old.

    Args:
        folder: the folder; None for :func:`cache_folder`.
        days: age in days that entries reach.
        runs: whether searches also keep the runs of placements here, for later searches by the same costs.
    """

    def __init__(self, folder: Path | None = None, *, days: float = _DAYS, runs: bool = True) -> None:
        self._seconds, self._runs = days * 86400, runs
        self._works, self._swept = True, False
        try:
            self.folder = cache_folder() if folder is None else folder
        except FileError as error:
            self.folder = Path(os.devnull)  # in which nothing is found
            self._works = False
            _log.warning("There is no cost cache: %s Or set PLACEIT_CACHE to a folder.", error)

    @property
    def works(self) -> bool:
        """Whether it can be read and written, as far as is known."""
        return self._works

    def get(self, key: Mapping[str, Any], valid: Callable[[Any], bool] = lambda _: True) -> Any | None:
        """Return the value stored under a key, or None; see :meth:`find`."""
        kept = self.find(key, valid)
        return None if kept is None else kept.value

    def find(self, key: Mapping[str, Any], valid: Callable[[Any], bool] = lambda _: True) -> Kept | None:
        """Return the entry stored under a key, or None. A damaged entry counts as absent, with a warning.

        Args:
            key: the conditions that the value holds for.
            valid: returns whether a value can have been stored under the key; if not, or if it raises RecordError, the entry is
                damaged. Numbers that are not finite are never valid, and only regular files are read.
        """
        path = self._path(key)
        try:
            text = _content(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._give_up("read", error)
            return None
        if text is None:
            _log.warning("The cache entry %s is not a file that can be read; it is measured again.", path)
            return None
        try:
            content = parsed(text, finite=True)
            if isinstance(content, dict) and content.get("version") in range(1, _VERSION):
                return None  # written by an earlier placeit
            entry = record(_Entry, content)
            if entry.version != _VERSION:
                raise RecordError("version", f"must be {_VERSION}")
            if entry.key != parsed(_canonical(key)):
                raise RecordError("key", "has other conditions than its name")
            if not valid(entry.value):
                raise RecordError("value", "is not what is stored there")
        except ValueError as error:
            _log.warning("The cache entry %s is damaged; it is measured again: %s.", path, error)
            return None
        # an entry from the future is as old as a clock was wrong
        if abs(time.time() - entry.written) > self._seconds:
            return None
        return Kept(entry.value, entry.written, entry.load)

    def put(self, key: Mapping[str, Any], value: Any, *, load: float | None = None) -> Kept:
        """Store a value and return what :meth:`find` returns from then on.

        Args:
            key: the conditions that the value holds for.
            value: anything that JSON can hold, except None and numbers that are not finite (ValueError).
            load: how many cores other processes kept busy while it was measured, on average.
        """
        if value is None:
            raise ValueError("None means that there is no entry")
        kept = Kept(value, time.time(), load)
        entry = {"version": _VERSION, "written": kept.written, "load": load, "key": _complete(key), "value": value}
        text = json.dumps(entry, allow_nan=False)
        if self._works:
            path = self._path(key)
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._sweep()
                _replace(path, text + "\n")
            except IsADirectoryError:
                _log.warning("The cache entry %s cannot be written: a folder is in its place.", path)
            except OSError as error:
                self._give_up("write", error)
        return kept

    def runs_file(self, key: Mapping[str, Any]) -> Path | None:
        """Return the file for runs of placements under a key, in an existing folder; None if runs are not kept."""
        if not self._runs or not self._works:
            return None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._give_up("write", error)
            return None
        self._sweep()
        return self.folder / f"runs-{hashlib.sha256(_canonical(key).encode()).hexdigest()}.jsonl"

    def clear(self) -> int:
        """Delete every entry and return how many costs there were. Raises FileError if one cannot be deleted."""
        count = 0
        for path in self._entries():
            try:
                path.unlink()
                count += path.suffix == ".json" and not path.name.startswith(".")  # a killed process left the hidden ones
            except FileNotFoundError:
                continue  # another process has deleted it
            except OSError as error:
                raise FileError(f"Cannot delete the cache entry {path}: {error.strerror or error}.") from error
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # fails if the folder has other files
        return count

    def _sweep(self) -> None:
        """Delete entries that are too old, once; an entry that cannot be deleted stays."""
        if not self._swept:
            self._swept, last = True, time.time() - self._seconds
            for path in self._entries():
                with contextlib.suppress(OSError):
                    if path.stat().st_mtime < last:
                        path.unlink()

    def _entries(self) -> list[Path]:
        """Return the files that a cache has written here; the folder may have other files."""
        return [path for path in self.folder.glob("*.json*") if _ENTRY.fullmatch(path.name)]

    def _path(self, key: Mapping[str, Any]) -> Path:
        return self.folder / f"{hashlib.sha256(_canonical(key).encode()).hexdigest()}.json"

    def _give_up(self, what: str, error: Exception) -> None:
        if self._works:
            self._works = False
            _log.warning("Cannot %s the cost cache %s (%s); continuing without it.", what, self.folder, error)


def _content(path: Path) -> bytes | None:
    """Return the content of an entry; None for a broken link, and for anything but a regular file of at most 256 MiB."""
    try:
        # without O_NONBLOCK, opening a FIFO would wait for a writer
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO) or (isinstance(error, FileNotFoundError) and path.is_symlink()):
            return None
        raise
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MAX_BYTES:
            return None
        with open(handle, "rb", closefd=False) as file:
            return file.read(_MAX_BYTES)
    finally:
        os.close(handle)


def _replace(path: Path, text: str) -> None:
    """Write a file in one step, in place of an existing one. Raises OSError."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}{path.suffix}")
    delete = functools.partial(draft.unlink, missing_ok=True)
    kept = at_end(delete)
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        delete()
        kept()


def _complete(key: Mapping[str, Any]) -> dict[str, Any]:
    return {"placeit": __version__, **key}


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(_complete(key), sort_keys=True, allow_nan=False, separators=(",", ":"))
