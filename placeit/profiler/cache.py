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

__all__ = ["Cache", "CachedValue", "Number", "Seconds"]

Number: TypeAlias = Annotated[float, Within(-1e18, 1e18)]
"""A number of any unit."""
Seconds: TypeAlias = Annotated[float, Within(0.0, 1e6)]
"""A measured time."""

_log = logging.getLogger("placeit")
_VERSION = 4
_MAX_AGE_DAYS = 30.0  # age above which an entry counts as absent
_MAX_BYTES = 1 << 28  # maximum size of an entry
_ENTRY = re.compile(
    r"[0-9a-f]{64}\.json|\.[0-9a-f]{64}\.json\.\w+\.json|runs-[0-9a-f]{64}\.jsonl(\.damaged)?"
)  # an entry, its temporary file, or a file of runs


@dataclass(frozen=True)
class CachedValue:
    """A value in the cache, with the conditions under which it was measured.

    Attributes:
        value: the value, as it was stored.
        written: time at which it was stored, in seconds since 1970.
        load: average number of cores that other processes kept busy during the measurement; None if unknown.
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
    load: Annotated[float, Within(0.0, 1e6)] | None = None


class Cache:
    """A folder of JSON files, each named by the SHA-256 of its key.

    The key contains all conditions under which the value was measured (graph, device, driver, precision ...) and the version
    of placeit. If any of them changes, the entry is no longer found. Entries are written atomically, so several processes can
    share a folder. If the cache cannot be read or written, one warning is logged, and the program continues without it.

    Expired entries count as absent, because measured costs also depend on conditions that are not part of the key (firmware,
    cooling, other work on the machine). The first write deletes all expired entries.

    Args:
        folder: the folder; None for :func:`cache_folder`.
        days: maximum age of an entry, in days.
        runs: whether searches also store runs of placements here, for later searches with the same costs.

    Attributes:
        works: False once reading or writing has failed.
    """

    def __init__(self, folder: Path | None = None, *, days: float = _MAX_AGE_DAYS, runs: bool = True) -> None:
        self._max_age_s, self._runs = days * 86400, runs
        self.works, self._expired_deleted = True, False
        try:
            self.folder = cache_folder() if folder is None else folder
        except FileError as error:
            self.folder = Path(os.devnull)  # contains no entries
            self.works = False
            _log.warning("There is no cost cache: %s Or set PLACEIT_CACHE to a folder.", error)

    def get(self, key: Mapping[str, Any], valid: Callable[[Any], bool] = lambda _: True) -> Any | None:
        """Return the value stored under a key, or None; see :meth:`find`."""
        found = self.find(key, valid)
        return None if found is None else found.value

    def find(self, key: Mapping[str, Any], valid: Callable[[Any], bool] = lambda _: True) -> CachedValue | None:
        """Return the value stored under a key, with its conditions, or None. A damaged entry is ignored with a warning.

        Args:
            key: conditions under which the value was measured.
            valid: returns False, or raises RecordError, if a value cannot have been stored under the key; the entry is then
                treated as damaged. Numbers that are not finite are never valid, and only regular files are read.
        """
        path = self._path(key)
        try:
            text = _read_entry(path)
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
                raise RecordError("value", "is not valid for its key")
        except ValueError as error:
            _log.warning("The cache entry %s is damaged; it is measured again: %s.", path, error)
            return None
        # the clock may have been set back since the entry was written, hence abs()
        if abs(time.time() - entry.written) > self._max_age_s:
            return None
        return CachedValue(entry.value, entry.written, entry.load)

    def put(self, key: Mapping[str, Any], value: Any, *, load: float | None = None) -> CachedValue:
        """Store a value, and return it as :meth:`find` does.

        Args:
            key: conditions under which the value was measured.
            value: anything that JSON can hold, except None and numbers that are not finite (ValueError).
            load: average number of cores that other processes kept busy during the measurement; None if unknown.
        """
        if value is None:
            raise ValueError("None means that there is no entry")
        stored = CachedValue(value, time.time(), load)
        entry = {"version": _VERSION, "written": stored.written, "load": load, "key": _with_version(key), "value": value}
        text = json.dumps(entry, allow_nan=False)
        if self.works:
            path = self._path(key)
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._delete_expired()
                _replace(path, text + "\n")
            except IsADirectoryError:
                _log.warning("The cache entry %s cannot be written: a folder is in its place.", path)
            except OSError as error:
                self._give_up("write", error)
        return stored

    def runs_file(self, key: Mapping[str, Any]) -> Path | None:
        """Return the path of the file that stores runs of placements for a key, and create its folder; None if disabled."""
        if not self._runs or not self.works:
            return None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._give_up("write", error)
            return None
        self._delete_expired()
        return self.folder / f"runs-{hashlib.sha256(_canonical(key).encode()).hexdigest()}.jsonl"

    def clear(self) -> int:
        """Delete all entries, and return the number of cached costs. Raises FileError if an entry cannot be deleted."""
        count = 0
        for path in self._entries():
            try:
                path.unlink()
                count += path.suffix == ".json" and not path.name.startswith(".")  # hidden files were left by killed processes
            except FileNotFoundError:
                continue  # another process has deleted it
            except OSError as error:
                raise FileError(f"Cannot delete the cache entry {path}: {error.strerror or error}.") from error
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # fails if the folder has other files
        return count

    def _delete_expired(self) -> None:
        """Delete expired entries, in the first call only. An entry that cannot be deleted stays."""
        if not self._expired_deleted:
            self._expired_deleted, oldest = True, time.time() - self._max_age_s
            for path in self._entries():
                with contextlib.suppress(OSError):
                    if path.stat().st_mtime < oldest:
                        path.unlink()

    def _entries(self) -> list[Path]:
        """Return the files of the cache; the folder may contain other files, too."""
        return [path for path in self.folder.glob("*.json*") if _ENTRY.fullmatch(path.name)]

    def _path(self, key: Mapping[str, Any]) -> Path:
        return self.folder / f"{hashlib.sha256(_canonical(key).encode()).hexdigest()}.json"

    def _give_up(self, what: str, error: Exception) -> None:
        if self.works:
            self.works = False
            _log.warning("Cannot %s the cost cache %s (%s); continuing without it.", what, self.folder, error)


def _read_entry(path: Path) -> bytes | None:
    """Return the content of an entry; None if it is a broken link, not a regular file, or larger than 256 MiB."""
    try:
        # without O_NONBLOCK, opening a FIFO would wait for a writer
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO) or (isinstance(error, FileNotFoundError) and path.is_symlink()):
            return None
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            return None
        with open(handle, "rb", closefd=False) as file:
            return file.read(_MAX_BYTES)
    finally:
        os.close(handle)


def _replace(path: Path, text: str) -> None:
    """Write a file atomically, replacing an existing one. Raises OSError."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}{path.suffix}")
    delete = functools.partial(draft.unlink, missing_ok=True)
    unregister = at_end(delete)
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        delete()
        unregister()


def _with_version(key: Mapping[str, Any]) -> dict[str, Any]:
    return {"placeit": __version__, **key}


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(_with_version(key), sort_keys=True, allow_nan=False, separators=(",", ":"))
