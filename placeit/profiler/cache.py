"""Measured costs on disk, so that the same thing is not measured twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from placeit.errors import FileError
from placeit.files import write_text

__all__ = ["Cache", "are_times", "cache_folder"]

_log = logging.getLogger("placeit")
_VERSION = 1


def cache_folder() -> Path:
    """Where costs are kept: ``$PLACEIT_CACHE``, else ``$XDG_CACHE_HOME/placeit``, else ``~/.cache/placeit``."""
    if own := os.environ.get("PLACEIT_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG specification has relative paths ignored
    return (Path(shared) if Path(shared).is_absolute() else Path("~/.cache").expanduser()) / "placeit"


class Cache:
    """A folder of JSON files, each named by the SHA-256 of its key.

    The key says everything that the value holds for (graph, device, driver, precision ...): if any of it changes, the entry
    is not found. Entries are written in one step, so processes can share a folder. A cache that cannot be read or written is
    no error: one warning is logged, and the work goes on without it.

    Args:
        folder: where; None for :func:`cache_folder`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder() if folder is None else folder
        self._works = True

    def get(self, key: Mapping[str, Any], valid: Callable[[Any], bool] = lambda _: True) -> Any | None:
        """Return the value stored under a key, or None. A damaged entry counts as absent, with a warning.

        Args:
            key: what the value holds for.
            valid: whether a value is one that can have been stored under the key; if not, the entry is damaged. Numbers that
                are not finite are never valid.
        """
        path = self._path(key)
        try:
            entry = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._give_up("read", error)
            return None
        except (ValueError, RecursionError):
            entry = None
        if (
            not isinstance(entry, dict)
            or entry.get("version") != _VERSION
            or entry.get("key") != json.loads(_canonical(key))
            or "value" not in entry
            or not valid(entry["value"])
        ):
            _log.warning("The cache entry %s is damaged; it is measured again.", path)
            return None
        return entry["value"]

    def put(self, key: Mapping[str, Any], value: Any) -> None:
        """Store a value: anything that JSON can hold, except None and numbers that are not finite (ValueError)."""
        if value is None:
            raise ValueError("None means that there is no entry")
        text = json.dumps({"version": _VERSION, "key": dict(key), "value": value}, allow_nan=False)
        if not self._works:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self._path(key), text + "\n")
        except (OSError, FileError) as error:
            self._give_up("write", error)

    def clear(self) -> int:
        """Delete every entry and return how many there were. Raises FileError if one cannot be deleted."""
        count = 0
        for path in self.folder.glob("*.json"):
            try:
                path.unlink()
                count += not path.name.startswith(".")  # a hidden one is a leftover of a process that was killed
            except FileNotFoundError:
                continue  # another process was faster
            except OSError as error:
                raise FileError(f"Cannot delete the cache entry {path}: {error.strerror or error}.") from error
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # it stays if something else is in it
        return count

    def _path(self, key: Mapping[str, Any]) -> Path:
        return self.folder / f"{hashlib.sha256(_canonical(key).encode()).hexdigest()}.json"

    def _give_up(self, what: str, error: Exception) -> None:
        if self._works:
            self._works = False
            _log.warning("Cannot %s the cost cache %s (%s); going on without it.", what, self.folder, error)


def are_times(value: Any, count: int) -> bool:
    """Whether a value that was read is a list of ``count`` times: numbers that are finite and not negative."""
    return (
        isinstance(value, list)
        and len(value) == count
        and all(isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x < math.inf for x in value)
    )


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number that is ever stored")


def _canonical(key: Mapping[str, Any]) -> str:
    return json.dumps(dict(key), sort_keys=True, allow_nan=False, separators=(",", ":"))
