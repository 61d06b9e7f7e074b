"""A store on disk for weights that were sent to a machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

from placeit.core.errors import DeviceError, FileError
from placeit.core.files import own_folder

__all__ = ["WeightStore"]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_DRAFT = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{8}")
_STORE_BYTES = 8 << 30


class WeightStore:
    """Pieces of weights in files that are named by their SHA-256, so that each piece is sent to a machine once.

    The least recently used files are deleted when their total size exceeds the limit, or when the disk is full. A file whose
    digest differs from its name is not used. Other files in the folder are left alone.

    Args:
        folder: path of the folder, which is made if it is missing. Only its owner may write there.
        max_bytes: limit on the total size of the files.

    Raises:
        DeviceError: the folder is a link or no folder, others may write there, or it cannot be made.
    """

    def __init__(self, folder: Path, max_bytes: int = _STORE_BYTES) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._handle = self._open_folder()
        weakref.finalize(self, os.close, self._handle)
        self._writing = threading.Lock()

    @classmethod
    def of_user(cls) -> WeightStore:
        """Return the store of this user on this machine. Raises DeviceError."""
        return cls(Path(tempfile.gettempdir(), f"placeit-weights-{os.geteuid()}"))

    def missing(self, pieces: tuple[str, ...]) -> list[str]:
        """Return the pieces that are not in the store."""
        with self._as_device_error():
            here = set(self._names())
        return [name for name in dict.fromkeys(pieces) if _checked(name) not in here]

    def put(self, pieces: Mapping[str, bytes]) -> None:
        """Store pieces. Raises DeviceError if there is no room."""
        with self._exclusive():
            for name in self._names():
                if _DRAFT.fullmatch(name):  # left by a process that was killed, as no other process writes now
                    self._delete(name)
            new = sum(map(len, pieces.values()))
            self._free(new + sum(size for _, size, _ in self._others(pieces)) - self._max_bytes, pieces)
            for name, data in pieces.items():
                self._write(_checked(name), data, pieces)

    def get(self, pieces: tuple[str, ...]) -> dict[str, bytes] | None:
        """Return pieces; None if some are missing or damaged. Raises DeviceError."""
        found: dict[str, bytes] = {}
        with self._as_device_error():
            for name in dict.fromkeys(pieces):
                data = self._read(_checked(name))
                if data is None or hashlib.sha256(data).hexdigest() != name:
                    self._delete(name)
                else:
                    found[name] = data
        return found if found.keys() == set(pieces) else None

    def _open_folder(self) -> int:
        try:
            return own_folder(self._folder)
        except FileError as error:
            raise DeviceError(f"Weights cannot be kept. {error}") from error

    @contextlib.contextmanager
    def _as_device_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DeviceError(f"Weights cannot be kept in {self._folder}: {error.strerror or error}.") from error

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Exclude other threads and processes of this user from writing during the block."""
        with self._writing, self._as_device_error():
            if os.fstat(self._handle).st_nlink == 0:  # deleted, as old folders for temporary files are
                made = self._open_folder()
                os.dup2(made, self._handle, inheritable=False)
                os.close(made)
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _read(self, name: str) -> bytes | None:
        """Return the content of a file, and mark it as used now; None if it is missing, or not a regular file."""
        try:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._handle)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
                return None
            raise
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None
            os.utime(handle)
            return file.read()

    def _write(self, name: str, data: bytes, needed: Mapping[str, bytes]) -> None:
        """Write a file atomically. While the disk is full, delete other files."""
        draft = f".{name}.{secrets.token_hex(4)}"
        while True:
            try:
                with open(draft, "xb", opener=self._opener) as file:
                    file.write(data)
                os.replace(draft, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
            except BaseException as error:
                self._delete(draft)
                full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
                if not (full and self._free(len(data), needed)):
                    raise
            else:
                return

    def _names(self) -> list[str]:
        return os.listdir(self._handle)  # noqa: PTH208 (of a descriptor)

    def _opener(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o600, dir_fd=self._handle)

    def _delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._handle)

    def _others(self, needed: Mapping[str, bytes]) -> list[tuple[float, int, str]]:
        """Return the time of last use, the size and the name of each piece that is not needed."""
        found = []
        for name in self._names():
            if _DIGEST.fullmatch(name) and name not in needed:
                with contextlib.suppress(FileNotFoundError):  # another process has just deleted it
                    facts = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
                    found.append((facts.st_mtime, facts.st_size, name))
        return found

    def _free(self, size: int, needed: Mapping[str, bytes]) -> bool:
        """Delete the least recently used pieces that are not needed until ``size`` bytes are free; return whether any was."""
        freed = 0
        for _, nbytes, name in sorted(self._others(needed)):
            if freed >= size:
                break
            self._delete(name)
            freed += nbytes
        return freed > 0


def _checked(name: str) -> str:
    if not _DIGEST.fullmatch(name):
        raise DeviceError(f"'{name}' is not a digest.")
    return name
